"""A soak: runs job after job while everything goes wrong at random, and proves that no row is lost or wrong.

    python tests/soak/chaos/soak.py [--seconds 300] [--seed N]

Workers and supervisors are killed, stopped and starved, the encoder misbehaves, and files of the workdir are damaged
between runs. When the time is over all that ends; the same command runs until it says that it is complete, and then
every row has to be there and right, no process left, and no traceback told. The seed decides everything but the
scheduling. Exit code 0 only if all holds.
"""

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from damage import Vandal
from processes import MARK, Killer, none_left

from chunkvisor.events.event import ChunkCommitted, FailureEvent, PartCommitted
from chunkvisor.events.journal import read_events
from harness import Workplace, expected

RATE = 0.5
"""Share of the attempts that misbehave."""

POISON = 0.012
"""Share of the texts that cannot be encoded in a run; in the next it is others."""

ROWS, DISTINCT, CHUNK = 420, 260, 5
ALLOWED = {0, 3, 69, 74, 75, 78, 130, 143, -signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM}
"""How a run may end; 1 would be a bug. A signal between the last word and the end of the interpreter may end it, too,
which a shell calls 130 and 143."""

LONGEST_CALM_S = 240


class Unwell(Exception):
    """Something that must never happen has happened."""


class Soak:
    """One soak."""

    def __init__(self, seed: int, seconds: float, folder: Path) -> None:
        self._seed, self._folder = seed, folder
        self._chance = random.Random(seed)
        self._mark = secrets.token_hex(8)
        self._killer = Killer(self._mark, self._chance)
        self._started_s = time.monotonic()
        self._deadline_s = self._started_s + seconds
        self._told: set[str] = set()
        self._run = 0
        self._anew = False
        self.faults: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self.jobs = self.rows = self.chunks = self.restored = self.begun_anew = 0

    @property
    def _time_left(self) -> bool:
        return time.monotonic() < self._deadline_s

    def run(self) -> None:
        """Job after job until the time is over. Raises Unwell."""
        while self._time_left:
            self._job(self._folder / f"job{self.jobs}")
            self.jobs += 1
        if left := none_left(self._mark, 10):
            raise Unwell(f"processes left: {left}")

    def _job(self, folder: Path) -> None:
        texts = self._make(folder)
        place, vandal = Workplace(folder), Vandal(folder / "work", folder / "safe", self._chance)
        done = False
        while self._time_left and not done:
            code = self._run_under_fire(place)
            vandal.save_identities()
            if code == 3:
                self._command(place, "retry", str(place.workdir))
            elif code == 78:
                self._heal(vandal)
            done = code == 0 and self._chance.random() < 0.4  # else what is complete is damaged, too
            for _ in range(self._chance.randrange(9) if not done else 0):
                self._damage(vandal)
        self._calm(place)
        self._check(place, texts)
        shutil.rmtree(folder)

    def _make(self, folder: Path) -> dict[str, list[str]]:
        (folder / "safe").mkdir(parents=True)
        (folder / "stderr").mkdir()
        texts, outputs = {}, {}
        for name in ("first", "second"):
            words = [f"{name} text {number} of job {self.jobs}" for number in range(DISTINCT)]
            texts[name] = [*words, *self._chance.choices([*words, ""], k=ROWS - DISTINCT)]
            self._chance.shuffle(texts[name])
            lines = [json.dumps({"text": text}) + "\n" for text in texts[name]]
            (folder / f"{name}.jsonl").write_text("".join(lines))
            outputs[name] = {"source": f"{name}.jsonl", "column": "text"}
        recovery = {"max_bad_rows": 1_000_000, "stall_timeout": 2, "startup_timeout": 20, "wait_timeout": 5}
        Workplace(folder).write_config(
            "chaotic:make", model__kwargs={"plan": {}}, chunk__size=CHUNK, recovery=recovery, outputs=outputs
        )
        return texts

    def _start(self, place: Workplace, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        self._run += 1
        log = place.folder / "stderr" / str(self._run)
        with open(log, "wb") as stderr:
            process = subprocess.Popen(
                place.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", MARK: self._mark},
            )
        return process, log

    def _command(self, place: Workplace, *arguments: str, timeout_s: float = LONGEST_CALM_S) -> int:
        process, log = self._start(place, *arguments)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Unwell(f"{arguments[0]} did not end:\n{log.read_text()}") from None
        self._look_at_end(arguments[0], code, log)
        return code

    def _look_at_end(self, command: str, code: int, log: Path) -> None:
        words = log.read_text(errors="replace")
        if code not in ALLOWED or "Traceback" in words:
            raise Unwell(f"{command} ended with {code}:\n{words}")
        self.runs[f"{command}: {code}"] += 1

    def _run_under_fire(self, place: Workplace) -> int:
        chaos = {"seed": self._seed, "run": self._run, "rate": RATE, "poison": POISON}
        (place.folder / "chaos.json").write_text(json.dumps(chaos))
        settings = {
            "workers.per_device": self._chance.randint(1, 2),
            "workers.standby": self._chance.randint(1, 2),
            "encode.batch_size": self._chance.choice([1, 2, 3, 32]),
            "recovery.attempts": self._chance.choice([2, 3, 5]),
            "chunk.keep": self._chance.choice(["true", "false"]),
        }
        overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        if self._anew:
            overrides += ["--from-scratch", "--yes"]
            self._anew = False
        process, log = self._start(place, "run", str(place.config_path), *overrides)
        end_s = min(time.monotonic() + self._chance.uniform(3, 18), self._deadline_s)
        while process.poll() is None and time.monotonic() < end_s:
            time.sleep(self._chance.uniform(0.1, 0.9))
            self._disturb(process.pid, place)
        self._end(process)
        self._count(place)
        self._look_at_end("run", process.returncode, log)
        return process.returncode

    def _disturb(self, supervisor: int, place: Workplace) -> None:
        dice = self._chance.random()
        if dice < 0.85:
            self._note("kill worker", self._killer.hurt_worker(supervisor))
        elif dice < 0.92:
            self._note("starve supervisor", self._killer.starve(supervisor))
        elif dice < 0.96:
            self._note("stop supervisor", self._killer.suspend(supervisor))
        else:  # somebody looks, or mistakes a live workdir for a finished one
            command = self._chance.choice(["status", "verify", "retry", "clean"])
            self._command(place, command, str(place.workdir))

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        signals = self._chance.choice(
            [*[[signal.SIGKILL]] * 4, [signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM] * 2, [signal.SIGINT] * 3]
        )
        for number in signals:
            if process.poll() is None:
                self._note("kill supervisor", number.name)
                process.send_signal(number)
                time.sleep(self._chance.uniform(0, 0.5))
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Unwell(f"the supervisor does not heed {signals}") from None

    def _damage(self, vandal: Vandal) -> None:
        # Whoever outlives its supervisor is found by the run id in the lock file: damage that only where nobody does.
        spare = frozenset({"lock"}) if none_left(self._mark, 0) else frozenset[str]()
        kind, _, _ = (vandal.damage(spare)).partition(" ")
        self._note("damage", kind)

    def _heal(self, vandal: Vandal) -> None:
        """A lost identity is a person's matter: it is brought back, or everything begun anew."""
        if self._chance.random() < 0.7:
            vandal.restore_identities()
            self.restored += 1
        else:
            vandal.forget_identities()
            self.begun_anew += 1
            self._anew = True

    def _calm(self, place: Workplace) -> None:
        """Everything is mended: run until it is complete."""
        (place.folder / "chaos.json").unlink(missing_ok=True)
        deadline_s = time.monotonic() + LONGEST_CALM_S
        anew: list[str] = []
        while time.monotonic() < deadline_s:
            code = self._command(place, "run", str(place.config_path), *anew)
            self._count(place)
            if code == 0:
                return
            if code == 3:
                self._command(place, "retry", str(place.workdir))
            elif code == 78 and not anew:
                anew = ["--from-scratch", "--yes"]
                self.begun_anew += 1
        words = (place.folder / "stderr" / str(self._run)).read_text(errors="replace")
        raise Unwell(f"it does not become complete; the last words:\n{words}")

    def _check(self, place: Workplace, texts: dict[str, list[str]]) -> None:
        for name, wanted in texts.items():
            vectors = np.load(place.workdir / f"{name}.npy", allow_pickle=False)
            if not np.array_equal(vectors, expected(wanted)):
                wrong = np.flatnonzero((vectors != expected(wanted)).any(axis=1)) if len(vectors) == ROWS else "all"
                raise Unwell(f"{name}: wrong rows: {wrong}")
            manifest = json.loads((place.workdir / f"{name}.json").read_text())
            if (manifest["rows"], manifest["quarantined"]) != (ROWS, []):
                raise Unwell(f"{name}: the manifest says {manifest}")
            self.rows += ROWS
            self.chunks += -(-len(set(wanted)) // CHUNK)
        if self._command(place, "verify", str(place.workdir)):
            raise Unwell("verify finds fault with what is complete")

    def _note(self, group: str, kind: str) -> None:
        if kind:
            self.faults[f"{group}: {kind}"] += 1

    def _count(self, place: Workplace) -> None:
        """Take the story of the newest run before anything damages it."""
        entries = [entry for entry in read_events(place.hidden / "events.jsonl") if entry.run not in self._told]
        for entry in entries:
            match entry.event:
                case FailureEvent() as event:
                    self.attempts[event.outcome] += 1
                case PartCommitted():
                    self.attempts["committed"] += 1
                case ChunkCommitted(attempt_ok=True):
                    self.attempts["committed"] += 1
        self._told |= {entry.run for entry in entries}
        injected = place.folder / "injected"
        if injected.exists():
            self.faults.update(f"encoder: {line}" for line in injected.read_text().splitlines())
            injected.unlink()

    def table(self) -> str:
        """What was done to the program, and what became of it."""
        groups: Counter[str] = Counter()
        for name, count in self.faults.items():
            groups[name.partition(":")[0]] += count
        lines = [
            f"seed {self._seed}, {time.monotonic() - self._started_s:.0f} s, {self.jobs} jobs, "
            f"{self.chunks:,} chunks, {self.rows:,} rows",
            f"faults injected: {self.faults.total():,}",
        ]
        for group, count in groups.most_common():
            kinds = Counter({name: n for name, n in self.faults.items() if name.partition(":")[0] == group})
            lines.append(f"  {group}: {count:,}")
            lines += [f"    {name.partition(': ')[2]:24} {n:6,}" for name, n in kinds.most_common()]
        for title, counts in {"attempts": self.attempts, "commands, by exit code": self.runs}.items():
            lines.append(f"{title}: {counts.total():,}")
            lines += [f"    {name:24} {count:6,}" for name, count in sorted(counts.items())]
        lines.append(f"identities lost: {self.restored} brought back, {self.begun_anew} jobs begun anew for it")
        return "\n".join(lines)


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300, help="of faults; the calm after them comes on top")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 32)
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="chunkvisor-chaos-"))
    soak = Soak(seed, arguments.seconds, folder)
    try:
        soak.run()
    except Unwell as problem:
        print(f"{soak.table()}\nFAILED, seed {seed}; everything is in {folder}\n{problem}")
        return 1
    shutil.rmtree(folder)
    print(f"{soak.table()}\n0 rows lost or wrong, 0 processes left, 0 tracebacks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
