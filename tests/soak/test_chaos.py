"""Runs job after job while everything goes wrong at random, and proves that no row is lost or
wrong.

Workers and parents are killed, stopped and starved, the encoder misbehaves, and files of the
workdir are damaged between runs. When the time is over all that ends. The same command runs until
it says that it is complete; then every row has to be there and right, no process left, and no
traceback told. The seed decides all but the scheduling.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

from harness import MARK, Workplace, bearing, expected, wait_for

SECONDS = 30
"""Of faults; the calm after them comes on top."""
RATE, POISON = 0.5, 0.012
"""Share of the attempts that misbehave; share of the texts that cannot be encoded in a run, others
in the next."""
ROWS, DISTINCT, CHUNK = 420, 260, 5
ALLOWED = {0, 3, 69, 74, 75, 78, 130, 143, -signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM}
"""How a run may end; 1 would be a bug. A signal between the last word and the end of the
interpreter may end it, too, which a shell calls 130 and 143."""
LONGEST_CALM_S = 240
WORKER_SIGNALS = [
    *(
        signal.SIGKILL,
        signal.SIGKILL,
        signal.SIGTERM,
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGSEGV,
    ),
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGQUIT, signal.SIGUSR1, signal.SIGSTOP),
]


def flip(path: Path, chance: random.Random) -> None:
    """One bit is another."""
    data = bytearray(path.read_bytes() or b"\0")
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def swap(path: Path, chance: random.Random) -> None:
    """It has the name of a neighbor, and the neighbor its own."""
    other = chance.choice(sorted(each for each in path.parent.iterdir() if each.is_file()))
    between = path.with_name("between")
    for source, target in ((path, between), (other, path), (between, other)):
        if source.exists():
            source.rename(target)


def stray(path: Path, chance: random.Random) -> None:
    """Something unknown lies next to it: a file, a folder, or a link to itself."""
    kind = chance.choice(["stray.json", "000001", "lost+found", "loop"])
    target = path.with_name(kind)
    if not os.path.lexists(target):
        {"stray.json": target.touch, "loop": lambda: target.symlink_to("loop")}.get(
            kind, target.mkdir
        )()


def pipe(path: Path, _chance: random.Random) -> None:
    """A pipe stands in its place: whoever opens it to read waits for ever."""
    path.unlink()
    os.mkfifo(path)


DAMAGES: list[Callable[[Path, random.Random], object]] = [
    *(flip, flip, swap, stray, pipe),
    lambda path, chance: os.truncate(path, chance.randrange(path.stat().st_size or 1)),
    lambda path, chance: path.write_bytes(chance.randbytes(path.stat().st_size)),
    lambda path, _: path.unlink(),
    lambda path, _: path.rename(path.with_name(f"{path.stem}.moved{path.suffix}")),
]


class Job:
    """One job under fire."""

    def __init__(self, folder: Path, seed: int, number: int) -> None:
        self._chance, self._seed, self._run, self._anew = (
            random.Random(f"{seed} {number}"),
            seed,
            0,
            False,
        )
        self._place, self._safe = Workplace(folder), folder / "safe"
        self._safe.mkdir(parents=True)
        self._texts, outputs = {}, {}
        for name in ("first", "second"):
            words = [f"{name} text {place} of job {number}" for place in range(DISTINCT)]
            self._texts[name] = [*words, *self._chance.choices([*words, ""], k=ROWS - DISTINCT)]
            self._chance.shuffle(self._texts[name])
            lines = [json.dumps({"text": text}) + "\n" for text in self._texts[name]]
            (folder / f"{name}.jsonl").write_text("".join(lines))
            outputs[name] = {"source": f"{name}.jsonl", "column": "text"}
        recovery = {
            "max_bad_rows": 1_000_000,
            "stall_timeout": 2,
            "startup_timeout": 20,
            "wait_timeout": 5,
        }
        self._place.write_config(
            "chaotic:make",
            model__kwargs={"plan": {}},
            chunk__size=CHUNK,
            recovery=recovery,
            outputs=outputs,
        )

    def play(self, deadline_s: float) -> None:
        """Run it under fire until it is complete or the time is over, then in peace."""
        done = False
        while time.monotonic() < deadline_s and not done:
            code = self._run_under_fire(deadline_s)
            self._save_identities()
            if code == 3:
                self._command("retry", str(self._place.workdir))
            elif code == 78:
                self._heal()
            # else what is complete is damaged, too
            done = code == 0 and self._chance.random() < 0.4
            for _ in range(self._chance.randrange(9) if not done else 0):
                self._damage()
        (self._place.folder / "chaos.json").unlink(missing_ok=True)
        self._calm()
        for name, wanted in self._texts.items():
            np.testing.assert_array_equal(
                np.load(self._place.workdir / f"{name}.npy"), expected(wanted)
            )
            manifest = json.loads((self._place.workdir / f"{name}.json").read_text())
            assert (manifest["rows"], manifest["quarantined"]) == (ROWS, [])
        assert self._command("verify", str(self._place.workdir)) == 0

    def _start(self, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        self._run += 1
        log = self._place.folder / f"{self._run}.stderr"
        with open(log, "wb") as stderr:
            command = self._place.command(*arguments)
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
            ), log

    def _command(self, *arguments: str) -> int:
        process, log = self._start(*arguments)
        return self._ended(process, log, LONGEST_CALM_S)

    def _ended(self, process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> int:
        code = process.wait(timeout_s)
        words = log.read_text(errors="replace")
        assert code in ALLOWED, words
        assert "Traceback" not in words, words
        return code

    def _run_under_fire(self, deadline_s: float) -> int:
        chaos = {"seed": self._seed, "run": self._run, "rate": RATE, "poison": POISON}
        (self._place.folder / "chaos.json").write_text(json.dumps(chaos))
        settings = {
            "workers.per_device": self._chance.randint(1, 2),
            "workers.standby": self._chance.randint(1, 2),
            "encode.batch_size": self._chance.choice([1, 2, 3, 32]),
            "recovery.attempts": self._chance.choice([2, 3, 5]),
            "chunk.keep": self._chance.choice(["true", "false"]),
        }
        overrides = [
            word for key, value in settings.items() for word in ("--set", f"{key}={value}")
        ]
        if self._anew:
            overrides += ["--from-scratch", "--yes"]
            self._anew = False
        process, log = self._start("run", str(self._place.config_path), *overrides)
        end_s = min(time.monotonic() + self._chance.uniform(3, 18), deadline_s)
        while process.poll() is None and time.monotonic() < end_s:
            time.sleep(self._chance.uniform(0.1, 0.9))
            self._disturb(process.pid)
        for number in self._chance.choice(
            [
                *[[signal.SIGKILL]] * 4,
                [signal.SIGTERM],
                [signal.SIGINT],
                [signal.SIGTERM] * 2,
                [signal.SIGINT] * 3,
            ]
        ):
            if process.poll() is None:
                process.send_signal(number)
                time.sleep(self._chance.uniform(0, 0.5))
        return self._ended(process, log, 90)

    def _disturb(self, parent: int) -> None:
        """Hurt a worker, let the parent open no more files or stop it for a moment, or call another
        command.
        """
        dice = self._chance.random()
        with contextlib.suppress(psutil.Error, OSError):  # it has ended
            workers = [
                each
                for each in psutil.Process(parent).children()
                if "CHUNKVISOR_RUN_ID" in each.environ()
            ]
            if dice < 0.85 and workers:
                self._chance.choice(workers).send_signal(self._chance.choice(WORKER_SIGNALS))
            elif dice < 0.92 and workers:
                in_use = sum(1 for _ in Path(f"/proc/{parent}/fd").iterdir())
                soft, hard = resource.prlimit(parent, resource.RLIMIT_NOFILE)
                resource.prlimit(
                    parent, resource.RLIMIT_NOFILE, (in_use + self._chance.randrange(4), hard)
                )
                time.sleep(self._chance.uniform(0.1, 0.6))
                resource.prlimit(parent, resource.RLIMIT_NOFILE, (soft, hard))
            elif 0.92 <= dice < 0.96:
                os.kill(parent, signal.SIGSTOP)
                time.sleep(self._chance.uniform(0.2, 1.5))
                os.kill(parent, signal.SIGCONT)
        if dice >= 0.96:  # looks, or mistakes a live workdir for a finished one
            self._command(
                self._chance.choice(["status", "verify", "retry", "clean"]),
                str(self._place.workdir),
            )

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
            self._chance.choice(DAMAGES)(
                self._chance.choice(self._chance.choice(list(found.values()))), self._chance
            )

    def _save_identities(self) -> None:
        """Remember them; only the first is sure to be whole, and it never changes."""
        for path in self._place.hidden.glob("outputs/*/*/identity.json"):
            copy = self._safe / path.parent.parent.name
            if not copy.exists() and path.is_file() and path.stat().st_size:
                shutil.copy(path, copy)

    def _heal(self) -> None:
        """Bring lost identities back, which only a person can do, or have everything begun anew."""
        self._anew = self._chance.random() >= 0.7
        for copy in self._safe.iterdir():
            path = self._place.hidden / "outputs" / copy.name / "0001" / "identity.json"
            if self._anew:
                copy.unlink()
            elif path.parent.is_dir():
                path.unlink(missing_ok=True)
                shutil.copy(copy, path)

    def _calm(self) -> None:
        """Everything is mended: run until it is complete."""
        deadline_s, anew = time.monotonic() + LONGEST_CALM_S, list[str]()
        while (code := self._command("run", str(self._place.config_path), *anew)) != 0:
            assert time.monotonic() < deadline_s, (
                self._place.folder / f"{self._run}.stderr"
            ).read_text()
            if code == 3:
                self._command("retry", str(self._place.workdir))
            elif code == 78:
                anew = ["--from-scratch", "--yes"]


def test_chaos(tmp_path: Path, chance: random.Random) -> None:
    """Random faults lose no row, leave no process and show no traceback."""
    seed, deadline_s, number = chance.randrange(1 << 32), time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline_s:
        Job(tmp_path / str(number), seed, number).play(deadline_s)
        number += 1
    wait_for(lambda: not bearing(os.environ[MARK]), 10)
