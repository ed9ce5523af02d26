"""YAML text as plain values that remember their lines: mappings, lists, text, numbers, true, false and null.

PyYAML parses: ruamel.yaml stops at the first duplicate key, and would load an alias bomb as well.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

Key = tuple[str | int, ...]
"""Where a value stands: keys of mappings and positions in lists, from the top."""

_MOST_VALUES = 10_000
_MOST_LEVELS = 50
_TAG = "tag:yaml.org,2002:"
_KEY = re.compile(r"""[\s-]*["']?([\w.-]{1,80})["']?\s*:""")
"""At the beginning of a line."""
_TOKEN = re.compile(r"\bhf_\w+")

_PLAIN_WORDS: list[tuple[str, str, list[str]]] = [
    ("bool", r"(?i:yes|no|true|false|on|off)$", list("yYnNtTfFoO")),
    ("int", r"[-+]?(0|[1-9][0-9_]*)$", list("-+0123456789")),
    (
        "float",
        r"([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$",
        list("-+0123456789."),
    ),
    ("merge", r"<<$", ["<"]),
    ("null", r"(~|null|Null|NULL|)$", ["~", "n", "N", ""]),
]
"""What an unquoted word means: (kind, pattern, first characters).

YAML 1.1 as PyYAML reads it, less what surprises in a config (dates, 010 = 8, 1:30 = 90), and with 1e3 as a number.
"""

_VALUE_OF: dict[str, Callable[[str], Any]] = {
    "str": str,
    "null": lambda _: None,
    "bool": lambda text: {"yes": 1, "true": 1, "on": 1, "no": 0, "false": 0, "off": 0}[text.lower()] == 1,
    "int": lambda text: int(text.replace("_", "")),
    "float": lambda text: float(text.lower().replace("_", "").replace(".inf", "inf").replace(".nan", "nan")),
}

_SYNTAX = (
    ("'\\t'", "a tab stands where YAML takes only spaces"),
    ("mapping values are not allowed", 'a ": " too many, or wrong indentation; text that holds ": " needs quotes'),
    ("alias", "text that begins with * needs quotes"),
    ("cannot start any token", "text that begins with this character needs quotes"),
    ("another document", "a second document begins here; a config is one"),
)
"""What PyYAML says, and what it means in a config; the first that fits."""


class YamlError(Exception):
    """The text cannot be read as a whole; `line` counts from 1."""

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
    """(line, sentence) of what is wrong with single keys."""


def parse(text: str) -> Document:
    """The document in the text. Raises YamlError."""
    document = Document()
    try:
        node = _Loader(text).get_single_node()
        if node is not None:
            document.value = _Reader(document).value_of(node, (), 0)
    except RecursionError:
        raise YamlError(1, "nested too deeply") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(line, f"the character {chr(int(error.character))!a} has no place in YAML") from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(text, error) from None
    return document


class _Loader(yaml.SafeLoader):
    """Only composes nodes; its constructors are never called."""


_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in _PLAIN_WORDS:
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), _first)


class _Reader:
    """Turns nodes into values and notes the lines; every use of an alias gives a copy of its own."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.values = 0

    def value_of(self, node: yaml.Node, key: Key, level: int) -> Any:
        """The node's value. Raises YamlError where an alias holds itself or aliases multiply without measure."""
        self.values += 1
        if self.values > _MOST_VALUES:
            raise YamlError(_line(node), f"more than {_MOST_VALUES:,} values, each use of an alias (*name) counted")
        if level > _MOST_LEVELS:
            raise YamlError(_line(node), f"nested more than {_MOST_LEVELS} levels deep, aliases (*name) followed")
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._mapping(node, key, level)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            items = []
            for position, item in enumerate(node.value):
                self.document.lines[*key, position] = _line(item)
                items.append(self.value_of(item, (*key, position), level + 1))
            return items
        if isinstance(node, yaml.ScalarNode) and kind in _VALUE_OF:
            self.document.written[key] = node.value
            try:
                return _VALUE_OF[kind](node.value)
            except (ValueError, KeyError):  # an explicit tag such as !!int on other text, or thousands of digits
                self._problem(node, f"{_short(node.value)} cannot be read as {kind}")
                return node.value
        self._problem(node, f"the tag {_short(node.tag.replace(_TAG, '!!'))} has no place in a config")
        return None

    def _mapping(self, node: yaml.MappingNode, key: Key, level: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        # What is merged first, so that a key's own place and spelling are noted over it.
        for name_node, value_node in sorted(node.value, key=lambda pair: pair[0].tag != _TAG + "merge"):
            if name_node.tag == _TAG + "merge":
                merged |= self._merged(value_node, key, level)
            elif not isinstance(name_node, yaml.ScalarNode):
                self._problem(name_node, "a key must be a single word or text")
            else:
                name, line = name_node.value, _line(name_node)
                if name in own:
                    before, dotted = self.document.lines[*key, name], ".".join(map(str, (*key, name)))
                    self._problem(name_node, f"{dotted}: this key stands twice, in lines {before} and {line}; keep one")
                self.document.lines[*key, name] = line
                own[name] = self.value_of(value_node, (*key, name), level + 1)
        return {**merged, **own}

    def _merged(self, node: yaml.Node, key: Key, level: int) -> dict[str, Any]:
        """What `<<: node` brings in; of several mappings, the first one wins."""
        merged: dict[str, Any] = {}
        for source in reversed(node.value if isinstance(node, yaml.SequenceNode) else [node]):
            values = self.value_of(source, key, level + 1)
            if isinstance(values, dict):
                merged |= values
            else:
                self._problem(source, "<< takes a mapping")
        return merged

    def _problem(self, node: yaml.Node, sentence: str) -> None:
        self.document.problems.append((_line(node), sentence))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _short(text: str) -> str:
    text = _TOKEN.sub("hf_…", text.strip())
    return f"`{text if len(text) <= 80 else text[:79] + '…'}`"


def _syntax_error(text: str, error: yaml.MarkedYAMLError) -> YamlError:
    problem = error.problem or error.context or "unreadable"
    mark = error.problem_mark or error.context_mark
    if "stream end" in problem or "end of stream" in problem:
        mark = error.context_mark or mark
        problem = "a quote, bracket or brace that begins here is not closed"
    elif "could not find expected ':'" in problem:
        mark = error.context_mark or mark
        problem = 'a key without ": " after it'
    else:
        said = f"{problem} {error.context or ''}"
        problem = next((meaning for words, meaning in _SYNTAX if words in said), problem)
    line = (mark.line if mark else 0) + 1
    # The value is left out: it may be a secret.
    key = _KEY.match("".join(text.split("\n")[line - 1 : line]))
    where = f"column {(mark.column if mark else 0) + 1}" + (f", key {key[1]}" if key else "")
    return YamlError(line, f"not valid YAML: {problem} ({where})")
