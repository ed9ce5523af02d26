"""The examples for runs that nobody watches: what they say agrees with the program, and they do
what they say.
"""

import configparser
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chunkvisor.errors import ExitCode
from harness import ROOT, Process, finish, wait_for, write_program

EXAMPLES = ROOT / "examples" / "unattended"
UNIT, JOB, LOOP = (
    EXAMPLES / name for name in ("chunkvisor@.service", "chunkvisor.sbatch", "until-done.sh")
)


class Service:
    """A folder in which the scripts run, with a pretended run and a pretended scontrol."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._env = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "4711",
        }
        run = shlex.join([sys.executable, "-S", str(ROOT / "tests" / "drivers" / "pretend_run.py")])
        for name, line in {
            "chunkvisor": f'exec {run} "$@"',
            "scontrol": 'echo "$@" >> scontrol',
        }.items():
            write_program(folder / "bin" / name, f"#!/bin/sh\n{line}\n")

    def start(self, script: Path, *options: str, **env: str) -> Process:
        """Start a script on the config `a b.yaml`."""
        return subprocess.Popen(
            ["bash", str(script), "a b.yaml", *options],
            cwd=self.folder,
            env=self._env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines(self, name: str) -> list[str]:
        """What has been noted in one of the files."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """A place to run the scripts in; skips where there is no bash, which they are written for."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    return Service(tmp_path)


def codes_of(restart: str) -> set[int]:
    """The exit codes for which docs/reference/exit-codes.md gives this answer to "restart it?"."""
    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    return {
        int(code)
        for code, answer in re.findall(r"^\| (\d+) \| .* \| (.*) \|$", text, re.M)
        if answer == restart
    }


def test_unit_restarts_what_is_worth_it() -> None:
    """The codes in the unit are the program's, and those that exit-codes.md has a restart for, or
    not.
    """
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    service = parser["Service"]
    stopped = {ExitCode.INTERRUPTED, ExitCode.TERMINATED}

    assert service["Restart"] == "on-failure"
    assert set(map(int, service["RestartPreventExitStatus"].split())) == codes_of("no") | codes_of(
        "after a repair"
    )
    assert set(map(int, service["RestartForceExitStatus"].split())) == stopped
    assert set(map(int, service["SuccessExitStatus"].split())) == stopped
    assert codes_of("yes") == stopped | {ExitCode.TRY_AGAIN}
    assert codes_of("no") | codes_of("after a repair") | codes_of("yes") | {
        ExitCode.COMPLETE
    } == set(ExitCode)


def test_slurm_is_asked_for_a_signal_in_time() -> None:
    """The signal comes to the script and not to the run, and before its patience with the last
    chunks is over.
    """
    text = JOB.read_text()
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?", text, re.M))
    assert "requeue" in options
    assert options["open-mode"] == "append"
    target, signal_s = options["signal"].split("@")
    (drain_s,) = re.findall(r"DRAIN_S:-(\d+)", text)
    assert target == "B:USR1"
    assert int(drain_s) + 60 <= int(signal_s)


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"),
    [
        (ExitCode.COMPLETE, "0", False),
        (ExitCode.CONFIG, "0", False),
        (ExitCode.TRY_AGAIN, "19", True),
        (ExitCode.TRY_AGAIN, "20", False),
    ],
)
def test_slurm_job_goes_back_into_the_queue(
    service: Service, code: ExitCode, restarts: str, requeued: bool
) -> None:
    """A passing cause requeues the job, a number of times; the job ends with the run's own code."""
    finish(service.start(JOB, CODES=str(int(code)), SLURM_RESTART_COUNT=restarts), code=code)
    assert service.lines("calls") == ["run a b.yaml"]
    assert service.lines("scontrol") == (["requeue 4711"] if requeued else [])


@pytest.mark.parametrize(
    ("code", "terms", "drain_s", "requeued"),
    [
        (ExitCode.TERMINATED, 1, "1000", True),
        (ExitCode.TERMINATED, 2, "0", True),  # the chunks under way take too long
        (ExitCode.COMPLETE, 1, "1000", False),  # they were the last ones
    ],
)
def test_slurm_time_limit(
    service: Service, code: ExitCode, terms: int, drain_s: str, requeued: bool
) -> None:
    """When the time is nearly up the run is drained, then stopped, and what is left goes back into
    the queue.
    """
    process = service.start(JOB, CODES=str(int(code)), TERMS=str(terms), DRAIN_S=drain_s)
    wait_for(lambda: service.lines("calls"))
    process.send_signal(signal.SIGUSR1)
    finish(process, code=code)
    assert len(service.lines("terms")) == terms
    assert service.lines("scontrol") == (["requeue 4711"] if requeued else [])


@pytest.mark.parametrize(
    ("codes", "tries", "code", "calls"),
    [
        ("75 75 0", "20", 0, 3),
        ("137 0", "20", 0, 2),
        ("75", "2", 75, 2),
        ("78", "20", 78, 1),
        ("75 3", "20", 3, 2),
    ],
)
def test_loop_tries_again_after_a_passing_cause(
    service: Service, codes: str, tries: str, code: int, calls: int
) -> None:
    """After 75, or a kill of the run itself, it is run again, so many times; the end is that of the
    last run.
    """
    finish(service.start(LOOP, CODES=codes, MOST_TRIES=tries, PAUSE_S="0"), code=code)
    assert service.lines("calls") == ["run a b.yaml"] * calls


@pytest.mark.parametrize(("script", "part"), [(JOB, "{}/8"), (LOOP, "3/8")])
def test_options_reach_the_run(service: Service, script: Path, part: str) -> None:
    """What follows the config is given to `chunkvisor run`, with the number of a Slurm task for {}."""
    task = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}
    finish(service.start(script, "--part", part, CODES="0", **task), code=0)
    assert service.lines("calls") == ["run a b.yaml --part 3/8"]


def test_loop_hands_sigterm_on(service: Service) -> None:
    """SIGTERM drains the run under way, and no other is begun; a closed terminal stops nothing."""
    process = service.start(LOOP, CODES="75", TERMS="1", PAUSE_S="0")
    wait_for(lambda: service.lines("calls"))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    finish(process, code=75)
    assert service.lines("calls") == ["run a b.yaml"]
    assert service.lines("terms") == ["SIGTERM"]
