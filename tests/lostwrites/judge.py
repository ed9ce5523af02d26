"""Rebuilds folders, has a person's command run in each, and says what is wrong with what comes of it."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from .crashes import Crash
from .recording import HERE, Kind, Recording
from .scenarios import BAD, Scenario, Try, with_source


def scratch_folder() -> Path:
    """A new one, in memory where that can be: thousands of folders are made and removed."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="chunkvisor-lostwrites-", dir=memory if os.access(memory, os.W_OK) else None))


@dataclass(slots=True)
class Promises:
    """What had been told before the power went, and so has to hold after it."""

    safe: set[str] = field(default_factory=set)
    """Texts that have their vectors."""
    kept: Counter[int] = field(default_factory=Counter)
    """Texts that were kept of a failed attempt, by chunk."""
    quarantined: set[str] = field(default_factory=set)
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
        chunk, texts = event.get("chunk", 0), scenario.encoded_by(found.command)
        match event["event"]:
            case "chunk_committed":
                found.safe.update(text for text in texts[chunk * size : (chunk + 1) * size] if not text.startswith(BAD))
            case "part_committed":
                found.safe.update(texts[event["start"] : event["stop"]])
            case "batches_kept":
                found.kept[chunk] += event["texts"]
            case "quarantined":
                found.quarantined.add(scenario.texts_at(found.command)[event["row"]])
            case "limits_lowered":
                found.lesson = True
            case "output_complete":
                found.complete = found.was_complete = True
            case "command_ended" if event["number"] + 1 < len(scenario.commands):
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
        found.complete = found.complete and scenario.commands[found.command].words == scenario.commands[-1].words
    return found


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of one power cut."""

    crash: Crash
    problems: tuple[str, ...]
    refused: bool = False
    """Whether it was refused by name first."""
    seconds: float = 0.0


class Server:
    """server.py, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, str(HERE / "server.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)

    def ask(self, folder: Path, words: Iterable[str], stats: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run a command in that folder; `code`, `stderr` and `seconds`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"folder": str(folder), "command": list(words), "stats": stats or {}}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)


class Judge:
    """Judges the power cuts of one recording, in so many processes."""

    def __init__(self, scenario: Scenario, recording: Recording, at_once: int = 1) -> None:
        self._scenario = scenario
        self._recording = recording
        self._scratch = scratch_folder()
        self._stats = _stats(recording.folder)
        self._at_once = at_once
        self._servers: list[Server] = []
        self._free: list[Server] = []
        self._count = 0

    def __enter__(self) -> "Judge":
        self._servers = [Server(self._scratch) for _ in range(self._at_once)]
        self._free = list(self._servers)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        for server in self._servers:
            server.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def each(self, crashes: Iterable[Crash]) -> Iterator[Judgement]:
        """The judgement of each, in order."""
        with ThreadPoolExecutor(self._at_once) as pool:
            todo = iter(crashes)
            under_way = []
            for crash in todo:
                under_way.append(pool.submit(self.judge, crash))
                if len(under_way) > 2 * self._at_once:
                    yield under_way.pop(0).result()
            for future in under_way:
                yield future.result()

    def judge(self, crash: Crash) -> Judgement:
        """Rebuild the folder, resume, look."""
        server = self._free.pop()
        try:
            return self._judge(crash, server)
        finally:
            self._free.append(server)

    def _judge(self, crash: Crash, server: Server) -> Judgement:
        scenario, promises = self._scenario, promises_of(self._scenario, crash)
        self._count += 1
        case = self._scratch / f"{self._count:06d}"
        source = self._recording.folder.parent / "rows.jsonl"
        scenario.lay_out(case, source)
        for path in self._recording.folder.parent.glob("left-*"):
            (case / path.name).touch()
        if scenario.mended(promises.command):
            (case / "mended").touch()
        stats = self._rebuild(crash, case / "disk")
        problems, refused, seconds = [], False, 0.0
        if scenario.keeps_a_final and promises.was_complete and not _some_final(case / "disk"):
            problems.append("no final file is left, neither the old one nor the new")
        if crash.told and not _mark_is_whole(case / "disk"):
            problems.append("the mark does not say which format the workdir has")
        tries = scenario.again(promises.command)
        checked = next(number for number, each in enumerate(tries) if each.final)
        for number, each in enumerate(tries):
            answer = server.ask(case, with_source(each.words, source), stats)
            seconds += answer["seconds"]
            problems += self._look(case, each, answer, promises, first=number == checked)
            refused = refused or answer["code"] == 78
            stats = {}
            if problems or (answer["code"] == 0 and each.final):
                break
        if not problems and promises.complete and number > checked:
            problems.append(f"a final file that was told of was not there: {number + 1} commands were needed")
        shutil.rmtree(case, ignore_errors=True)
        return Judgement(crash, tuple(problems), refused, seconds)

    def _look(self, case: Path, each: Try, answer: Mapping[str, Any], promises: Promises, *, first: bool) -> list[str]:
        code, stderr = answer["code"], answer["stderr"]
        if "Traceback" in stderr or code not in each.codes:
            return [f"{' '.join(each.words)}: exit code {code}\n{stderr[-3000:]}"]
        if code == 78:
            named = "chunkvisor: " in stderr and "do:  " in stderr
            return [] if named else [f"refused without a word of what to do\n{stderr[-3000:]}"]
        problems = []
        if each.final:
            problems += self._wrong_final(case, promises)
        if first:
            problems += self._broken(promises, _calls(case), stderr)
        return [f"{problem}\n{stderr[-3000:]}" for problem in problems]

    def _wrong_final(self, case: Path, promises: Promises) -> list[str]:
        names = self._scenario.exact or self._scenario.finals
        found = [case / "disk" / name for name in names if (case / "disk" / name).is_file()]
        if not found:
            return ["there is no final file"]
        place = found[0]
        if self._scenario.exact and promises.command == len(self._scenario.commands) - 1:
            recorded = self._recording.folder
            differ = [name for name in self._scenario.exact if not _same_bytes(case / "disk" / name, recorded / name)]
            return [f"other than recorded: {', '.join(differ)}"] if differ else []
        files = sorted(place.parent.glob("*.npy")) if place.name == "0000.npy" else [place]
        try:
            rows = np.concatenate([np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) for path in files])
        except (ValueError, EOFError) as error:
            return [f"the final file is none: {error}"]
        right = self._right(place, promises)
        return [] if any(np.array_equal(rows, each, equal_nan=True) for each in right) else ["vectors are wrong"]

    def _right(self, place: Path, promises: Promises) -> list[Any]:
        manifest = json.loads(place.with_suffix(".json").read_text()) if place.with_suffix(".json").exists() else {}
        scenario, mended = self._scenario, self._scenario.mended(promises.command)
        shift = 300 if manifest.get("model", {}).get("name") == "other" else 0
        right = [scenario.expected(promises.command, mended=mended) + np.float32(shift)]
        if manifest.get("quarantined"):
            right = [scenario.expected(promises.command, mended=False) + np.float32(shift)]
        return right

    def _broken(self, promises: Promises, calls: list[Any], stderr: str) -> list[str]:
        """Promises that were not kept by the first command after the power cut."""
        problems, scenario = [], self._scenario
        encoded = [call for call in calls if isinstance(call, list)]
        again = [call for call in encoded if promises.safe.intersection(call)]
        # A control: where a text is to be blamed and no other is left to try, one that has a vector is encoded alone.
        bad = any(text.startswith(BAD) for text in scenario.texts)
        if len({tuple(call) for call in again if len(call) == 1}) == len(again) <= bad:
            again = []
        if again:
            problems.append(f"what was committed was encoded again: {again}")
        texts = {text for call in encoded for text in call}
        if lost := promises.quarantined & texts:
            problems.append(f"what was quarantined was tried again: {sorted(lost)}")
        for chunk, count in promises.kept.items():
            share = scenario.encoded_by(promises.command)[chunk * scenario.size : (chunk + 1) * scenario.size]
            if len(texts.intersection(share)) > len(share) - count + bad:
                problems.append(f"{count} texts of chunk {chunk} were kept, and then encoded again")
        if promises.lesson and "oom" in calls:
            problems.append("a lesson about memory was paid for again")
        if promises.complete and (encoded or ("reading the source" in stderr and not scenario.stages_again)):
            problems.append(f"what was complete was begun again: {encoded}")
        return problems

    def _rebuild(self, crash: Crash, disk: Path) -> dict[str, list[int]]:
        """Make the folder; returns what a stat would say of its files after a real power cut, by their new numbers."""
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
            if (recorded := self._stats.get(entry.inode)) is not None and entry.kind is not Kind.SYMLINK:
                os.utime(disk / name, ns=(recorded[1], recorded[1]))
                stats[str((disk / name).stat().st_ino)] = list(recorded)
        return stats


def _stats(folder: Path) -> dict[int, tuple[int, int, int, int]]:
    """(size, mtime, ctime, inode) of all that the recording has left, by inode: what is in a `Stamp`."""
    found = {}
    for path in folder.rglob("*"):
        state = path.lstat()
        found[state.st_ino] = (state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
    return found


def _same_bytes(one: Path, other: Path) -> bool:
    return one.is_file() and one.read_bytes() == other.read_bytes()


def _calls(case: Path) -> list[Any]:
    path = case / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _mark_is_whole(disk: Path) -> bool:
    """Whether each mark of a workdir can be read, without which a later format could not be refused by name."""
    for path in disk.rglob(".chunkvisor"):
        try:
            json.loads(path.read_bytes())["format"]
        except (ValueError, KeyError):
            return False
    return True


def _some_final(disk: Path) -> bool:
    """Whether anywhere on the disk, under whatever name, there is a whole array of all rows, or all of its shards."""
    rows = Counter[str]()
    names = re.compile(r"\.?out(\.npy.*|/\d{4}\.npy|\.\w+/.*)")
    for path in disk.rglob("*"):
        place = str(path.relative_to(disk / "work")) if (disk / "work") in path.parents else ""
        if path.is_file() and names.fullmatch(place):
            try:
                array = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
            except (ValueError, EOFError, SyntaxError):
                continue
            if not (array == 0).all():
                rows[str(path.parent) if path.parent.name != "work" else str(path)] += len(array)
    return any(count >= 4 for count in rows.values())
