"""YAML text as plain values that remember their lines, and single keys set in such a text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

Key = tuple[str | int, ...]
"""Where a value stands: keys of mappings and positions in lists, from the top."""

_TAG = "tag:yaml.org,2002:"


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
    problems: list[tuple[int, str]] = field(default_factory=list)
    """(line, sentence) for each key that stands twice."""


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.1 less what surprises in a config: dates stay text, and so do 010 (8 in YAML) and 1:30 (90)."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML has it
        first: [(tag, pattern) for tag, pattern in found if tag.removeprefix(_TAG) in ("bool", "null", "merge")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    f"{_TAG}float",  # 1e-5 too, which YAML 1.1 takes for text
    re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$"),
    list("-+0123456789."),
)


def parse(text: str, at: Key = ()) -> Document:
    """Read the document in the text, whose value is to stand at this key. Raises YamlError."""
    document = Document()
    try:
        loader = _Loader(text)
        if (node := loader.get_single_node()) is not None:
            _note(document, node, at, set())
            document.value = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        begun = f", {error.context} from line {error.context_mark.line + 1} on" if error.context_mark else ""
        row, column = (mark.line, mark.column) if mark else (0, 0)
        # PyYAML repeats names of tags and aliases in its words; a secret is neither.
        raise YamlError(row + 1, f"not valid YAML: {error.problem} (column {column + 1}{begun})") from None
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, error.position)
        raise YamlError(line, f"the character {chr(int(error.character))!a} has no place in YAML") from None
    except RecursionError:
        raise YamlError(1, "nested too deeply") from None
    except (ValueError, KeyError):  # an explicit tag such as !!int on other text, or thousands of digits
        raise YamlError(1, "not valid YAML: a value cannot be read as what its tag says") from None
    return document


def _note(document: Document, node: yaml.Node, key: Key, seen: set[yaml.Node]) -> None:
    """Note the lines of all that is in the node, and make all of its keys text."""
    if isinstance(node, yaml.ScalarNode):
        # A number of `env` keeps its digits: 9.10 is not 9.1 to whoever reads the variable.
        if key[:1] == ("env",) and node.tag in (f"{_TAG}int", f"{_TAG}float"):
            node.tag = f"{_TAG}str"
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
        if not isinstance(wanted, dict) or not isinstance(wanted.get(section), dict | None):
            return None
        wanted[section] = {**(wanted.get(section) or {}), key: value}
        known, lines = parse(text).lines, text.splitlines(keepends=True)
        if at := known.get((section, key)):
            pattern = rf"""(?<![\w.-])({re.escape(key)}\s*:\s+)("[^"]*"|'[^']*'|[^\s,}}#]+)"""
            lines[at - 1] = re.sub(pattern, rf"\g<1>{value}", lines[at - 1], count=1)
        elif (at := known.get((section,))) and "{" in lines[at - 1]:
            lines[at - 1] = lines[at - 1].replace("{", f"{{{key}: {value}, ", 1).replace(", }", "}")
        elif at:
            neighbor = next((lines[line - 1] for place, line in known.items() if place[:-1] == (section,)), "  ")
            lines.insert(at, f"{neighbor[: len(neighbor) - len(neighbor.lstrip(' '))]}{key}: {value}\n")
        else:
            lines.append(f"\n{section}:\n  {key}: {value}\n")
        text = "".join(lines)
    try:
        return text if parse(text).value == wanted else None
    except YamlError:
        return None
