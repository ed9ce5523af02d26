"""One worker on some texts, outside of any run: for the doctor, for audit and for tune."""

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.child import run_child
from chunkvisor.decide.outcome import EndedBy, Evidence, judge
from chunkvisor.decide.verdict import ONE_ROW, Verdict
from chunkvisor.decide.watch import Patience, Pulse
from chunkvisor.devices.gpu import CPU, Device
from chunkvisor.devices.hostmemory import KillCount
from chunkvisor.engine.environment import worker_environment
from chunkvisor.engine.fresh import worker_command
from chunkvisor.store.attempt import Job, Place, gather, write_attempt
from chunkvisor.store.attemptlogs import last_line
from chunkvisor_worker.contract.arithmetic import LinearKernel
from chunkvisor_worker.contract.beatfile import read_beat
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import EncodeSpec, Go, Limits, ModelSpec
from chunkvisor_worker.contract.wire import to_json

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under which the texts are encoded."""

    device: str
    """"cpu" or "cuda"."""
    environment: Mapping[str, str]
    """As `environment_of` makes it."""
    import_path: tuple[str, ...] = ()
    """Where the module of a plug-in encoder is looked for."""
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True, slots=True)
class Trial:
    """How the worker ended."""

    verdict: Verdict
    vectors: npt.NDArray[np.float32] | None
    """Of shape (texts, dimension); None where it failed."""
    log_line: str
    """The last of its log."""
    phase_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that it spent in each phase."""
    dtype: str = ""
    """Of the weights as loaded."""
    linear: LinearKernel | None = None
    """What computed the linear layers."""
    notes: tuple[str, ...] = ()
    """What the libraries warned of while they loaded the model."""


def try_texts(
    texts: Sequence[str],
    model: ModelSpec,
    encode: EncodeSpec,
    conditions: Conditions,
    folder: Path,
    on_wait: Callable[[], None] = lambda: None,
    limits: Limits = ONE_ROW,
) -> Trial:
    """Run the worker in the existing empty folder; without `limits`, each text is a batch of its own.

    Raises OSError, and what `on_wait` raises.
    """
    files = AttemptFiles(folder)
    job = Job("trial", "trial", "trial", model, encode, conditions.import_path)
    spec = write_attempt(files, job, Place(0, 1, 0, conditions.device), texts, limits)
    command, kills, ended_why, returncode = worker_command(files), KillCount(), "", None
    pulse = Pulse.begin(time.monotonic())

    def look() -> None:
        nonlocal pulse
        on_wait()
        now_s = time.monotonic()
        pulse = pulse.seen(read_beat(files.beat), now_s)
        if why := pulse.overdue(now_s, conditions.patience, at_gate=False):
            raise TimeoutError(why)

    ours, theirs = socket.socketpair()  # the worker ends when this process does
    with ours, theirs:
        ours.sendall(to_json(Go(limits)))
        try:
            returncode = run_child(command, files.log, look, conditions.environment, stdin=theirs.fileno(), stack=True)
        except TimeoutError as error:
            ended_why = str(error)
    evidence = gather(
        files,
        spec,
        None,
        lambda index: not texts[index].strip(),
        returncode=returncode,
        ended_by=EndedBy.HANG if ended_why else EndedBy.ITSELF,
        ended_why=ended_why,
        oom_kills=kills.rise(),
        limits=limits,
    )
    return _trial_of(evidence, files)


def _trial_of(evidence: Evidence, files: AttemptFiles) -> Trial:
    """What it says. Raises OSError."""
    verdict = judge(evidence)
    vectors = np.load(files.vectors, allow_pickle=False) if verdict.outcome is Outcome.COMMITTED else None
    last = last_line(evidence.log_tail)
    if evidence.result is None:
        return Trial(verdict, vectors, last[:300])
    facts = evidence.result.facts
    notes = facts.loaded.notes if facts.loaded else ()
    return Trial(verdict, vectors, last[:300], evidence.result.phase_s, facts.dtype, facts.linear, notes)


def environment_of(
    base: Mapping[str, str], devices: Sequence[Device], extra: Mapping[str, str], *, workers: int = 1
) -> dict[str, str]:
    """What workers on the devices get.

    Without a device (no config, or one whose GPU is not there), the child sees the GPUs that this command sees.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    environment = worker_environment(base, CPU, secrets.token_hex(8), os.getpid(), extra, threads=threads)
    del environment[_VISIBLE]
    if devices:
        environment[_VISIBLE] = ",".join(device.uuid for device in devices)
    elif _VISIBLE in base:
        environment[_VISIBLE] = base[_VISIBLE]
    return environment
