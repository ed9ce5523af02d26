"""How workers fail: what each kind of failure leaves for the real judge to see."""

import functools
from enum import Enum

from chunkvisor.config.choices import OnBadRow
from chunkvisor.config.model import Config, RecoveryConfig, WorkersConfig
from chunkvisor.core.policy import History, Split, decide
from chunkvisor.judge import NODE_LOST, EndedBy, Evidence, judge
from chunkvisor_worker.contract.messages import Beat, Cause, Facts, Fault, Limits, Phase, Result


class Failure(Enum):
    """How a worker ends."""

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
    CANARY = "a canary without a vector"
    SERVER = "a server fails"


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
    Failure.SERVER: Cause(
        "urllib.error.HTTPError", ("builtins.OSError",), "HTTP Error 500: why", http_status=500
    ),
    Failure.HOST_OOM: Cause("builtins.MemoryError", ("builtins.Exception",), ""),
    Failure.CANARY: Cause(
        "chunkvisor_worker.plugin.BadOutputError", _ERROR, "the canary has NaN or infinity"
    ),
    Failure.UNREAD: Cause(
        "chunkvisor_worker.job.TextsDamagedError", _ERROR, "not those that were written"
    ),
    Failure.DISK: Cause(
        "builtins.OSError", ("builtins.Exception",), "No space left on device", errno=28
    ),
}
_SIGNALS = {Failure.SEGFAULT: -11, Failure.KILLED: -9, Failure.SIGTERM: -15}
_RESULT = Result("f", "out", 0, 0, 1, "d", 1, Facts(4), Limits(1))


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
    """Make a config with the keys that the scheduler reads."""
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


def _out_of_memory(others_gib: int) -> Cause:
    """Give torch's error; with figures if another process, which NVML names, holds memory."""
    message = "CUDA out of memory. Tried to allocate 2.00 GiB."
    if others_gib:
        message += (
            " GPU 0 has a total capacity of 16.00 GiB of which 1.00 GiB is free. "
            f"Process 1000000 has {others_gib}.00 GiB memory in use. Including non-PyTorch memory, "
            f"this process has {15 - others_gib}.00 GiB memory in use."
        )
    return Cause("torch.OutOfMemoryError", _ERROR, message)


@functools.cache
def evidence(
    failure: Failure,
    phase: Phase = Phase.FORWARD,
    rows: int = 0,
    tokens: int = 0,
    bad_rows: tuple[int, ...] = (),
    rows_done: int = 0,
    others_gib: int = 0,
) -> Evidence:
    """What a worker leaves that fails so, in the phase, over a batch of so many rows and padded
    tokens.
    """
    beat = Beat(3, 1, phase, rows_done=rows_done, batch_rows=rows, batch_tokens=tokens)
    if failure is Failure.NONE:
        return Evidence(0, result=_RESULT)
    if failure is Failure.STOPPED:
        return Evidence(-15, EndedBy.STOP)
    if failure is Failure.NODE:
        return Evidence(NODE_LOST, ended_why="its node was lost")
    if failure is Failure.HANG:
        return Evidence(-9, EndedBy.HANG, "made no progress", beat=beat)
    if failure is Failure.NAN:
        bad = bad_rows or (0,)
        return Evidence(0, result=_RESULT, vectors_problem="are not finite", bad_rows=bad)
    if failure is Failure.DIMENSION:
        problem = "have dimension 5, not 4"
        return Evidence(0, result=_RESULT, vectors_problem=problem, other_dimension=True)
    if failure in _SIGNALS:
        return Evidence(_SIGNALS[failure], beat=beat)
    of_memory = failure in (Failure.OOM, Failure.NO_ROOM)
    cause = _out_of_memory(others_gib) if of_memory else _CAUSES[failure]
    return Evidence(1, fault=Fault(phase, (cause,), "", rows, tokens, rows_done), beat=beat)


def is_taken_apart(failure: Failure) -> bool:
    """Say whether the policy searches a chunk for the text that causes this failure."""
    judged = judge(evidence(failure, rows=1, tokens=1))
    return isinstance(
        decide(
            judged,
            History(texts=8, charged_failures=2, any_text_succeeded=True, bisecting=True),
            RecoveryConfig(),
        ),
        Split,
    )
