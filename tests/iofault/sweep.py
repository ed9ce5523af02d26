"""Runs a scenario again and again, each time with one position failing, and says what was not as it
should be.

What should be: an exit code of docs/reference/exit-codes.md other than 1, no traceback, words where
it is not complete, and after an undisturbed second run the same bytes as if nothing had been.
"""

import gc
import hashlib
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from chunkvisor.cli import main as chunkvisor_main
from chunkvisor.errors import ExitCode
from quickruns import be_quick

from .forked import run_command
from .scenarios import RUN, Scenario, warm_up
from .shim import Position, Shim, Trial

_LONGEST_S = 120.0
"""A run that takes longer never ends."""

_ALLOWED = frozenset({ExitCode.MACHINE, ExitCode.DISK, ExitCode.TRY_AGAIN, ExitCode.CONFIG})

_NOT_OURS = re.compile(r"faults/|calls\.jsonl|config\.yaml")
"""What the scripted encoder does for itself."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a trial."""

    failed: int
    """Calls that were failed; none where the run did not come by this time."""
    first: tuple[int, str]
    """Exit code, negative for a signal, and what was printed."""
    second: tuple[int, str]
    problem: str
    """What is not as it should be; empty where all is."""


class Sweep:
    """A scenario in a folder of its own."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._scenario, self._folder = scenario, folder
        self._place, self._template = folder / "place", folder / "template"
        self._shim = Shim(folder / "shim")
        self._shim.role("supervisor")
        scenario.make(self._place)
        warm_up(folder / "warm-up")
        be_quick()
        gc.freeze()  # a collection in a fork would copy every page
        # Limits that are passed within moments: a disk that is full for good is waited for.
        config_path = self._place / "config.yaml"
        config = yaml.safe_load(config_path.read_text())
        config.setdefault("recovery", {}).update(
            wait_timeout=0.2, startup_timeout=3, stall_timeout=3
        )
        config_path.write_text(yaml.safe_dump(config))
        shutil.copytree(self._place, self._template, symlinks=True)
        self.positions = self._record()
        self._right = self._digests()
        assert len(self._right) >= len(scenario.finals), self._right

    def _record(self) -> list[Position]:
        """All calls of an undisturbed run; of the hundreds of writes of faulthandler's stacks, a
        few do for all.
        """
        # the lock is another file then: what was forked while the folder was made may hold it
        self._restore()
        self._shim.record(self._place)
        code, words = self._run(self._scenario.command)
        self._shim.off()
        if self._scenario.command[0] != "run":
            assert code == 0, words
            code, words = self._run(RUN)
        assert code == self._scenario.code, words
        found = {each for each in self._shim.calls() if not _NOT_OURS.match(each.path)}
        return sorted(each for each in found if not each.path.endswith(".log") or each.time <= 3)

    def _restore(self) -> None:
        shutil.rmtree(self._place)
        shutil.copytree(self._template, self._place, symlinks=True)

    def play(self, trial: Trial) -> Found:
        """Run disturbed, and once more undisturbed."""
        self._restore()
        self._shim.fail(self._place, trial)
        first = self._run(self._scenario.command)
        failed, digests = self._shim.off(), self._digests()
        if first[0] and self._scenario.command[0] != "run":
            self._run(self._scenario.command)
        second = self._run(RUN)
        return Found(failed, first, second, self._problem(trial, first, digests, second))

    def _problem(
        self, trial: Trial, first: tuple[int, str], digests: dict[str, str], second: tuple[int, str]
    ) -> str:
        """Empty where all is as it should be."""
        is_run = self._scenario.command[0] == "run"
        complete = self._scenario.code if is_run else 0
        for which, (code, words) in (("first", first), ("second", second)):
            if "Traceback" in words:
                return f"a traceback in the {which} run"
            if code not in (complete, self._scenario.code, *_ALLOWED):
                return f"exit code {code} of the {which} run"
            if code in _ALLOWED and not ("chunkvisor: " in words and "do:  " in words):
                return f"no words at the end of the {which} run"
        if first[0] == complete and is_run and digests != self._right:
            return "the first run says that it is complete, and its final files are others"
        if second[0] != self._scenario.code:
            return f"the second run, which nothing disturbed, ended with {second[0]}"
        if self._digests() != self._right:
            return "after the second run the final files are others"
        # What the disk cannot read is damaged, and set aside for whoever can mend it.
        ours = {".tmp", ".partial"} | ({".damaged"} if trial.error != "EIO" else set())
        left = [str(path) for path in self._place.rglob("*") if path.suffix in ours]
        return f"left behind: {', '.join(left)}" if left else ""

    def _digests(self) -> dict[str, str]:
        named = (self._place / "work" / name for name in self._scenario.finals)
        files = (
            path
            for name in named
            for path in ([name] if name.is_file() else sorted(name.glob("*.npy")))
        )
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def _run(self, command: tuple[str, ...]) -> tuple[int, str]:
        words = [
            word.format(config=self._place / "config.yaml", work=self._place / "work")
            for word in command
        ]

        def work() -> None:
            sys.argv = ["chunkvisor", *words]
            chunkvisor_main()

        return run_command(work, self._folder / "output", self._shim.role, _LONGEST_S)
