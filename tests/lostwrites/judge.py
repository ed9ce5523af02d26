"""Rebuilds folders, has a person's command run in each, and says what is wrong with what comes of it."""

import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        chunk, texts = event.get("chunk", 0), scenario.encoded_by(found.command)
        found.reopened = found.reopened and "attempt" not in event
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
        found.complete = found.complete and scenario.commands[found.command].words == scenario.commands[-1].words
    return found


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of one power cut."""

    crash: Crash
    problems: tuple[str, ...]
    refused: bool = False
    """Whether it was refused by name first."""


@dataclass(frozen=True, slots=True)
class End:
    """What one command has come to."""

    code: int
    stderr: str
    calls: list[Any]
    """Of the encoder, by all commands so far."""
    files: Mapping[str, bytes]
    """Final files and manifests beneath the disk."""


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
        self._numbers = itertools.count(1)
        self._known: dict[tuple[str, tuple[Try, ...], bool], list[End]] = {}

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
        promises = promises_of(self._scenario, crash)
        problems = []
        if self._scenario.keeps_a_final and promises.was_complete and not _some_final(crash):
            problems.append("no final file is left, neither the old one nor the new")
        if crash.told and not _mark_is_whole(crash):
            problems.append("the mark does not say which format the workdir has")
        tries = self._scenario.again(promises.command)
        checked = next(number for number, each in enumerate(tries) if each.final)
        ends = self._ends_of(crash, tries, server, mended=self._scenario.mended(promises.command))
        for number, (each, end) in enumerate(zip(tries, ends, strict=False)):
            if not problems:
                problems = self._look(each, end, promises, first=number == checked)
        if not problems and promises.complete and len(ends) > checked + 1:
            problems.append(f"a final file that was told of was not there: {len(ends)} commands were needed")
        return Judgement(crash, tuple(problems), any(end.code == 78 for end in ends))

    def _ends_of(self, crash: Crash, tries: tuple[Try, ...], server: Server, *, mended: bool) -> list[End]:
        """What the commands come to; the same folder is played once, whatever had been promised of it."""
        key = crash.digest, tries, mended
        if key not in self._known:
            self._known[key] = list(self._play(crash, tries, server, mended=mended))
        return self._known[key]

    def _play(self, crash: Crash, tries: tuple[Try, ...], server: Server, *, mended: bool) -> Iterator[End]:
        case = self._scratch / f"{next(self._numbers):06d}"
        source = self._recording.folder.parent / "rows.jsonl"
        self._scenario.lay_out(case, source)
        for path in self._recording.folder.parent.glob("left-*"):
            (case / path.name).touch()
        if mended:
            (case / "mended").touch()
        stats = self._rebuild(crash, case / "disk")
        for each in tries:
            answer = server.ask(case, with_source(each.words, source), stats)
            yield End(answer["code"], answer["stderr"], _calls(case), self._finals(case))
            if answer["code"] == 0 and each.final:
                break
            stats = {}
        shutil.rmtree(case, ignore_errors=True)

    def _finals(self, case: Path) -> dict[str, bytes]:
        """What a judgement reads, by its path beneath the disk."""
        wanted = [*self._scenario.finals, *self._scenario.exact]
        places = [case / "disk" / name for name in wanted]
        shards = [path for place in places if place.name == "0000.npy" for path in place.parent.glob("*.npy")]
        manifests = [place.with_suffix(".json") for place in places]
        files = {path for path in (*places, *shards, *manifests) if path.is_file()}
        return {str(path.relative_to(case / "disk")): path.read_bytes() for path in files}

    def _look(self, each: Try, end: End, promises: Promises, *, first: bool) -> list[str]:
        if "Traceback" in end.stderr or end.code not in each.codes:
            return [f"{' '.join(each.words)}: exit code {end.code}\n{end.stderr[-3000:]}"]
        if end.code == 78:
            named = "chunkvisor: " in end.stderr and "do:  " in end.stderr
            return [] if named else [f"refused without a word of what to do\n{end.stderr[-3000:]}"]
        problems = self._wrong_final(end.files, promises) if each.final else []
        if first:
            problems += self._broken(promises, end.calls, end.stderr)
        return [f"{problem}\n{end.stderr[-3000:]}" for problem in problems]

    def _wrong_final(self, files: Mapping[str, bytes], promises: Promises) -> list[str]:
        scenario = self._scenario
        place = next((name for name in scenario.exact or scenario.finals if name in files), None)
        if place is None:
            return ["there is no final file"]
        if scenario.exact and promises.command == len(scenario.commands) - 1:
            recorded = self._recording.folder
            differ = [name for name in scenario.exact if files.get(name) != (recorded / name).read_bytes()]
            return [f"other than recorded: {', '.join(differ)}"] if differ else []
        folder, _, name = place.rpartition("/")
        shards = sorted(each for each in files if each.startswith(f"{folder}/") and each.endswith(".npy"))
        try:
            arrays = [_array(files[each]) for each in (shards if name == "0000.npy" else [place])]
            rows = np.concatenate(arrays)
        except ValueError as error:
            return [f"the final file is none: {error}"]
        right = self._right(json.loads(files.get(place.removesuffix(".npy") + ".json", b"{}")), promises)
        return [] if any(np.array_equal(rows, each, equal_nan=True) for each in right) else ["vectors are wrong"]

    def _right(self, manifest: Mapping[str, Any], promises: Promises) -> list[Any]:
        scenario, mended = self._scenario, self._scenario.mended(promises.command)
        shift = 300 if manifest.get("model", {}).get("name") == "other" else 0
        right = [scenario.expected(promises.command, mended=mended) + np.float32(shift)]
        if manifest.get("quarantined"):
            right = [scenario.expected(promises.command, mended=False) + np.float32(shift)]
        return right

    def _broken(self, promises: Promises, calls: Sequence[Any], stderr: str) -> list[str]:
        """Promises that were not kept by the first command after the power cut."""
        problems, scenario = [], self._scenario
        encoded = [call for call in calls if isinstance(call, list)]
        # A text alone is a canary: attempts that follow a failure begin with one that has a vector.
        bad = any(text.startswith(BAD) for text in scenario.texts)
        again = [call for call in encoded if promises.safe.intersection(call) and (len(call) > 1 or not bad)]
        if again:
            problems.append(f"what was committed was encoded again: {again}")
        texts = {text for call in encoded for text in call}
        if lost := promises.quarantined & texts:
            problems.append(f"what was quarantined was tried again: {sorted(lost)}")
        for chunk, count in promises.kept.items():
            share = scenario.encoded_by(promises.command)[chunk * scenario.size : (chunk + 1) * scenario.size]
            if len(texts.intersection(share)) > len(share) - count + bad:
                problems.append(f"{count} texts of chunk {chunk} were kept, and then encoded again")
        if promises.reopened and not any(text.startswith(BAD) for text in texts):
            problems.append("what was to be tried again was not")
        if promises.lesson and calls.count("oom") > 1:  # a run begins one step wider
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


def _calls(case: Path) -> list[Any]:
    path = case / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _mark_is_whole(crash: Crash) -> bool:
    """Whether each mark of a workdir can be read, without which a later format could not be refused by name."""
    for path, entry in crash.tree.items():
        if path.endswith("/format.json") and entry.kind is Kind.CREATE:
            try:
                json.loads(entry.content)["workdir_format"]
            except (ValueError, KeyError):
                return False
    return True


def _some_final(crash: Crash) -> bool:
    """Whether anywhere on the disk, under whatever name, there is a whole array of all rows, or all of its shards."""
    rows = Counter[str]()
    names = re.compile(r"work/(?:\.chunkvisor/)?out(\.npy.*|/\d{4}\.npy|\.\w+/.*)")
    for path, entry in crash.tree.items():
        if entry.kind is Kind.CREATE and names.fullmatch(path):
            try:
                array = _array(entry.content)
            except ValueError:
                continue
            if not (array == 0).all():
                folder = path.rpartition("/")[0]
                rows[folder if folder != "work" else path] += len(array)
    return any(count >= 4 for count in rows.values())


def _array(data: bytes) -> Any:
    """Raises ValueError for what is none; numpy has more errors for that."""
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (EOFError, SyntaxError, tokenize.TokenError) as error:
        raise ValueError(str(error)) from error
