"""How workers fail, as the real judge sees it: a few faults of each kind, judged once and then only given figures."""

import functools
from dataclasses import replace
from enum import Enum

from chunkvisor.config.choices import OnBadRow
from chunkvisor.config.model import Config, RecoveryConfig, WorkersConfig
from chunkvisor.heart.policy import History, Split, decide
from chunkvisor.judge import NODE_LOST, EndedBy, Evidence, Verdict, judge
from chunkvisor_worker.contract.messages import Beat, Cause, Facts, Fault, Limits, Phase, Result


class Failure(Enum):
    """What can become of a worker."""

    NONE = "none"
    SEGFAULT = "segfault"
    ILLEGAL = "illegal access"
    RAISES = "raises"
    BAD_INPUT = "bad input"
    NAN = "NaN row"
    DIMENSION = "wrong dimension"
    DIMENSIONS = "wrong dimension beside right ones"
    HANG = "hang"
    OOM = "out of memory"
    NO_ROOM = "no room for the weights"
    EXCLUSIVE = "another process holds the GPU"
    DOES_NOT_START = "CUDA does not start"
    GPU_LOST = "GPU lost"
    HUB = "hub"
    HOST_OOM = "host out of memory"
    KILLED = "killed"
    DISK = "disk full"
    STOPPED = "stopped"
    NODE = "node lost"
    SIGTERM = "ended by somebody"
    UNREAD = "texts damaged"


_ERROR = ("builtins.RuntimeError", "builtins.Exception")
_CAUSES = {
    Failure.ILLEGAL: Cause(
        "torch.AcceleratorError",
        _ERROR,
        "CUDA error: an illegal memory access was encountered",
        700,
    ),
    Failure.RAISES: Cause(
        "builtins.ValueError", ("builtins.Exception",), "the encoder does not like it"
    ),
    Failure.BAD_INPUT: Cause(
        "builtins.UnicodeEncodeError", ("builtins.ValueError",), "surrogates not allowed"
    ),
    Failure.DIMENSIONS: Cause(
        "chunkvisor_worker.plugin.BadOutputError",
        _ERROR,
        "vectors of 5 dimensions follow vectors of 4",
    ),
    Failure.OOM: Cause(
        "torch.OutOfMemoryError", _ERROR, "CUDA out of memory. Tried to allocate 2.00 GiB."
    ),
    Failure.NO_ROOM: Cause(
        "torch.OutOfMemoryError", _ERROR, "CUDA out of memory. Tried to allocate 2.00 GiB."
    ),
    Failure.EXCLUSIVE: Cause(
        "torch.AcceleratorError", _ERROR, "CUDA error: CUDA-capable device(s) is/are busy", 46
    ),
    Failure.DOES_NOT_START: Cause(
        "torch.AcceleratorError", _ERROR, "CUDA error: unspecified launch failure", 719
    ),
    Failure.GPU_LOST: Cause("torch.AcceleratorError", _ERROR, "CUDA error: GPU is lost"),
    Failure.HUB: Cause(
        "huggingface_hub.errors.HfHubHTTPError", ("builtins.OSError",), "503", http_status=503
    ),
    Failure.HOST_OOM: Cause("builtins.MemoryError", ("builtins.Exception",), ""),
    Failure.UNREAD: Cause(
        "chunkvisor_worker.job.TextsDamagedError", _ERROR, "not those that were written"
    ),
    Failure.DISK: Cause(
        "builtins.OSError", ("builtins.Exception",), "No space left on device", errno=28
    ),
}
_SIGNALS = {Failure.SEGFAULT: -11, Failure.KILLED: -9, Failure.SIGTERM: -15}
_RESULT = Result("f", "out", 0, 0, 1, "d", 1, Facts(4), Limits(1))


ONE_ROW = Limits(1)


def asked(
    *,
    per_device: int = 1,
    standby: int = 0,
    attempts: int = 3,
    min_batch: int = 1,
    wait_timeout: float = 60,
    max_bad_rows: int = 100,
    fail: bool = False,
) -> Config:
    """A config, as far as the scheduler reads it."""
    recovery = RecoveryConfig(
        attempts=attempts,
        min_batch_size=min_batch,
        wait_timeout=wait_timeout,
        max_bad_rows=max_bad_rows,
        on_bad_row=OnBadRow.FAIL if fail else OnBadRow.QUARANTINE,
    )
    return Config.model_construct(
        recovery=recovery, workers=WorkersConfig(per_device=per_device, standby=standby)
    )


@functools.cache
def _judged(failure: Failure, phase: Phase) -> Verdict:
    if failure is Failure.NONE:
        return judge(Evidence(0, result=_RESULT))
    if failure is Failure.STOPPED:
        return judge(Evidence(-15, EndedBy.STOP))
    if failure is Failure.NODE:
        return judge(Evidence(NODE_LOST, ended_why="its node was lost"))
    beat = Beat(3, 1, phase, batch_rows=1, batch_tokens=1)
    if failure is Failure.HANG:
        return judge(Evidence(-9, EndedBy.HANG, "made no progress", beat=beat))
    if failure is Failure.NAN:
        return judge(Evidence(0, result=_RESULT, vectors_problem="are not finite", bad_rows=(0,)))
    if failure is Failure.DIMENSION:
        return judge(
            Evidence(
                0, result=_RESULT, vectors_problem="have dimension 5, not 4", other_dimension=True
            )
        )
    if failure in _SIGNALS:
        return judge(Evidence(_SIGNALS[failure], beat=beat))
    return judge(Evidence(1, fault=Fault(phase, (_CAUSES[failure],), "", 1, 1)))


def verdict(
    failure: Failure,
    phase: Phase = Phase.FORWARD,
    limits: Limits = ONE_ROW,
    rows: int = 0,
    tokens: int = 0,
    bad_rows: tuple[int, ...] = (),
    rows_done: int = 0,
) -> Verdict:
    """What the judge says of a worker that failed so, in the phase, over a batch of so many rows and padded tokens."""
    judged = _judged(failure, phase)
    if failure is Failure.NONE:
        return judged
    return replace(
        judged,
        limits=limits,
        batch_rows=rows,
        batch_tokens=tokens,
        bad_rows=bad_rows,
        rows_done=rows_done,
    )


def is_taken_apart(failure: Failure) -> bool:
    """Whether the policy looks for the text that makes a worker fail so, however often it comes."""
    judged = verdict(failure)
    return isinstance(decide(judged, History(texts=8, tries=2, part=True), RecoveryConfig()), Split)
