"""Encodes some texts with one worker, outside of any run: for doctor, audit, tune, model.expect."""

import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from chunkvisor.child import OnWait, python_command, run_child
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import RecoveryConfig
from chunkvisor.devices.gpu import Device
from chunkvisor.engine.process import count_oom_kills, worker_environment
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.judge import ONE_ROW, EndedBy, Evidence, Pulse, Verdict, judge
from chunkvisor.store.artifact import Vectors
from chunkvisor.store.attempt import AttemptFolder, last_line, write_attempt
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec, Spec
from chunkvisor_worker.contract.wire import read_beat, to_json


@frozen
class Trial:
    """How the worker ended, and its vectors."""

    verdict: Verdict
    vectors: Vectors | None  # of shape (texts, dimension); None if it failed
    log_line: str  # the last of its log
    phase_s: Mapping[str, float] = field(default_factory=dict)  # seconds spent in each phase
    dtype: str = ""  # of the weights as loaded

    def failure(self, what: str) -> Halt:
        """Return the Halt for a command that needed the vectors; `what` says what failed."""
        return Halt(
            ExitCode(self.verdict.exit_code or ExitCode.TRY_AGAIN),
            f"{what}: {self.verdict.outcome}",
            self.verdict.remedy or "Run `chunkvisor doctor` to check the machine and the model.",
            why=f"{self.verdict.reason}; the last line of the worker's log: "
            f"{self.log_line or 'nothing'}",
            see=self.verdict.see,
        )


def try_texts(
    texts: Sequence[str],
    model: ModelSpec,
    encode: EncodeSpec,
    device: Device,
    loaded: LoadedConfig | None,
    folder: Path,
    on_wait: OnWait = lambda: None,
    limits: Limits = ONE_ROW,
) -> Trial:
    """Encode the texts with one worker, whose attempt is in the existing empty folder.

    Each text is a batch by itself unless `limits` allow more.
    Raises OSError, and what `on_wait` raises.
    """
    files = AttemptFiles(folder)
    recovery = RecoveryConfig()
    env: Mapping[str, str] = {}
    path: tuple[str, ...] = ()
    if loaded:
        recovery = loaded.config.recovery
        env = loaded.config.env | loaded.config.secret_env
        path = (str(loaded.folder),)
    threads = len(os.sched_getaffinity(0))
    environment = worker_environment(os.environ, device, secrets.token_hex(8), env, threads=threads)
    draft = Spec(
        fingerprint="trial",
        output="trial",
        chunk=0,
        attempt=1,
        start=0,
        stop=0,
        texts_digest="",
        device=device.kind,
        model=model,
        encode=encode,
        import_path=path,
        limits=limits,
    )
    spec = write_attempt(files, draft, texts)
    kills_before = count_oom_kills()
    ended_why = ""
    returncode = None
    began_s = time.monotonic()
    pulse = Pulse(began_s, began_s)

    def check_beat() -> None:
        nonlocal pulse
        on_wait()
        now_s = time.monotonic()
        pulse = pulse.with_beat(read_beat(files.beat), now_s)
        why = pulse.overdue(now_s, recovery)
        if why:
            raise TimeoutError(why)

    ours, theirs = socket.socketpair()  # the worker ends when this process does
    with ours, theirs:
        ours.sendall(to_json(limits))
        command = python_command("chunkvisor_worker", folder)
        stdin = theirs.fileno()
        try:
            returncode = run_child(
                command, files.log, check_beat, environment, stdin=stdin, stack=True
            )
        except TimeoutError as error:
            ended_why = str(error)
    ended_by = EndedBy.HANG if ended_why else EndedBy.ITSELF
    kills = count_oom_kills() - kills_before
    end = Evidence(returncode, ended_by, ended_why, oom_kills=kills, limits=limits)
    attempt = AttemptFolder(files, spec, lambda: None, lambda index: not texts[index].strip())
    evidence = attempt.evidence_of_end(end)
    verdict = judge(evidence)
    result = evidence.result
    vectors = (
        np.load(files.vectors, allow_pickle=False) if verdict.outcome is Outcome.COMMITTED else None
    )
    trial = Trial(verdict, vectors, last_line(evidence.log_tail)[:300])
    if not result:
        return trial
    return replace(trial, phase_s=result.phase_s, dtype=result.facts.dtype)
