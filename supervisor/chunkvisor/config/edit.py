"""Sets single keys in the text of a config, and leaves everything else as its author wrote it. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from chunkvisor.config.yaml import YamlError, parse

Place = tuple[str, str]
"""A section and a key in it."""


def with_values(text: str, values: Mapping[Place, str | int]) -> str | None:
    """The text with these keys set; None where its form does not allow it, so that a person has to do it.

    Comments, order and quotes stay. The result is parsed again: it says what the text said, but for these keys.
    """
    wanted = parse(text).value
    for (section, key), value in values.items():
        if not isinstance(wanted, dict) or not isinstance(wanted.setdefault(section, {}), dict | None):
            return None
        wanted[section] = {**(wanted[section] or {}), key: value}
        text = _with_value(text, section, key, value)
    try:
        said: Any = parse(text).value
    except YamlError:
        return None
    return text if said == wanted else None


def _with_value(text: str, section: str, key: str, value: str | int) -> str:
    document, lines = parse(text), text.splitlines(keepends=True)
    at = document.lines.get((section, key))
    if at is not None:
        lines[at - 1] = _replaced(lines[at - 1], key, value)
        return "".join(lines)
    at = document.lines.get((section,))
    if at is None:
        end = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{end}\n{section}:\n  {key}: {value}\n"
    head = lines[at - 1]
    if re.match(rf"{re.escape(section)}\s*:\s*(#.*)?$", head.rstrip("\n")):
        lines.insert(at, f"{_indent(document.lines, lines, section)}{key}: {value}\n")
    else:
        before, _, behind = head.partition("{")
        comma = "" if behind.lstrip().startswith("}") else ", "
        lines[at - 1] = f"{before}{{{key}: {value}{comma}{behind.lstrip()}"
    return "".join(lines)


def _replaced(line: str, key: str, value: str | int) -> str:
    """The line with the key's value replaced; a comment behind it stays."""
    pattern = rf"""(?<![\w.-])({re.escape(key)}\s*:\s+)("[^"]*"|'[^']*'|[^\s,}}#]+)"""
    return re.sub(pattern, lambda found: f"{found[1]}{value}", line, count=1)


def _indent(known: Mapping[tuple[str | int, ...], int], lines: list[str], section: str) -> str:
    for place, number in known.items():
        if len(place) == 2 and place[0] == section:
            return re.match(r"\s*", lines[number - 1])[0]  # type: ignore[index]  # matches always
    return "  "
