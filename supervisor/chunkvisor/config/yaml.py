"""YAML text as plain values that remember their lines, and single keys set in such a text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

Key = tuple[str | int, ...]
"""Where a value stands: keys of mappings and positions in lists, from the top."""

_TAG = "tag:yaml.org,2002:"
_SYNTAX = (
    ("'\\t'", "a tab stands where YAML takes only spaces"),
    ("mapping values are not allowed", 'a ": " too many, or wrong indentation; text that holds ": " needs quotes'),
    ("alias", "text that begins with * needs quotes"),
    ("cannot start any token", "text that begins with this character needs quotes"),
    ("another document", "a second document begins here; a config is one"),
    ("stream end", "a quote, bracket or brace that begins here is not closed"),
    ("end of stream", "a quote, bracket or brace that begins here is not closed"),
    ("could not find expected ':'", 'a key without ": " after it'),
    ("could not determine a constructor", "this tag has no place in a config"),
)
"""What PyYAML says, and what it means in a config; the first that fits."""


class YamlError(Exception):
    """The text cannot be read as a whole; `line` counts from 1. No value is repeated, as it may be a secret."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(f"line {line}: {sentence}")
        self.line = line
        self.sentence = sentence


@dataclass(slots=True)
class Document:
    """What a YAML text says, and where."""

    value: Any = None
    lines: dict[Key, int] = field(default_factory=dict)
    """Line of each key and list item, from 1."""
    written: dict[Key, str] = field(default_factory=dict)
    """Each single value as it was written, without quotes."""
    problems: list[tuple[int, str]] = field(default_factory=list)
    """(line, sentence) for each key that stands twice."""


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.1 less what surprises in a config (dates, 010 = 8, 1:30 = 90), and 1e3 as a number."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML has it
        first: [(tag, pattern) for tag, pattern in found if tag.removeprefix(_TAG) in ("bool", "null", "merge")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(
        r"([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def parse(text: str) -> Document:
    """Read the document in the text. Raises YamlError."""
    document, line = Document(), 1
    try:
        loader = _Loader(text)
        if (node := loader.get_single_node()) is not None:
            _note(document, node, (), set())
            document.value = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        said = f"{error.problem or ''} {error.context or ''}"
        unclosed = "stream end" in said or "end of stream" in said or "expected ':'" in said
        mark = (error.context_mark if unclosed else None) or error.problem_mark or error.context_mark
        meaning = next((meaning for words, meaning in _SYNTAX if words in said), error.problem or "unreadable")
        row, column = (mark.line, mark.column) if mark else (0, 0)
        key = re.match(r"""[\s-]*["']?([\w.-]{1,80})["']?\s*:""", "".join(text.split("\n")[row : row + 1]))
        where = f"column {column + 1}" + (f", key {key[1]}" if key else "")
        raise YamlError(row + 1, f"not valid YAML: {meaning} ({where})") from None
    except yaml.reader.ReaderError as error:
        line += text.count("\n", 0, error.position)
        raise YamlError(line, f"the character {chr(int(error.character))!a} has no place in YAML") from None
    except RecursionError:
        raise YamlError(line, "nested too deeply") from None
    except (ValueError, KeyError):  # an explicit tag such as !!int on other text, or thousands of digits
        raise YamlError(line, "not valid YAML: a value cannot be read as what its tag says") from None
    return document


def _note(document: Document, node: yaml.Node, key: Key, seen: set[yaml.Node]) -> None:
    """Note the lines and spellings of all that is in the node, its keys as text."""
    if isinstance(node, yaml.ScalarNode):
        document.written[key] = node.value
        return
    if node in seen:  # what an alias repeats has its place where it is anchored
        return
    seen.add(node)
    for position, item in enumerate(node.value):
        name_node, value_node = item if isinstance(node, yaml.MappingNode) else (item, item)
        name: str | int = position
        line = int(name_node.start_mark.line) + 1
        if isinstance(node, yaml.MappingNode):
            if name_node.tag == f"{_TAG}merge" or not isinstance(name_node, yaml.ScalarNode):
                continue
            name_node.tag = f"{_TAG}str"
            name = name_node.value
            if before := document.lines.get((*key, name)):
                dotted = ".".join(map(str, (*key, name)))
                sentence = f"{dotted}: this key stands twice, in lines {before} and {line}; keep one"
                document.problems.append((line, sentence))
        document.lines[*key, name] = line
        _note(document, value_node, (*key, name), seen)


def with_values(text: str, values: Mapping[tuple[str, str], str | int]) -> str | None:
    """Set these keys (section, key) in the text; None if its form does not allow it, so that a person has to do it.

    Comments, order and quotes stay. The result is parsed again: it says what the text said, but for these keys.
    """
    wanted = parse(text).value
    for (section, key), value in values.items():
        if not isinstance(wanted, dict) or not isinstance(wanted.setdefault(section, {}), dict | None):
            return None
        wanted[section] = {**(wanted[section] or {}), key: value}
        known, lines = parse(text).lines, text.splitlines(keepends=True)
        if at := known.get((section, key)):
            pattern = rf"""(?<![\w.-])({re.escape(key)}\s*:\s+)("[^"]*"|'[^']*'|[^\s,}}#]+)"""
            lines[at - 1] = re.sub(pattern, rf"\g<1>{value}", lines[at - 1], count=1)
        elif at := known.get((section,)):
            neighbor = next((lines[line - 1] for place, line in known.items() if place[:-1] == (section,)), "  ")
            if "{" in lines[at - 1]:
                lines[at - 1] = lines[at - 1].replace("{", f"{{{key}: {value}, ", 1).replace(", }", "}")
            else:
                lines.insert(at, f"{re.split(r'[^ ]', neighbor)[0]}{key}: {value}\n")
        else:
            lines.append(f"\n{section}:\n  {key}: {value}\n")
        text = "".join(lines)
    try:
        return text if parse(text).value == wanted else None
    except YamlError:
        return None
