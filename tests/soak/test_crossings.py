"""Plays whole small jobs in which everything comes at once that other tests try alone.

Two outputs that share texts and repeat them, bad texts of all kinds, several workers, standbys,
fresh and warm, chunks and batches of any size; the run is killed, stopped, robbed of a worker, and
its sources change. Whatever comes, the last run has to end well, with every vector that there can
be. The seed decides all but the scheduling.

`make test` plays six, the soak fifty; CROSSINGS=500 CROSSINGS_FIRST=7 plays the seeds from 7 to
506.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from forking import Forked
from harness import MARK, SOAK_SEED, Workplace, bearing, events_in, expected, wait_for

FIRST = int(os.environ.get("CROSSINGS_FIRST", SOAK_SEED or 1))
COUNT = int(os.environ.get("CROSSINGS", 50 if SOAK_SEED else 6))

BAD = (
    *("exit 3", "signal 11", "signal 9", "raise ValueError", "cuda 710", "raise IndexError"),
    "nan",
)
"""What `deadly` makes of a text that has no vector."""
MOST_BAD = 0.25
"""Share of the texts of an output: where more are bad, the model is to blame."""

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
ENDINGS = ((KILL,), (KILL,), (KILL,), (TERM,), (INT,), (TERM, TERM), (INT, INT), (), ())
"""What is sent to a run; nothing: one of its workers is killed."""
INTERRUPTED = {130, 143, -KILL, -TERM, -INT}
"""How a run may end that was sent a signal, unless that came too late."""


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
        self._runs = 0

    def play(self) -> None:
        """Run it until it has ended well, one generation after the other."""
        chance, outputs = self._chance, dict[str, Any]()
        for name in self._texts:
            chunk = {"size": chance.choice([7, 10, 16, 30, 1000])}
            outputs[name] = {"source": f"{name}.jsonl", "column": "text", "chunk": chunk}
        recovery = {"max_bad_rows": 1000, "attempts": chance.randint(2, 3)}
        self._place.write_config("deadly:make", outputs=outputs, recovery=recovery)
        endings = chance.randint(0, 4)
        for later in reversed(range(chance.randint(1, 2))):
            now = chance.randint(0, endings) if later else endings
            endings -= now
            self._change_sources()
            for _ in range(now):
                self._run(Ending(chance.choice(ENDINGS), int(chance.expovariate(1 / 20))))
            if not later or chance.random() < 0.6:
                self._run(None)
                self._check()

    # --- sources

    def _change_sources(self) -> None:
        before, fair = self._texts, False
        while not fair:
            self._texts = {name: self._changed(texts) for name, texts in before.items()}
            fair = all(bad_share(set(texts)) <= MOST_BAD for texts in self._texts.values())
        for name, texts in self._texts.items():
            lines = [json.dumps({"text": text}) + "\n" for text in texts]
            (self._place.folder / f"{name}.jsonl").write_text("".join(lines))

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

    # --- runs

    def _run(self, ending: Ending | None) -> None:
        settings = {
            "workers.per_device": self._chance.randint(1, 3),
            "workers.standby": self._chance.randint(0, 2),
            "workers.start": self._chance.choice(["fresh", "warm", "auto"]),
            "encode.batch_size": self._chance.choice([1, 2, 3, 8, 16]),
        }
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = self._place.command("run", str(self._place.config_path), "--update", *options)
        before, nothing = {event["run"] for event in self._events()}, subprocess.DEVNULL
        log = self._place.folder / f"{self._runs}.stderr"
        with open(log, "wb") as stderr:
            process = Forked(command, stdin=nothing, stdout=nothing, stderr=stderr)
        if ending is not None:
            self._end(process, ending, before)
        code, words = process.wait(120), log.read_text(errors="replace")
        print(f"run {self._runs}: {ending}, {' '.join(options)}: {code}")
        self._runs += 1
        assert "Traceback" not in words, words
        bad = any(bad_share(texts) for texts in self._texts.values())
        is_interrupted = ending is not None and ending.signals and code in INTERRUPTED
        assert is_interrupted or code == (3 if bad else 0), words
        wait_for(lambda: not bearing(os.environ[MARK]))

    def _end(self, process: subprocess.Popen[Any], ending: Ending, before: set[str]) -> None:
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

    def _events(self) -> list[dict[str, Any]]:
        return events_in(self._place.hidden / "events.jsonl")

    # --- what has to be there

    def _check(self) -> None:
        for name, texts in self._texts.items():
            bad = [row for row, text in enumerate(texts) if is_bad(text)]
            right = expected(texts)
            right[bad] = np.nan
            np.testing.assert_array_equal(np.load(self._place.workdir / f"{name}.npy"), right)
            manifest = json.loads((self._place.workdir / f"{name}.json").read_text())
            listed = events_in(self._place.workdir / f"{name}.quarantined.jsonl")
            for named in (manifest["quarantined"], listed):
                assert [each["row"] for each in named] == bad
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
    print(f"CROSSINGS_FIRST={seed} CROSSINGS=1 .venv/bin/pytest tests/soak/test_crossings.py")
    monkeypatch.setenv("CHUNKVISOR_TEST_FORKS", "yes")
    Crossing(tmp_path, seed).play()
