"""The shapes of all state files that are JSON, and of the journal's lines, each with its version."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from chunkvisor.events.decode import SUBJECTS
from chunkvisor.events.event import KINDS

GOLDEN = Path(__file__).parent / "shapes.json"
"""Kind of file -> version -> its keys and their types. Versions are added to it; the earlier ones stay as they are."""

Shapes = dict[str, dict[str, list[str]]]


def shapes_of(workdir: Path) -> Shapes:
    """Of all files in a workdir.

    A supervisor may have been killed while it took an attempt's folder away: what is left of one without its spec is
    not looked at, as no version reads it.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for path in sorted(workdir.rglob("*.json")):
        if "invocations" in path.parts or (kind := _kind(path)) is None:
            continue
        content = json.loads(path.read_text())
        version = content.pop("record_version", None)
        if version is None and "attempts" in path.parts:  # what is said in its spec
            spec = path.parent / "spec.json"
            if not spec.exists():
                continue
            version = json.loads(spec.read_text()).get("wire", 0)
        found.setdefault(kind, {}).setdefault(str(version or 0), set()).update(_keys(content, ""))
    return {kind: {version: sorted(keys) for version, keys in each.items()} for kind, each in found.items()}


def shapes_of_events() -> list[str]:
    """All events that a line of the journal may hold, and their fields with their types."""
    found = []
    for kind in (kind for kind in KINDS.values() if kind.__module__ in {subject.__name__ for subject in SUBJECTS}):
        hints = get_type_hints(kind)
        found += [kind.name, *(f"{kind.name}.{item.name}: {_in_words(hints[item.name])}" for item in fields(kind))]
    return sorted(found)


def _in_words(hint: Any) -> str:
    return hint.__name__ if type(hint) is type else re.sub(r"[\w.]+\.(\w+)", r"\1", str(hint))


def merged(shapes: list[Shapes]) -> Shapes:
    """Of several workdirs."""
    found: dict[str, dict[str, set[str]]] = {}
    for each in shapes:
        for kind, versions in each.items():
            for version, keys in versions.items():
                found.setdefault(kind, {}).setdefault(version, set()).update(keys)
    return {kind: {version: sorted(keys) for version, keys in each.items()} for kind, each in sorted(found.items())}


def _kind(path: Path) -> str | None:
    """What kind of record it is, by its name; None for what nobody reads back."""
    if path.parent.name == "quarantine":
        return "quarantine/N.json"
    if path.parent.parent.name == "parts":
        return "parts/N/index.json"
    if path.name == "out.json":
        return "<output>.json"
    if path.name.startswith(("facts.", "versions.")):
        return f"{path.name.partition('.')[0]}.json"
    return None if path.name.startswith(".") else path.name


def _keys(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _keys(each, f"{place}.{'*' if set(key) & set('/|') else key}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            yield from _keys(each, f"{place}[]")
    else:
        yield f"{place}: {'null' if value is None else type(value).__name__}"
