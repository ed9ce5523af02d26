"""Plays whole small jobs in which everything comes at once that other tests try alone.

A crossing has two outputs that share texts and repeat them, bad texts of all kinds, several
workers, standbys, fresh and warm, chunks and batches of any size; the run is killed, stopped, robbed
of a worker, and its sources change. Whatever comes, the last run has to end well, with every vector
that there can be. Under fire the encoder misbehaves as well, workers and parents are stopped and
starved, and files of the workdir are damaged between runs; when the time is over all that ends, and
the same command has to come to a complete end. The seed decides all but the scheduling.

`make test` plays six crossings, the soak fifty, and jobs under fire; CROSSINGS=500
CROSSINGS_FIRST=7 plays the seeds from 7 to 506.
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

BAD = (
    *("exit 3", "signal 11", "signal 9", "raise ValueError", "assert", "raise IndexError"),
    "nan",
)
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


@dataclass(frozen=True)
class Ending:
    """What happens to a run, after so many events of it."""

    signals: Sequence[signal.Signals]
    after: int


class Job:
    """A job of one or two outputs, whose texts and commands chance decides."""

    def __init__(self, folder: Path, chance: random.Random, outputs: Sequence[str]) -> None:
        self._chance, self._place = chance, Workplace(folder)
        folder.mkdir(exist_ok=True)
        self._texts: dict[str, list[str]] = {name: [] for name in outputs}
        self._bad_share = 0.0
        """Of the texts that are made from now on."""
        self._commands = 0

    # --- sources

    def _configure(self, encoder: str, sizes: Sequence[int], **changes: Any) -> None:
        """Write the config; the texts of a chunk of an output are one of the sizes."""
        outputs = {
            name: {
                "source": f"{name}.jsonl",
                "column": "text",
                "chunk": {"size": self._chance.choice(sizes)},
            }
            for name in self._texts
        }
        self._place.write_config(encoder, outputs=outputs, **changes)

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
        if dice < self._bad_share:
            return f"do {self._chance.choice(BAD)} {words}"
        if dice < 1.2 * self._bad_share:
            return f"do fit {1 + number % 3} {words}"
        return words if number else ""

    # --- commands

    def _run(self, *options: str, **settings: Sequence[object]) -> tuple[Forked, Path]:
        """Start a run, each setting of which is one of those given."""
        for key, values in settings.items():
            options += ("--set", f"{key.replace('__', '.')}={self._chance.choice(values)}")
        return self._start("run", str(self._place.config_path), *options)

    def _start(self, *arguments: str) -> tuple[Forked, Path]:
        """Start a command; return it, and the file of what it says."""
        self._commands += 1
        log = self._place.folder / f"{self._commands}.stderr"
        print(*arguments)
        nothing = subprocess.DEVNULL
        with open(log, "wb") as stderr:
            command = self._place.command(*arguments)
            return Forked(command, stdin=nothing, stdout=nothing, stderr=stderr), log

    def _ended(self, process: Forked, log: Path, timeout_s: float = 120) -> tuple[int, str]:
        """Wait; return the exit code, and what was said, without a traceback."""
        code = process.wait(timeout_s)
        words = log.read_text(errors="replace")
        assert code in ALLOWED, words
        assert "Traceback" not in words, words
        return code, words

    def _events(self) -> list[dict[str, Any]]:
        return events_in(self._place.hidden / "events.jsonl")

    # --- what has to be there

    def _check(self) -> None:
        for name, texts in self._texts.items():
            bad = [row for row, text in enumerate(texts) if is_bad(text)]
            self._place.has(texts, bad, name)
            listed = events_in(self._place.workdir / f"{name}.quarantined.jsonl")
            assert [each["row"] for each in listed] == bad
        self._place.does("verify")


class Crossing(Job):
    """One crossing."""

    def __init__(self, folder: Path, seed: int) -> None:
        chance = random.Random(seed)
        share = chance.choice([0, 0.03, 0.1, 0.2])
        super().__init__(folder, chance, ["one", "two"] if chance.random() >= 0.5 else ["one"])
        self._bad_share = share

    def play(self) -> None:
        """Run it until it has ended well, one generation after the other."""
        chance = self._chance
        recovery = {"max_bad_rows": 1000, "attempts": chance.randint(2, 3)}
        self._configure("deadly:make", [7, 10, 16, 30, 1000], recovery=recovery)
        endings = chance.randint(0, 4)
        for later in reversed(range(chance.randint(1, 2))):
            now = chance.randint(0, endings) if later else endings
            endings -= now
            self._change_sources()
            for _ in range(now):
                self._cross(Ending(chance.choice(ENDINGS), int(chance.expovariate(1 / 20))))
            if not later or chance.random() < 0.6:
                self._cross(None)
                self._check()

    def _cross(self, ending: Ending | None) -> None:
        before = {event["run"] for event in self._events()}
        process, log = self._run(
            "--update",
            workers__per_device=[1, 2, 3],
            workers__standby=[0, 1, 2],
            workers__start=["fresh", "warm", "auto"],
            encode__batch_size=[1, 2, 3, 8, 16],
        )
        if ending:
            self._end(process, ending, before)
        code, words = self._ended(process, log)
        bad = any(bad_share(texts) for texts in self._texts.values())
        is_interrupted = ending and ending.signals and code in INTERRUPTED
        assert is_interrupted or code == (3 if bad else 0), words
        wait_for(lambda: not bearing(os.environ[MARK]))

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


def is_bad(text: str) -> bool:
    """Whether it gets no vector."""
    return text.startswith("do ") and not text.startswith("do fit")


def bad_share(texts: Collection[str]) -> float:
    """How many of them get no vector."""
    return sum(map(is_bad, texts)) / len(texts)


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and workers are forked, in a soak as well."""
    monkeypatch.setenv("CHUNKVISOR_TEST_FORKS", "yes")


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_crossing(tmp_path: Path, seed: int) -> None:
    """Every row has its vector, or is bad and named, and no process is left."""
    print(f"CROSSINGS_FIRST={seed} CROSSINGS=1 .venv/bin/pytest tests/soak/test_crossings.py")
    Crossing(tmp_path, seed).play()


# --- under fire

FIRE_S = 30
"""Of faults; the calm after them comes on top."""
RATE, POISON = 0.5, 0.012
"""Share of the attempts that misbehave; share of the texts that cannot be encoded in a run, others
in the next."""
LONGEST_CALM_S = 240
WORKER_SIGNALS = [
    *(KILL, KILL, TERM, TERM, INT, signal.SIGHUP, signal.SIGSEGV),
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGQUIT, signal.SIGUSR1, signal.SIGSTOP),
]
PARENT_SIGNALS = [*[[KILL]] * 4, [TERM], [INT], [TERM] * 2, [INT] * 3]


DAMAGES = (truncate, empty, flip, flip, swap, swap, stray, pipe, Path.unlink)


class JobUnderFire(Job):
    """One job under fire."""

    def __init__(self, folder: Path, seed: str) -> None:
        super().__init__(folder, random.Random(seed), ["one", "two"])
        self._seed = seed
        self._anew = list[str]()
        """Options, once the identity of an output is lost: then it has to begin anew."""
        times = {"stall_timeout": 2, "startup_timeout": 20, "wait_timeout": 5}
        recovery = {"max_bad_rows": 1_000_000, **times}
        self._configure("chaotic:make", [3, 5], recovery=recovery, model__kwargs={"plan": {}})
        for _ in range(8):
            self._change_sources()

    def play(self, deadline_s: float) -> None:
        """Run it under fire until it is complete or the time is over, then in peace."""
        done = False
        while time.monotonic() < deadline_s and not done:
            code = self._run_under_fire(deadline_s)
            self._follow(code)
            # what is complete is damaged, too
            done = code == 0 and self._chance.random() < 0.4
            for _ in range(self._chance.randrange(9) if not done else 0):
                self._damage()
        (self._place.folder / "chaos.json").unlink(missing_ok=True)
        self._calm()
        self._check()

    def _command(self, name: str) -> None:
        self._ended(*self._start(name, str(self._place.workdir)), LONGEST_CALM_S)

    def _run_under_fire(self, deadline_s: float) -> int:
        chaos = {"seed": self._seed, "run": self._commands, "rate": RATE, "poison": POISON}
        (self._place.folder / "chaos.json").write_text(json.dumps(chaos))
        process, log = self._run(
            *self._anew,
            workers__per_device=[1, 2],
            workers__standby=[1, 2],
            encode__batch_size=[1, 2, 3, 32],
            recovery__attempts=[2, 3, 5],
            chunk__keep=["true", "false"],
        )
        end_s = min(time.monotonic() + self._chance.uniform(3, 18), deadline_s)
        while process.poll() is None and time.monotonic() < end_s:
            time.sleep(self._chance.uniform(0.1, 0.9))
            self._disturb(process.pid)
        for number in self._chance.choice(PARENT_SIGNALS):
            if process.poll() is None:
                process.send_signal(number)
                time.sleep(self._chance.uniform(0, 0.5))
        return self._ended(process, log)[0]

    def _disturb(self, parent: int) -> None:
        """Hurt a worker, let the parent open no more files or stop it for a moment, or call another
        command.
        """
        dice = self._chance.random()
        with contextlib.suppress(psutil.Error, OSError):  # it has ended
            if dice < 0.85:
                others = [each for each in bearing(os.environ[MARK]) if each.pid != parent]
                if others:
                    self._chance.choice(others).send_signal(self._chance.choice(WORKER_SIGNALS))
            elif dice < 0.92:
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
            self._command(self._chance.choice(["status", "verify", "retry", "clean"]))

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
            self._chance.choice(DAMAGES)(path)

    def _follow(self, code: int) -> None:
        """Do what a person does after a run that ended so."""
        self._anew = ["--from-scratch", "--yes"] if code == 78 else []
        if code == 3:
            self._command("retry")

    def _calm(self) -> None:
        """Everything is mended: run until it is complete."""
        deadline_s = time.monotonic() + LONGEST_CALM_S
        code = -1
        while code:
            code, words = self._ended(*self._run(*self._anew), LONGEST_CALM_S)
            assert time.monotonic() < deadline_s, words
            self._follow(code)


@pytest.mark.soak(only=True)
def test_under_fire(tmp_path: Path, chance: random.Random) -> None:
    """Random faults lose no row, leave no process and show no traceback."""
    seed = chance.randrange(1 << 32)
    deadline_s = time.monotonic() + FIRE_S
    number = 0
    while time.monotonic() < deadline_s:
        JobUnderFire(tmp_path / str(number), f"{seed} {number}").play(deadline_s)
        number += 1
    wait_for(lambda: not bearing(os.environ[MARK]), 10)
