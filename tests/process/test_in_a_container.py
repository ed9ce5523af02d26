"""What a container does with a run: process 1 of a namespace of its own, a volume, SIGTERM, and
another container.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

import psutil
import pytest
import yaml

from forking import COMMAND_LINE
from harness import ROOT, Process, Workplace, finish, kill, local_engine_only, wait_for

EXAMPLES = ROOT / "examples" / "containers"
(ENTRYPOINT,) = [
    json.loads(line)
    for line in re.findall(r"^ENTRYPOINT (.+)$", (EXAMPLES / "Dockerfile").read_text(), re.M)
]
_, JOB = yaml.safe_load_all((EXAMPLES / "job.yaml").read_text())
POD = JOB["spec"]["template"]["spec"]
# Processes of a number and a /proc of their own, which end with the first of them, as in a
# container.
NAMESPACE = (
    "unshare",
    *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
INIT = ENTRYPOINT[:-1] if shutil.which(ENTRYPOINT[0]) else []
"""Process 1 of the image; where it is not installed, the command itself is."""
TEXTS = [f"text {number}" for number in range(12)]


def why_not() -> str:
    """Why there can be no namespace here; empty where there can."""
    try:
        return subprocess.run(
            [*NAMESPACE, "true"], capture_output=True, text=True, check=False
        ).stderr
    except OSError as error:
        return str(error)


pytestmark = [
    local_engine_only,
    pytest.mark.skipif(
        bool(why_not()), reason="unshare(1) may make no namespace of processes here"
    ),
]


@pytest.fixture
def start(workplace: Workplace) -> Iterator[Callable[[], Process]]:
    """Starts a container over a workplace whose second chunk waits: the image's entry point, the
    Job's arguments.
    """
    workplace.prepare(TEXTS, "waiting:make", model__kwargs={"chunk": 1}, chunk__size=4)
    (first, config) = POD["containers"][0]["args"]
    assert (ENTRYPOINT[-1], first, Path(config).parent) == ("chunkvisor", "run", Path("/config"))
    command = [*NAMESPACE, *INIT, *COMMAND_LINE, first, str(workplace.config_path)]
    started: list[Process] = []

    def one_more() -> Process:
        started.append(
            subprocess.Popen(command, stdout=PIPE, stderr=PIPE, stdin=DEVNULL, text=True)
        )
        return started[-1]

    yield one_more
    for process in started:
        kill(process)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.soak(only=True))]
)
def test_a_container_is_continued(
    workplace: Workplace, start: Callable[[], Process], number: signal.Signals
) -> None:
    """SIGTERM to process 1 ends it with 143 and saved work, SIGKILL at once; the next one does what
    is left.
    """
    container = start()
    wait_for((workplace.folder / "waiting").exists)

    def committed() -> list[int]:
        return [event["chunk"] for event in workplace.named("chunk_committed")]

    wait_for(lambda: committed() == [0])
    (process,) = psutil.Process(container.pid).children()
    inside = [process, *process.children(recursive=True)]
    process.send_signal(number)
    if number is signal.SIGTERM:
        wait_for(lambda: workplace.named("draining"))
        workplace.release()
    ended = finish(container, POD["terminationGracePeriodSeconds"])
    assert (ended.returncode == 143) is (number is signal.SIGTERM), ended.stderr
    assert not any(each.is_running() for each in inside)

    workplace.release()
    ended = finish(start(), POD["terminationGracePeriodSeconds"], code=0)
    assert committed() == [0, 1, 2]
    workplace.has(TEXTS)
