"""The verdict on an ended attempt, as a table of evidence."""

import itertools
import signal
from dataclasses import replace

import pytest

from chunkvisor.judge import NEARLY_FULL_BYTES, EndedBy, Evidence, describe_exit, judge
from chunkvisor_worker.contract.exits import Outcome, WorkerExit
from chunkvisor_worker.contract.messages import Beat, Cause, Facts, Fault, Limits, Phase, Result

RESULT = Result("f", "out", 0, 0, 4, "d", 256, Facts(8), Limits(4))
OOM = Fault(
    Phase.FORWARD,
    (Cause("torch.OutOfMemoryError", ("builtins.RuntimeError",), "CUDA out of memory."),),
    "",
    4,
)
UNKNOWN = Fault(Phase.FORWARD, (Cause("builtins.KeyError", (), "'x'"),), "")
GPU_LOST = Fault(
    Phase.FORWARD, (Cause("builtins.ValueError", (), "GPU has fallen off the bus"),), ""
)
AT_TEXTS = Beat(1, 1, Phase.FORWARD)
SEGFAULT_LOG = """loading
Fatal Python error: Segmentation fault

Thread 0x2 [beat] (most recent call first):
  File "/lib/threading.py", line 1024 in run

Current thread 0x1 [python] (most recent call first):
  File "/p/mine.py", line 7 in encode
  File "/p/chunkvisor_worker/job.py", line 9 in main

Current thread's C stack trace (most recent call first):
  Binary file "/lib/libc.so.6", at abort+0x24 [0x1]
"""
"""As Python 3.14 writes it; earlier ones name no thread and have no stack of C."""
ASSERT_LOG = "device-side assert triggered\nFatal Python error: Aborted\n"
NO_PACKAGE_LOG = "/usr/bin/python: No module named chunkvisor_worker"

Row = tuple[Evidence, Outcome, str]

BESIDE_A_RESULT: dict[str, Row] = {
    "done": (Evidence(0, result=RESULT), Outcome.COMMITTED, "done"),
    "done, then a crash": (
        Evidence(-11, result=RESULT, log_tail=SEGFAULT_LOG),
        Outcome.COMMITTED,
        "done",
    ),
    "done, and a fault": (Evidence(1, result=RESULT, fault=OOM), Outcome.COMMITTED, "done"),
    "done, then a hang": (
        Evidence(-9, EndedBy.HANG, "slow", result=RESULT),
        Outcome.COMMITTED,
        "done",
    ),
    "done, then stopped": (Evidence(-15, EndedBy.STOP, result=RESULT), Outcome.COMMITTED, "done"),
    "done, found at a resume": (Evidence(None, result=RESULT), Outcome.COMMITTED, "done"),
    "bad vectors": (
        Evidence(0, result=RESULT, vectors_problem="are 3 for 4 texts"),
        Outcome.BAD_OUTPUT,
        "its vectors are 3 for 4 texts",
    ),
    "bad vectors, and a fault": (
        Evidence(1, result=RESULT, vectors_problem="are missing", fault=OOM),
        Outcome.BAD_OUTPUT,
        "are missing",
    ),
    "bad vectors, then stopped": (
        Evidence(-15, EndedBy.STOP, result=RESULT, vectors_problem="are missing"),
        Outcome.INTERRUPTED,
        "stopped with the run",
    ),
}

BESIDE_A_FAULT: dict[str, Row] = {
    "fault": (Evidence(20, fault=OOM), Outcome.GPU_OOM, "OutOfMemoryError: CUDA out of memory."),
    "fault, other exit code": (Evidence(1, fault=OOM), Outcome.GPU_OOM, "CUDA out of memory."),
    "fault, then a crash": (
        Evidence(-6, fault=OOM, log_tail="Fatal Python error: Aborted"),
        Outcome.GPU_OOM,
        "memory",
    ),
    "fault, then SIGTERM": (Evidence(-15, fault=OOM), Outcome.GPU_OOM, "memory"),
    "fault, then stopped": (
        Evidence(20, EndedBy.STOP, fault=OOM),
        Outcome.INTERRUPTED,
        "stopped with the run",
    ),
    "fault, found at a resume": (Evidence(None, fault=OOM), Outcome.GPU_OOM, "memory"),
    "unknown fault": (Evidence(1, fault=UNKNOWN), Outcome.CRASHED, "KeyError: 'x'"),
}

WITHOUT_A_RECORD: dict[str, Row] = {
    "stopped": (Evidence(-15, EndedBy.STOP), Outcome.INTERRUPTED, "stopped with the run"),
    "hung": (
        Evidence(-6, EndedBy.HANG, "no progress for 9 s", log_tail=SEGFAULT_LOG),
        Outcome.HUNG,
        'for 9 s; it was at File "/p/mine.py", line 7 in encode',
    ),
    "found at a resume": (
        Evidence(None, log_tail=SEGFAULT_LOG),
        Outcome.INTERRUPTED,
        "left behind",
    ),
    "SIGINT": (Evidence(-2), Outcome.INTERRUPTED, "SIGINT"),
    "SIGTERM": (Evidence(-15), Outcome.INTERRUPTED, "SIGTERM"),
    "SIGHUP": (Evidence(-1), Outcome.INTERRUPTED, "SIGHUP"),
    "SIGKILL": (
        Evidence(-9),
        Outcome.CRASHED,
        "the program itself killed the worker: ended by SIGKILL",
    ),
    "SIGKILL, the log tells of another matter": (
        Evidence(-9, log_tail=SEGFAULT_LOG),
        Outcome.CRASHED,
        "SIGKILL",
    ),
    "SIGKILL by the kernel": (Evidence(-9, oom_kills=1), Outcome.HOST_OOM, "out of memory"),
    "SIGSEGV, the kernel killed another": (Evidence(-11, oom_kills=1), Outcome.CRASHED, "SIGSEGV"),
    "SIGSEGV": (Evidence(-11, log_tail=SEGFAULT_LOG), Outcome.CRASHED, "Segmentation fault"),
    "SIGABRT": (Evidence(-6), Outcome.CRASHED, "SIGABRT"),
    "SIGABRT after CUDA's words": (
        Evidence(-6, log_tail=ASSERT_LOG),
        Outcome.DEVICE_FAULT,
        "device-side assert",
    ),
    "SIGBUS": (Evidence(-7, disk_free_bytes=1 << 30), Outcome.CRASHED, "SIGBUS"),
    "SIGBUS, free space unknown": (Evidence(-7), Outcome.CRASHED, "SIGBUS"),
    "SIGBUS, nearly full": (
        Evidence(-7, disk_free_bytes=NEARLY_FULL_BYTES - 1),
        Outcome.DISK_FULL,
        "full disk",
    ),
    "SIGBUS, full": (Evidence(-7, disk_free_bytes=0), Outcome.DISK_FULL, "full disk"),
    "SIGILL": (Evidence(-4), Outcome.CRASHED, "SIGILL"),
    "real-time signal": (Evidence(-40), Outcome.CRASHED, "signal 40"),
    "exit 0": (Evidence(0), Outcome.BAD_OUTPUT, "left no result"),
    "exit 0, whatever the log says": (
        Evidence(0, log_tail="CUDA out of memory"),
        Outcome.BAD_OUTPUT,
        "no result",
    ),
    "exit 1": (Evidence(1), Outcome.CRASHED, "exit code 1 "),
    "exit 1, the log knows": (
        Evidence(1, log_tail="\nMemoryError\n"),
        Outcome.HOST_OOM,
        "MemoryError",
    ),
    "exit 2": (Evidence(2), Outcome.CRASHED, "exit code 2"),
    "exit 44": (Evidence(44), Outcome.CRASHED, "exit code 44"),
    "exit 127": (Evidence(127), Outcome.SETUP, "exit code 127"),
    "package missing": (
        Evidence(1, log_tail=NO_PACKAGE_LOG),
        Outcome.SETUP,
        "No module named chunkvisor_worker",
    ),
    "no room for the record": (
        Evidence(WorkerExit.DISK_FULL),
        Outcome.DISK_FULL,
        "the disk is full or failing",
    ),
    "no room for the record, under a quota": (
        Evidence(WorkerExit.DISK_FULL, beat=AT_TEXTS, disk_free_bytes=NEARLY_FULL_BYTES),
        Outcome.DISK_FULL,
        "the disk is full or failing",
    ),
    "a GPU is lost, said on a CPU": (
        Evidence(1, fault=GPU_LOST, on_cpu=True),
        Outcome.CRASHED,
        "ValueError: GPU has fallen off the bus",
    ),
    "without its parent": (Evidence(WorkerExit.ORPHANED), Outcome.INTERRUPTED, "exit code 25"),
}

TABLE = BESIDE_A_RESULT | BESIDE_A_FAULT | WITHOUT_A_RECORD


@pytest.mark.parametrize(("evidence", "outcome", "words"), TABLE.values(), ids=list(TABLE))
def test_outcome(evidence: Evidence, outcome: Outcome, words: str) -> None:
    """Verified vectors beat our own signals, those beat a false claim, that a fault, and that log
    and exit status.
    """
    verdict = judge(evidence)
    assert verdict.outcome is outcome
    assert words in verdict.reason


@pytest.mark.parametrize("phase", Phase)
def test_what_happened_before_the_first_batch(phase: Phase) -> None:
    """Without a fault record the last beat tells; while texts are tokenised, one of them can be the
    cause.
    """
    at_texts = phase in (Phase.TOKENIZE, Phase.FORWARD, Phase.WRITE, Phase.DONE)
    assert judge(Evidence(-11, beat=Beat(3, 1, phase))).before_first_batch is not at_texts


def test_every_evidence_has_a_verdict() -> None:
    """Whatever comes together, there is a verdict with a reason; COMMITTED only for verified
    vectors.
    """
    codes = (None, *range(-64, 0), *range(256))
    records = itertools.product(
        (None, RESULT), (None, "are wrong"), (None, OOM), EndedBy, (0, 1), (None, 0)
    )
    for result, problem, fault, ended_by, kills, free in records:
        evidence = Evidence(
            0,
            ended_by,
            result=result,
            vectors_problem=problem if result else None,
            fault=fault,
            oom_kills=kills,
            disk_free_bytes=free,
        )
        for code in codes:
            verdict = judge(replace(evidence, returncode=code))
            assert verdict.reason
            assert (verdict.outcome is Outcome.COMMITTED) == (
                result is not None and problem is None
            )


@pytest.mark.parametrize(
    ("fault", "beat", "batch", "phase"),
    [
        (OOM, None, (4, 0), Phase.FORWARD),
        (OOM, Beat(9, 1, Phase.WRITE, batch_rows=7, batch_tokens=70), (4, 70), Phase.FORWARD),
        (None, Beat(9, 1, Phase.WRITE, batch_rows=7, batch_tokens=70), (7, 70), Phase.WRITE),
        (None, None, (0, 0), None),
    ],
    ids=["fault", "fault before beat", "beat", "neither"],
)
def test_batch_and_phase(
    fault: Fault | None, beat: Beat | None, batch: tuple[int, int], phase: Phase | None
) -> None:
    """The verdict carries the batch and the phase of the fault; without one, those of the last
    beat.
    """
    verdict = judge(Evidence(20, fault=fault, beat=beat, limits=Limits(32, 512)))
    assert (verdict.batch_rows, verdict.batch_tokens) == batch
    assert verdict.phase is phase
    assert verdict.limits == Limits(32, 512)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "signal 9 (SIGKILL)"),
        (-signal.SIGRTMIN - 1, f"signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_exit_status_in_words(code: int, words: str) -> None:
    """A signal is named; one that Python has no name for has its number."""
    assert describe_exit(code) == words


@pytest.mark.parametrize("code", [*range(19), 20, *range(22, 26), *range(27, 256), *range(-15, 0)])
def test_a_text_may_end_its_worker_in_any_way(code: int) -> None:
    """A worker that was at texts and left no record may have been ended by one of them, whatever
    its exit status.
    """
    verdict = judge(Evidence(code, beat=AT_TEXTS))
    assert verdict.row_can_cause
    assert verdict.outcome not in (
        Outcome.SETUP,
        Outcome.HUB,
        Outcome.GPU_BUSY,
        Outcome.HARDWARE_FAULT,
    )


def test_a_worker_that_could_write_no_record_blames_no_text() -> None:
    """The machine was short of something: of memory, say."""
    verdict = judge(Evidence(WorkerExit.NO_RECORD, beat=AT_TEXTS))
    assert (verdict.outcome, verdict.row_can_cause) == (Outcome.CRASHED, False)


@pytest.mark.parametrize("phase", [Phase.IMPORT, Phase.MODEL_LOAD, Phase.CUDA_INIT])
@pytest.mark.parametrize("code", [0, 1, 20, 25, -7, -11, -15])
def test_before_the_first_batch_no_text_can_be_the_cause(code: int, phase: Phase) -> None:
    """No text was touched by then."""
    assert not judge(Evidence(code, beat=Beat(9, 1, phase))).row_can_cause


@pytest.mark.parametrize(
    "cause",
    [
        Cause("builtins.MemoryError", ("builtins.Exception",), ""),
        Cause("builtins.OSError", ("builtins.Exception",), "Cannot allocate memory", errno=12),
        Cause(
            "builtins.RuntimeError",
            ("builtins.Exception",),
            "[x] DefaultCPUAllocator: can't allocate memory",
        ),
        Cause("builtins.KeyboardInterrupt", ("builtins.BaseException",), ""),
    ],
    ids=["MemoryError", "ENOMEM", "CPU allocator", "KeyboardInterrupt"],
)
def test_a_text_may_want_too_much_memory_or_interrupt(cause: Cause) -> None:
    """An encoder that runs out of host memory, or is interrupted, while it is at texts may be so by
    one of them.
    """
    assert judge(Evidence(1, fault=Fault(Phase.FORWARD, (cause,), "", 4))).row_can_cause
    assert not judge(Evidence(1, fault=Fault(Phase.MODEL_LOAD, (cause,), ""))).row_can_cause
