"""Rebuilds folders, has a person's command run in each, and says what is wrong with what comes of
it.
"""

import gc
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest import mock

import chunkvisor.store.records
import chunkvisor.supervise.session
from chunkvisor.cli import main as chunkvisor_main
from chunkvisor.events.journal import read_events
from iofault.forked import run_command
from quickruns import be_quick

from .crashes import Crash
from .recording import Kind, Recording
from .scenarios import BAD, FAULTS, Scenario, Try, finals_in, with_source

LIMIT_S = 60.0
"""Of a command; on a busy machine a resume takes a second."""


def be_ready() -> None:
    """Have commands be forks of this process; in them a sync does nothing, and people are told
    nothing.
    """
    be_quick()
    mock.patch.object(os, "fsync", return_value=None).start()
    mock.patch.object(chunkvisor.supervise.session, "observers_of_run", return_value=[]).start()
    gc.collect()
    gc.freeze()  # or every child would copy what its own collection touches


def _command(folder: Path, words: Sequence[str], stats: Mapping[str, Sequence[int]]) -> None:
    """What a forked process does: the command, as if `stats` were the states of files, by their
    inodes.
    """
    state_of = chunkvisor.store.records.state_of

    def as_recorded(path: Path) -> Sequence[int]:
        found = state_of(path)
        recorded = stats.get(str(found[-1]))
        # A power cut leaves number and times of a file that it takes the content of.
        return recorded if recorded is not None and recorded[0] == found[0] else found

    mock.patch.object(chunkvisor.store.records, "state_of", as_recorded).start()
    os.chdir(folder)
    sys.argv = list(words)
    chunkvisor_main()


@dataclass(slots=True)
class Promises:
    """What had been told before the power went, and so has to hold after it."""

    safe: set[str] = field(default_factory=set)
    """Texts that have their vectors."""
    kept: Counter[int] = field(default_factory=Counter)
    """Texts that were kept of a failed attempt, by chunk."""
    quarantined: set[str] = field(default_factory=set)
    reopened: bool = False
    """Whether `retry` has told that texts will be tried again, and no attempt has begun since."""
    lesson: bool = False
    """Whether it was learnt which batches do not fit."""
    complete: bool = False
    """Whether a final file was told of, and nothing has begun since that replaces it."""
    was_complete: bool = False
    command: int = 0
    """Number of the command under way, or of the last."""


def promises_of(scenario: Scenario, crash: Crash) -> Promises:
    """They, as the journal told them up to the power cut."""
    size, found = scenario.size, Promises()
    for event in crash.told:
        chunk = event.get("chunk", 0)
        texts = scenario.encoded_by(found.command, event.get("output", "out"))
        found.reopened = found.reopened and "attempt" not in event
        match event["event"]:
            case "chunk_committed":
                found.safe.update(
                    text
                    for text in texts[chunk * size : (chunk + 1) * size]
                    if not text.startswith(BAD)
                )
            case "part_committed":
                found.safe.update(texts[event["start"] : event["stop"]])
            case "batches_kept":
                found.kept[chunk] += event["texts"]
            case "quarantined":
                found.quarantined.add(scenario.texts_at(found.command)[event["row"]])
            case "limits_lowered":
                found.lesson = True
            case "output_complete" if scenario.second and event["output"] == "out":
                pass  # the other one is the last
            case "output_complete":
                found.complete = found.was_complete = True
            case "command_ended" if event["number"] + 1 < len(scenario.commands):
                found.reopened = "retry" in scenario.commands[event["number"]].words
                found.command = event["number"] + 1
                words = scenario.commands[found.command].words
                if "--from-scratch" in words:
                    found = Promises(was_complete=found.was_complete, command=found.command)
                if "retry" in words:
                    found.quarantined.clear()
                    found.complete = False
                if scenario.commands[found.command].encodes:
                    found.complete = False
    if found.was_complete and scenario.commands[found.command].words[1] not in ("retry", "clean"):
        found.complete = (
            found.complete and scenario.commands[found.command].words == scenario.commands[-1].words
        )
    return found


@dataclass(frozen=True, slots=True)
class End:
    """What one command has come to."""

    code: int
    stderr: str
    calls: list[list[str]]
    """Of the encoder, by all commands so far."""
    ooms: int
    """Attempts so far that lacked memory."""
    finals: Mapping[str, bytes]


class Judge:
    """Judges the power cuts of one recording; commands are forked from this process, which has
    imported everything.
    """

    def __init__(self, scenario: Scenario, recording: Recording, scratch: Path) -> None:
        self._scenario, self._recording, self._scratch = scenario, recording, scratch
        self._stats = _stats(recording.folder)
        self._known: dict[tuple[str, tuple[Try, ...], bool], list[End]] = {}
        self.refused = 0
        """How many were refused by name first."""

    def problems(self, crash: Crash) -> list[str]:
        """Rebuild the folder, resume, and say what is wrong."""
        promises = promises_of(self._scenario, crash)
        contents = {entry.content for entry in crash.tree.values()}
        finals = [set(each.values()) for each in self._recording.finals if each]
        if (
            self._scenario.keeps_a_final
            and promises.was_complete
            and not any(map(contents.issuperset, finals))
        ):
            return ["no final file is left, neither the old one nor the new"]
        if crash.told and not _mark_is_whole(crash):
            return ["the mark does not say which format the workdir has"]
        again, mended = self._scenario.again, self._scenario.mended(promises.command)
        tries = again[min(promises.command, len(again) - 1)]
        # the same folder is played once, whatever had been promised of it
        key = (crash.digest, tries, mended)
        if key not in self._known:
            self._known[key] = list(self._play(crash, tries, mended=mended))
        ends = self._known[key]
        self.refused += any(end.code == 78 for end in ends)
        checked = next(number for number, each in enumerate(tries) if each.final)
        for number, (each, end) in enumerate(zip(tries, ends, strict=False)):
            if problems := self._look(each, end, promises, first=number == checked):
                return problems
        if promises.complete and len(ends) > checked + 1:
            return [
                f"a final file that was told of was not there: {len(ends)} commands were needed"
            ]
        return []

    def _play(self, crash: Crash, tries: tuple[Try, ...], *, mended: bool) -> Iterator[End]:
        case, source = self._scratch / "case", self._recording.folder.parent / "rows.jsonl"
        # Whoever was to be killed has been killed, in the recording.
        place = self._scenario.lay_out(case, source, FAULTS if mended else {"leave"})
        stats = self._rebuild(crash, case / "disk")
        before = count_ooms(case / "disk")
        for each in tries:
            words = with_source(each.words, source)
            code, stderr = run_command(
                partial(_command, case, words, stats), case / "stderr", lambda _: None, LIMIT_S
            )
            ooms = count_ooms(case / "disk") - before
            yield End(code, stderr, place.calls(), ooms, finals_in(case / "disk"))
            if code == 0 and each.final:
                break
            stats = {}
        shutil.rmtree(case, ignore_errors=True)

    def _look(self, each: Try, end: End, promises: Promises, *, first: bool) -> list[str]:
        if "Traceback" in end.stderr or end.code not in each.codes:
            return [f"{' '.join(each.words)}: exit code {end.code}\n{end.stderr[-3000:]}"]
        if end.code == 78:
            named = "chunkvisor: " in end.stderr and "do:  " in end.stderr
            return [] if named else [f"refused without a word of what to do\n{end.stderr[-3000:]}"]
        right = self._recording.finals[promises.command :]
        problems = ["the final files are others"] if each.final and end.finals not in right else []
        if first:
            problems += self._broken(promises, end)
        return [f"{problem}\n{end.stderr[-3000:]}" for problem in problems]

    def _broken(self, promises: Promises, end: End) -> list[str]:
        """Promises that were not kept by the first command after the power cut."""
        problems, scenario, calls = [], self._scenario, end.calls
        # A text alone is a canary: attempts that follow a failure begin with one that has a vector.
        bad = any(text.startswith(BAD) for text in scenario.texts)
        again = [
            call
            for call in calls
            if promises.safe.intersection(call) and (len(call) > 1 or not bad)
        ]
        if again:
            problems.append(f"what was committed was encoded again: {again}")
        texts = {text for call in calls for text in call}
        if lost := promises.quarantined & texts:
            problems.append(f"what was quarantined was tried again: {sorted(lost)}")
        for chunk, count in promises.kept.items():
            share = scenario.encoded_by(promises.command)[
                chunk * scenario.size : (chunk + 1) * scenario.size
            ]
            if len(texts.intersection(share)) > len(share) - count + bad:
                problems.append(f"{count} texts of chunk {chunk} were kept, and then encoded again")
        if promises.reopened and not any(text.startswith(BAD) for text in texts):
            problems.append("what was to be tried again was not")
        if promises.lesson and end.ooms > 1:  # a run begins one step wider
            problems.append("a lesson about memory was paid for again")
        if promises.complete and (calls or " of up to " in end.stderr):
            problems.append(f"what was complete was begun again: {calls}")
        return problems

    def _rebuild(self, crash: Crash, disk: Path) -> dict[str, list[int]]:
        """Make the folder; returns what a stat would say of its files after a real power cut, by
        their new numbers.
        """
        disk.mkdir()
        stats = {}
        for name, entry in crash.tree.items():
            path = disk / name
            if entry.kind is Kind.MKDIR:
                path.mkdir(mode=0o700)
            elif entry.kind is Kind.SYMLINK:
                path.symlink_to(entry.target)
            else:
                path.write_bytes(entry.content)
        for name, entry in reversed(list(crash.tree.items())):
            if (
                recorded := self._stats.get(entry.inode)
            ) is not None and entry.kind is not Kind.SYMLINK:
                os.utime(disk / name, ns=(recorded[1], recorded[1]))
                stats[str((disk / name).stat().st_ino)] = list(recorded)
        return stats


def _stats(folder: Path) -> dict[int, tuple[int, int, int, int]]:
    """(size, mtime, ctime, inode) of all that the recording has left, by inode: what is in a
    `Stamp`.
    """
    found = {}
    for path in folder.rglob("*"):
        state = path.lstat()
        found[state.st_ino] = (state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
    return found


def count_ooms(disk: Path) -> int:
    """Count the attempts in the journal that lacked memory."""
    told = read_events(disk / "work/.chunkvisor/events.jsonl")
    return sum(getattr(each.event, "outcome", "") == "gpu_oom" for each in told)


def _mark_is_whole(crash: Crash) -> bool:
    """Whether each mark of a workdir can be read, without which a later format could not be refused
    by name.
    """
    for path, entry in crash.tree.items():
        if path.endswith("/format.json") and entry.kind is Kind.CREATE:
            try:
                json.loads(entry.content)["workdir_format"]
            except (ValueError, KeyError):
                return False
    return True
