"""Power cuts: at any call of a recording, with any of what was not synced there or not."""

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .disk import Disk
from .recording import Kind, Recording

_STORY = re.compile(
    r"(^|.*/)(runs|events\.jsonl|report\.html|worker\.log|ingest\.log|\.?beat\.json.*)(/.*)?"
)
"""Written for people: no resume reads it, so that folders that differ only there count as one."""

_PROMISES = frozenset(
    {
        "chunk_committed",
        "part_committed",
        "batches_kept",
        "quarantined",
        "limits_lowered",
        "output_complete",
    }
    | {"command_ended"}
)
"""Events that tell of what has to hold from then on."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a rebuilt folder has at a path."""

    kind: Kind
    """CREATE, MKDIR or SYMLINK."""
    inode: int
    content: bytes = b""
    target: str = ""


@dataclass(frozen=True, slots=True)
class Crash:
    """A folder after a power cut."""

    at: int
    """How many calls were made."""
    what: str
    """What was lost, in words."""
    tree: Mapping[str, Entry]
    """Everything by its path, parents first."""
    digest: str
    """Of all that a resume reads."""
    told: tuple[Mapping[str, Any], ...]
    """The events that had been written to a journal by then, durable or not: what a person or a
    program knew."""

    @property
    def key(self) -> tuple[str, int]:
        """The same folder is another matter once more has been promised of it."""
        return self.digest, sum(event["event"] in _PROMISES for event in self.told)


class Crashes:
    """The power cuts of one recording."""

    def __init__(self, recording: Recording, chance: random.Random, *, synced: bool = True) -> None:
        """`synced=False`: as if no sync had ever been called, which has to be noticed."""
        self._recording, self._chance, self._synced = recording, chance, synced

    def legal(self) -> Iterator[Crash]:
        """Distinct ones, after each call: all gone, all there, one thing gone, one thing there,
        some.
        """
        seen: set[tuple[str, int]] = set()
        for at, disk, told in self._states():
            for crash in self._of(at, disk, told):
                if crash.key not in seen:
                    seen.add(crash.key)
                    yield crash

    def _states(self) -> Iterator[tuple[int, Disk, tuple[Mapping[str, Any], ...]]]:
        disk, told = Disk(), list[Mapping[str, Any]]()
        yield 0, disk, ()
        for at, call in enumerate(self._recording.calls, 1):
            if call.kind is not Kind.SYNC or self._synced:
                disk.do(call)
            ended = [number for number, end in enumerate(self._recording.ends) if end == at]
            told += [{"event": "command_ended", "number": number} for number in ended]
            if call.kind is Kind.WRITE and call.path.endswith("events.jsonl"):
                told += [json.loads(line) for line in call.data.splitlines() if line]
            if ended or not _STORY.fullmatch(call.path):
                yield at, disk, tuple(told)

    def _of(self, at: int, disk: Disk, told: tuple[Mapping[str, Any], ...]) -> Iterator[Crash]:
        everything, chance = frozenset(disk.steps), self._chance
        alive = {file.number: path for path, file in disk.tree(disk.steps).items()}
        pending = [
            disk.files[n]
            for n, path in alive.items()
            if disk.files[n].pending and not _STORY.fullmatch(path)
        ]
        worst, zeros = ({file.number: way for file in pending} for way in ("none", "size"))
        cuts: list[tuple[frozenset[int], dict[int, str], str]] = [
            (everything, {}, "nothing"),
            (frozenset(), worst, "all that was not synced"),
            (everything, worst, "all content that was not synced"),
            (everything, zeros, "all content that was not synced, but for the sizes"),
            (frozenset(), {}, "all names that were not synced"),
        ]
        steps = [
            step
            for step in disk.steps.values()
            if not all(_STORY.fullmatch(name) for _, name, _ in step.changes)
        ]
        numbers = [step.number for step in steps]
        for number in numbers[-4:] + chance.sample(numbers[:-4], min(3, len(numbers[:-4]))):
            cuts.append((disk.without([number]), {}, _words(disk, number)))
            cuts.append((disk.with_needs([number]), {}, f"all names but {_words(disk, number)}"))
        for file in chance.sample(pending, min(3, len(pending))):
            for way in disk.ways_of(file)[1:]:
                cuts.append((everything, {file.number: way}, f"content of one file, {way}"))
        for _ in range(2):
            some = disk.with_needs(number for number in numbers if chance.random() < 0.5)
            cuts.append(
                (
                    some,
                    {file.number: chance.choice(disk.ways_of(file)) for file in pending},
                    "some of it",
                )
            )
        for kept, ways, what in cuts:
            yield _crash(at, disk, kept, ways, what, told)


def _words(disk: Disk, number: int) -> str:
    changes = [
        f"{name} {'gone' if what is None else 'there'}"
        for _, name, what in disk.steps[number].changes
    ]
    return "the step " + ", ".join(changes)


def _crash(
    at: int,
    disk: Disk,
    steps: frozenset[int],
    ways: Mapping[int, str],
    what: str,
    told: tuple[Mapping[str, Any], ...],
) -> Crash:
    tree: dict[str, Entry] = {}
    digest = hashlib.sha256()
    for path, file in sorted(disk.tree(steps).items()):
        content = (
            disk.content(file, ways.get(file.number, "all")) if file.kind is Kind.CREATE else b""
        )
        tree[path] = Entry(file.kind, file.inode, content, file.target)
        if not _STORY.fullmatch(path):
            digest.update(f"{path}\0{file.kind}\0".encode() + _digest(content))
    return Crash(at, what, tree, digest.hexdigest(), told)


@lru_cache(maxsize=4096)
def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
