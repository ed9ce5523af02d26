"""Runs a scenario again and again, each time with one position failing, and says what was not as it should be.

What should be: an exit code of docs/reference/exit-codes.md other than 1, no traceback, words where it is not
complete, and after an undisturbed second run the same bytes as if nothing had been.
"""

import errno
import gc
import hashlib
import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from unittest import mock

import yaml

from chunkvisor.cli import main as chunkvisor_main
from chunkvisor.errors import ExitCode
from quickruns import be_quick

from .forked import fork_children, make_zygote
from .scenarios import RUN, Scenario, warm_up
from .shim import CAN_FAIL_WITH, Position, Seen, Shim, Trial

_LONGEST_S = 120.0
"""A run that takes longer never ends."""

_ALLOWED = frozenset({ExitCode.MACHINE, ExitCode.DISK, ExitCode.TRY_AGAIN, ExitCode.CONFIG})


_NOT_OURS = re.compile(r"faults/|calls\.jsonl|config\.yaml")
"""What the scripted encoder does for itself."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    code: int
    """Negative for a signal; that of SIGABRT also where it did not end."""
    words: str
    """Of both streams."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a trial."""

    trial: Trial
    failed: int
    """Calls that were failed; none where the run did not come by this time."""
    first: Ended
    second: Ended
    problem: str
    """What is not as it should be; empty where all is."""
    took_s: float
    """0 where it was not played: a failure for good that met one call only is the same as one."""


class Sweep:
    """A scenario in a folder of its own."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._scenario = scenario
        self._folder = folder
        self._place, self._template = folder / "place", folder / "template"
        self._shim = Shim(folder / "shim")
        self._shim.role("supervisor")
        fork_children(self._shim.role)
        scenario.make(self._place)
        warm_up(folder / "warm-up")
        be_quick()
        _compile_once(self._place / "scripted.py")
        gc.freeze()  # a collection in a fork would copy every page
        _be_impatient(self._place / "config.yaml")
        shutil.copytree(self._place, self._template, symlinks=True)
        self._right: dict[str, str] = {}

    def calls(self) -> list[Seen]:
        """All of an undisturbed run."""
        self._restore()
        self._shim.record(self._place)
        ended = self._run(self._scenario.command)
        self._shim.off()
        if self._scenario.command[0] != "run":
            assert ended.code == 0, ended
            ended = self._run(RUN)
        assert ended.code == self._scenario.code, ended
        self._right = self._digests()
        assert len(self._right) >= len(self._scenario.finals), self._right
        return [seen for seen in self._shim.calls() if _counts(seen.position)]

    def trials(self) -> list[Trial]:
        """Every position with each error that it can return, for good and once."""
        return [
            Trial(position, error, for_good)
            for position in sorted({seen.position for seen in self.calls()})
            for error in CAN_FAIL_WITH[position.kind]
            for for_good in (True, False)
        ]

    def play(self, trials: Sequence[Trial]) -> Iterator[Found]:
        """One after the other."""
        if not self._right:
            self.calls()
        alone: dict[tuple[Position, int], Found] = {}
        for trial in trials:
            which = trial.position, trial.error
            if not trial.for_good and which in alone:
                yield replace(alone[which], trial=trial, took_s=0)
                continue
            found = self._play(trial)
            if trial.for_good and found.failed == 1:
                alone[which] = found
            yield found

    def _play(self, trial: Trial) -> Found:
        self._restore()
        began_s = time.monotonic()
        self._shim.fail(self._place, trial.position, trial.error, for_good=trial.for_good)
        first = self._run(self._scenario.command)
        failed = self._shim.failed
        self._shim.off()
        digests = self._digests()
        if first.code and self._scenario.command[0] != "run":
            self._run(self._scenario.command)
        second = self._run(RUN)
        problem = self._problem(trial, first, digests, second)
        return Found(trial, failed, first, second, problem, time.monotonic() - began_s)

    def _problem(self, trial: Trial, first: Ended, digests: dict[str, str], second: Ended) -> str:
        """Empty where all is as it should be."""
        complete = self._scenario.code if self._scenario.command[0] == "run" else 0
        for which, ended in (("first", first), ("second", second)):
            if "Traceback" in ended.words:
                return f"a traceback in the {which} run"
            if ended.code not in (complete, self._scenario.code, *_ALLOWED):
                return f"exit code {ended.code} of the {which} run"
            if ended.code in _ALLOWED and not ("chunkvisor: " in ended.words and "do:  " in ended.words):
                return f"no words at the end of the {which} run"
        if first.code == complete and self._scenario.command[0] == "run" and digests != self._right:
            return "the first run says that it is complete, and its final files are others"
        if second.code != self._scenario.code:
            return f"the second run, which nothing disturbed, ended with {second.code}"
        if self._digests() != self._right:
            return "after the second run the final files are others"
        # What the disk cannot read is damaged, and set aside for whoever can mend it.
        ours = {".tmp", ".partial"} | ({".damaged"} if trial.error != errno.EIO else set())
        left = [str(path) for path in self._place.rglob("*") if path.suffix in ours]
        return f"left behind: {', '.join(left)}" if left else ""

    def _restore(self) -> None:
        shutil.rmtree(self._place)
        shutil.copytree(self._template, self._place, symlinks=True)

    def _digests(self) -> dict[str, str]:
        named = (self._place / "work" / name for name in self._scenario.finals)
        files = (path for name in named for path in ([name] if name.is_file() else sorted(name.glob("*.npy"))))
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def _run(self, command: tuple[str, ...]) -> Ended:
        words = [word.format(config=self._place / "config.yaml", work=self._place / "work") for word in command]
        output = self._folder / "output"
        pid = os.fork()
        if not pid:
            _be_command(words, output, self._shim.role)
        pidfd, poll = os.pidfd_open(pid), select.poll()
        poll.register(pidfd, select.POLLIN)
        in_time = poll.poll(_LONGEST_S * 1000)
        os.close(pidfd)
        if not in_time:
            os.kill(pid, signal.SIGABRT)  # faulthandler prints where it stands
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return Ended(code, ("" if in_time else "no end in sight\n") + output.read_text(errors="replace"))


def _counts(position: Position) -> bool:
    """Whether it is ours. Of the hundreds of writes with which faulthandler prints a stack, a few do for all."""
    return not _NOT_OURS.match(position.path) and not (position.path.endswith(".log") and position.time > 3)


def _be_command(words: list[str], output: Path, begun: Callable[[str], None]) -> None:
    code = 1
    try:
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(log, 2)
        os.dup2(log, 1)
        make_zygote(begun)
        sys.argv = ["chunkvisor", *words]
        chunkvisor_main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _compile_once(source: Path) -> None:
    """Have forks of this process, which read it to import it, find it compiled."""
    loader = SourceFileLoader(source.stem, str(source))
    compiled, compile_any = source.read_bytes(), SourceFileLoader.source_to_code
    code = compile_any(loader, compiled, str(source))

    def source_to_code(self: SourceFileLoader, data: bytes, path: str) -> CodeType:
        is_known = path == str(source) and data == compiled
        return code if is_known else compile_any(self, data, path)

    mock.patch.object(SourceFileLoader, "source_to_code", source_to_code).start()


def _be_impatient(config_path: Path) -> None:
    """Have limits that are passed within moments: a disk that is full for good is waited for."""
    config = yaml.safe_load(config_path.read_text())
    config.setdefault("recovery", {}).update(wait_timeout=0.2, startup_timeout=3, stall_timeout=3)
    config_path.write_text(yaml.safe_dump(config))
