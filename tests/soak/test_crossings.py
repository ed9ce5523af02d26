"""Plays whole small jobs in which everything comes at once that other tests try alone.

Two outputs that share texts and repeat them, bad texts of all kinds, several workers, standbys,
fresh and warm, chunks and batches of any size; the run is killed, stopped, robbed of a worker, and
its sources change. In a soak some jobs are under fire: no text is bad, but every other attempt
misbehaves, workers and parents are stopped and starved, other commands are called meanwhile, and
files of the workdir are damaged between runs. Whatever comes, the last run, with which all that is
over, has to end well, with every vector that there can be. The seed decides all but the scheduling.

`make test` plays six, the soak fifty; CROSSINGS=500 CROSSINGS_FIRST=7 plays the seeds from 7 to
506.
"""

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from damaged import empty, flip, pipe, stray, swap, truncate
from forking import Forked
from harness import MARK, SOAK_SEED, Workplace, bearing, events_in, wait_for, write_lines

FIRST = int(os.environ.get("CROSSINGS_FIRST", SOAK_SEED or 1))
COUNT = int(os.environ.get("CROSSINGS", 50 if SOAK_SEED else 6))

BAD = ("exit 3", "signal 11", "signal 9", "raise ValueError", "assert", "raise IndexError", "nan")
"""What `deadly` makes of a text that has no vector."""
MOST_BAD = 0.25
"""Share of the texts of an output: where more are bad, the model is to blame."""

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
ENDINGS = ((KILL,), (KILL,), (KILL,), (TERM,), (INT,), (TERM, TERM), (INT, INT), (), ())
"""What is sent to a run; nothing: one of its workers is killed."""
INTERRUPTED = {130, 143, -KILL, -TERM, -INT}
"""How a run may end that was sent a signal, unless that came too late. A signal between the last
word and the end of the interpreter may end it, too, which a shell calls 130 and 143."""
ALLOWED = {0, 3, 69, 74, 75, 78, *INTERRUPTED}
"""How any command may end; 1 would be a bug."""

RATE = 0.5
"""Under fire, share of the attempts that misbehave."""
WORKER_SIGNALS = [
    KILL,
    KILL,
    TERM,
    TERM,
    INT,
    signal.SIGHUP,
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGSTOP,
]
DAMAGES = (truncate, empty, flip, flip, swap, swap, stray, pipe, Path.unlink)
LONGEST_S, MOST_RUNS = 240, 10
"""Of a command; of the runs after the fire, to the first that is complete."""


@dataclass(frozen=True)
class Ending:
    """What happens to a run, after so many events of it."""

    signals: Sequence[signal.Signals]
    after: int


class Crossing:
    """One job."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._chance, self._place = random.Random(seed), Workplace(folder)
        self._share = self._chance.choice([0, 0.03, 0.1, 0.2])
        self._texts: dict[str, list[str]] = {"one": [], "two": []}
        if self._chance.random() < 0.5:
            del self._texts["two"]
        self._commands = 0
        self.under_fire = bool(SOAK_SEED) and random.Random(-seed).random() < 0.3
        if self.under_fire:
            self._share = 0
        self._how = "--update"
        """How the next run takes what earlier ones have left."""

    def play(self) -> None:
        """Run it until it has ended well, one generation after the other."""
        chance, outputs = self._chance, dict[str, Any]()
        for name in self._texts:
            chunk = {"size": chance.choice([7, 10, 16, 30, 1000])}
            outputs[name] = {"source": f"{name}.jsonl", "column": "text", "chunk": chunk}
        recovery = {"max_bad_rows": 1000, "attempts": chance.randint(2, 3)}
        encoder, changes = "deadly:make", dict[str, Any]()
        if self.under_fire:
            recovery |= {"stall_timeout": 2, "startup_timeout": 20, "wait_timeout": 5}
            encoder, changes = "chaotic:make", {"model.kwargs": {"plan": {}}}
        self._place.write_config(encoder, outputs=outputs, recovery=recovery, **changes)
        endings = chance.randint(0, 4)
        for later in reversed(range(chance.randint(1, 2))):
            now = chance.randint(0, endings) if later else endings
            endings -= now
            self._change_sources()
            for _ in range(now):
                self._cross(Ending(chance.choice(ENDINGS), int(chance.expovariate(1 / 20))))
            if not later or chance.random() < 0.6:
                self._calm()
                self._check()

    # --- sources

    def _change_sources(self) -> None:
        before, fair = self._texts, False
        while not fair:
            self._texts = {name: self._changed(texts) for name, texts in before.items()}
            fair = all(bad_share(set(texts)) <= MOST_BAD for texts in self._texts.values())
        for name, texts in self._texts.items():
            write_lines(self._place.folder / f"{name}.jsonl", [{"text": text} for text in texts])

    def _changed(self, texts: list[str]) -> list[str]:
        """Some of them and new ones, some of which come twice, in any order."""
        chance = self._chance
        kept = [text for text in texts if chance.random() < 0.8]
        made = [self._text(chance.randrange(200)) for _ in range(chance.randint(3, 60))]
        found = [*kept, *made, *chance.choices(made, k=chance.randint(0, 10))]
        chance.shuffle(found)
        return found

    def _text(self, number: int) -> str:
        """The text of this number, or the same as an order."""
        words = f"text {number}" + " and more" * (number % 7)
        dice = self._chance.random()
        if dice < self._share:
            return f"do {self._chance.choice(BAD)} {words}"
        if dice < 1.2 * self._share:
            return f"do fit {1 + number % 3} {words}"
        return words if number else ""

    # --- commands

    def _cross(self, ending: Ending | None) -> int:
        """Run it, and disturb that if there is an ending; return the exit code."""
        if ending and self.under_fire:
            chaos = {"seed": self._chance.random(), "rate": RATE}
            (self._place.folder / "chaos.json").write_text(json.dumps(chaos))
        settings = {
            "workers.per_device": self._chance.randint(1, 3),
            "workers.standby": self._chance.randint(0, 2),
            "workers.start": self._chance.choice(["fresh", "warm", "auto"]),
            "encode.batch_size": self._chance.choice([1, 2, 3, 8, 16]),
        }
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        before = {event["run"] for event in self._events()}
        process, log = self._start("run", self._place.config_path, self._how, *options)
        if ending and self.under_fire:
            self._fire_at(process, ending)
        elif ending:
            self._end(process, ending, before)
        code, words = self._ended(process, log)
        bad = any(bad_share(texts) for texts in self._texts.values())
        is_interrupted = ending and ending.signals and code in INTERRUPTED
        assert self.under_fire or is_interrupted or code == (3 if bad else 0), words
        if not code or not self.under_fire:  # else the next run ends who cannot end by himself
            wait_for(lambda: not bearing(os.environ[MARK]))
        if self.under_fire:
            self._how = "--from-scratch" if code == 78 else "--update"
            if code == 3:
                self._call("retry")
            for _ in range(self._chance.randrange(9) if ending else 0):
                self._damage()
        return code

    def _calm(self) -> None:
        """Everything is mended: run until it is complete."""
        (self._place.folder / "chaos.json").unlink(missing_ok=True)
        for _ in range(MOST_RUNS):
            if not self._cross(None) or not self.under_fire:
                return
        raise AssertionError(f"{MOST_RUNS} runs, and it is not complete")

    def _start(self, *arguments: str | Path) -> tuple[Forked, Path]:
        """Start a command; return it, and the file of what it says."""
        self._commands += 1
        log = self._place.folder / f"{self._commands}.stderr"
        print(*arguments)
        nothing = subprocess.DEVNULL
        with open(log, "wb") as stderr:
            command = self._place.command(*map(str, arguments))
            return Forked(command, stdin=nothing, stdout=nothing, stderr=stderr), log

    def _ended(self, process: Forked, log: Path) -> tuple[int, str]:
        """Wait; return the exit code, and what was said, without a traceback."""
        try:
            code = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            process.wait(LONGEST_S)
            raise AssertionError(f"it does not end: {log.read_text(errors='replace')}") from None
        words = log.read_text(errors="replace")
        assert code in ALLOWED, words
        assert "Traceback" not in words, words
        return code, words

    def _call(self, name: str) -> None:
        self._ended(*self._start(name, self._place.workdir))

    def _events(self) -> list[dict[str, Any]]:
        if self.under_fire:
            return []  # the journal may be damaged
        return events_in(self._place.hidden / "events.jsonl")

    def _end(self, process: Forked, ending: Ending, before: set[str]) -> None:
        def events(*names: str) -> list[dict[str, Any]]:
            """What this run has told; of these names, if there are any."""
            told = [event for event in self._events() if event["run"] not in before]
            return [event for event in told if not names or event["event"] in names]

        def killed() -> bool:
            pids = {event["pid"] for event in events("attempt_started")}
            workers = [each for each in bearing(os.environ[MARK]) if each.pid in pids]
            with contextlib.suppress(psutil.NoSuchProcess):
                for worker in workers[-1:]:
                    worker.kill()
            return bool(workers)

        def ended() -> bool:
            return process.poll() is not None

        wait_for(lambda: ended() or len(events()) > ending.after)
        for number in ending.signals:
            process.send_signal(number)
            wait_for(lambda: ended() or events("draining"))
        if not ending.signals:
            wait_for(lambda: ended() or killed())

    # --- under fire

    def _fire_at(self, process: Forked, ending: Ending) -> None:
        """Disturb the run for some seconds, then end it."""
        while process.poll() is None and self._chance.random() < 0.9:
            time.sleep(self._chance.uniform(0.1, 0.9))
            self._disturb(process.pid)
        for number in ending.signals or (KILL,):
            process.send_signal(number)
            time.sleep(self._chance.uniform(0, 0.5))

    def _disturb(self, parent: int) -> None:
        """Hurt a worker, let the parent open no more files or stop it for a moment, or call another
        command.
        """
        dice = self._chance.random()
        with contextlib.suppress(psutil.Error, OSError):  # it has ended
            if dice < 0.85:
                found = bearing(os.environ[MARK])
                workers = [each for each in found if "CHUNKVISOR_RUN_ID" in each.environ()]
                if workers:
                    self._chance.choice(workers).send_signal(self._chance.choice(WORKER_SIGNALS))
            elif dice < 0.92 and psutil.Process(parent).children():  # it has imported all
                in_use = sum(1 for _ in Path(f"/proc/{parent}/fd").iterdir())
                soft, hard = resource.prlimit(parent, resource.RLIMIT_NOFILE)
                limits = in_use + self._chance.randrange(4), hard
                resource.prlimit(parent, resource.RLIMIT_NOFILE, limits)
                time.sleep(self._chance.uniform(0.1, 0.6))
                resource.prlimit(parent, resource.RLIMIT_NOFILE, (soft, hard))
            elif dice < 0.96:
                os.kill(parent, signal.SIGSTOP)
                time.sleep(self._chance.uniform(0.2, 1.5))
                os.kill(parent, signal.SIGCONT)
        if dice >= 0.96:  # looks, or mistakes a live workdir for a finished one
            self._call(self._chance.choice(["status", "verify", "retry", "clean"]))

    def _damage(self) -> None:
        # What outlives its parent is found by the run id in the lock file: spare it unless nothing
        # lives.
        spared = {"lock"} if bearing(os.environ[MARK]) else set[str]()
        found: dict[str, list[Path]] = {}
        for path in sorted(self._place.workdir.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.name not in spared:
                # Kinds of files first: there are hundreds of chunk files, and one lessons.json.
                kind = path.suffix if path.stem.isdecimal() or "chunks" in path.parts else path.name
                found.setdefault(kind, []).append(path)
        if found:
            path = self._chance.choice(self._chance.choice(list(found.values())))
            damage = self._chance.choice(DAMAGES)
            # Of a pipe in the place of one of these a run says that it has to be removed by hand.
            if damage is not pipe or path.name not in {"lock", "events.jsonl"}:
                damage(path)

    # --- what has to be there

    def _check(self) -> None:
        for name, texts in self._texts.items():
            bad = [row for row, text in enumerate(texts) if is_bad(text)]
            self._place.has(texts, bad, name)
            listed = events_in(self._place.workdir / f"{name}.quarantined.jsonl")
            assert [each["row"] for each in listed] == bad
        self._place.does("verify")


def is_bad(text: str) -> bool:
    """Whether it gets no vector."""
    return text.startswith("do ") and not text.startswith("do fit")


def bad_share(texts: Collection[str]) -> float:
    """How many of them get no vector."""
    return sum(map(is_bad, texts)) / len(texts)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_crossing(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row has its vector, or is bad and named, and no process is left."""
    print(f"CHUNKVISOR_SOAK_SEED={SOAK_SEED} CROSSINGS_FIRST={seed} CROSSINGS=1 .venv/bin/pytest")
    crossing = Crossing(tmp_path, seed)
    # Under fire commands are started: what forks them is not made for it.
    monkeypatch.setenv("CHUNKVISOR_TEST_FORKS", "no" if crossing.under_fire else "yes")
    crossing.play()
