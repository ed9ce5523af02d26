"""The words with which a run ends: what its workers met, the troubles it was in, how to use the file."""

from dataclasses import replace
from pathlib import Path

import pytest

from chunkvisor.commands.explain import explain
from chunkvisor.core.policy import code_if_nothing_encoded
from chunkvisor.errors import ExitCode, Halt, StopReason
from chunkvisor.events import event as of
from chunkvisor.judge import Evidence, Verdict, judge
from chunkvisor.messages import (
    Troubles,
    advice_on_bad_rows,
    halt_in_words,
    last_remedy,
    name_dtype,
    too_many_bad_texts,
)
from chunkvisor.show.lines import how_to_read
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Cause, Fault, Phase
from chunkvisor_worker.contract.taxonomy import read_oom
from torchwords import oom

_TAKEN = oom("2.00 GiB", "23.65 GiB", "120.00 MiB", "1.00 GiB", "21.10 GiB")
_OWN = oom("2.00 GiB", "23.65 GiB", "120.00 MiB", "23.00 GiB")


@pytest.mark.parametrize(
    ("message", "first"),
    [
        (_TAKEN, "Other processes hold 22.5 GiB of the GPU's 23.7 GiB"),
        (_OWN, "Use a GPU with more memory"),
    ],
    ids=["others-hold-it", "all-ours"],
)
def test_who_holds_the_memory_of_a_gpu_is_said_first(message: str, first: str) -> None:
    """Where others hold most of a GPU's memory, the remedy is about them, and not about the model."""
    verdict = Verdict(
        Outcome.GPU_OOM, "it did not fit", rule="gpu-out-of-memory", figures=read_oom(message)
    )
    assert last_remedy(verdict).startswith(first)


def test_a_broken_nvml_is_repaired_before_anything_else() -> None:
    """The NVML assertion that ends a run asks for the driver, in the last words and in the
    handbook.
    """
    words = last_remedy(Verdict(Outcome.GPU_OOM, "", "The run goes on.", "nvml-assert-allocator"))
    assert "nvidia-smi" in words
    assert "driver" in words
    assert "If the run has ended with it\n  If `nvidia-smi` fails" in explain(
        "nvml-assert-allocator"
    )


@pytest.mark.parametrize(
    ("outcome", "rule", "words"),
    [
        ("crashed", "killed-from-outside", "dmesg"),
        ("crashed", "segmentation-fault", "Read the end of the log"),
        ("crashed", "of-another-version", "Read the end of the log"),
        ("hung", "", "recovery.stall_timeout"),
        ("bad_output", "", "float32"),
        ("of_another_version", "", ""),
    ],
)
def test_each_cause_has_its_own_advice(outcome: str, rule: str, words: str) -> None:
    """A row without a vector is told with what to look at first, by its cause."""
    assert words in advice_on_bad_rows(outcome, rule)
    assert bool(words) == bool(advice_on_bad_rows(outcome, rule))


@pytest.mark.parametrize("on_cpu", [True, False])
def test_on_the_cpu_no_gpu_is_to_blame(on_cpu: bool) -> None:
    """A GPU's error in a run on the CPU sends no one to reboot, but to the encoder's code."""
    message = 'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":1154'
    fault = Fault(Phase.FORWARD, (Cause("builtins.RuntimeError", (), message),), "")
    verdict = judge(Evidence(20, fault=fault, on_cpu=on_cpu))
    assert verdict.outcome is Outcome.GPU_OOM
    halt = halt_in_words(
        StopReason.NOTHING_ENCODED, ExitCode.MACHINE, verdict, ("out", 6, 1500), "", dropped=False
    )
    assert ("reboot" in halt.remedy) == (not on_cpu)
    assert ("look at its code" in halt.remedy) == on_cpu
    assert "0 of 1,500" in halt.what


@pytest.mark.parametrize(
    ("dtype", "better", "words"),
    [
        ("float16", "bfloat16", "set model.dtype to bfloat16"),
        ("bfloat16", "bfloat16", "set model.dtype to float32"),
        ("float32", "bfloat16", "model.dtype float32"),
    ],
)
def test_bad_vectors_name_the_dtype_to_take(dtype: str, better: str, words: str) -> None:
    """What the model computes in is named, and a larger dtype if there is one."""
    verdict = Verdict(Outcome.BAD_OUTPUT, "its vectors have NaN", bad_rows=(0,))
    halt = too_many_bad_texts("out", "row 1", 101, verdict, 100)
    name_dtype(halt, "a/b", dtype, better)
    assert halt.why == f"its vectors have NaN; a/b computes in {dtype}"
    assert words in halt.remedy
    assert halt.remedy.count("model.dtype") == 1


_PLAIN = Verdict(Outcome.CRASHED, "")


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (_PLAIN, ExitCode.MACHINE),
        (replace(_PLAIN, outcome=Outcome.HUNG), ExitCode.MACHINE),
        (replace(_PLAIN, outcome=Outcome.GPU_OOM, figures=read_oom(_OWN)), ExitCode.MACHINE),
        (replace(_PLAIN, outcome=Outcome.GPU_OOM, figures=read_oom(_TAKEN)), ExitCode.TRY_AGAIN),
        (replace(_PLAIN, outcome=Outcome.BAD_OUTPUT), ExitCode.CONFIG),
    ],
    ids=["crashed", "hung", "memory-ours", "memory-of-others", "bad-output"],
)
def test_a_run_that_encoded_nothing_is_not_started_again(verdict: Verdict, code: ExitCode) -> None:
    """A loop would repeat it for ever; only what a neighbour holds may be there the next time."""
    assert code_if_nothing_encoded(verdict) is code


# --- the troubles that a run was in

GO, KEPT, BAD = (
    of.Go("t", 5, 1, 32),
    of.BatchesKept("t", 5, 10),
    of.Quarantined("t", 10, "a.jsonl:11"),
)
HUNG = of.PartFailed("t", 5, 2, "hung", "no progress for 5 s", log="/w/5/2/worker.log")
CRASHED = of.AttemptFailed(
    "t", 5, 3, "crashed", "SIGSEGV", rule="segmentation-fault", log="/w/5/3/worker.log"
)
LAST = "failed since vectors were last saved; the last one"
LOST = "without a vector so far: t row 10 (a.jsonl:11)"


@pytest.mark.parametrize(
    ("events", "why", "log", "see"),
    [
        ([GO], "", "", ""),
        ([GO, KEPT, HUNG], f"1 attempt {LAST}: hung: no", "/w/5/2/worker.log", "hung"),
        ([GO, KEPT, HUNG, CRASHED, HUNG], f"3 attempts {LAST}: hung", "/w/5/2", "hung"),
        ([GO, KEPT, CRASHED], f"1 attempt {LAST}: crashed", "/w/5/3", "segmentation-fault"),
        ([GO, *[BAD] * 11, KEPT], "t row 10 (a.jsonl:11) and 1 more", "", ""),
    ],
    ids=range(5),
)
def test_a_stop_tells_of_the_troubles_it_came_in(
    events: list[of.Event], why: str, log: str, see: str
) -> None:
    """The last failure since the run last got on is told, with its log, and the rows that it gave
    up.
    """
    troubles = Troubles()
    for event in events:
        troubles.observe(event)
    halt = troubles.add_reasons_to(Halt(ExitCode.TERMINATED, "stopped by SIGTERM"))
    assert why in halt.why
    assert bool(why) == bool(halt.why)
    assert str(halt.log or "").startswith(log)
    assert halt.see == see


@pytest.mark.parametrize(
    ("code", "before", "why"),
    [
        (ExitCode.CONFIG, "", LOST),
        (ExitCode.TRY_AGAIN, "a reason", f"a reason\n       {LOST}"),
        (ExitCode.QUARANTINED, "a reason", "a reason"),  # it names them itself
    ],
)
def test_every_early_end_names_the_rows_that_were_given_up(
    code: ExitCode, before: str, why: str
) -> None:
    """Its own reason comes first, and stays; only a stop has none of its own."""
    troubles = Troubles()
    for event in (GO, HUNG, BAD):
        troubles.observe(event)
    told = troubles.add_reasons_to(Halt(code, "given up", why=before))
    assert (told.why, told.log, told.see) == (why, None, "")


# --- how to use the file


@pytest.mark.parametrize(
    ("name", "rows_table", "part", "end"),
    [
        ("out.npy", "", None, 'mmap_mode="c"); row i is row i of the source'),
        ("out.npy", "", (2, 8), "row i is row i of part 2 of 8 of the source"),
        ("out.parquet", "out.rows.parquet", None, 'read_parquet("/w/out.parquet")'),
        (
            "out.npy",
            "out.rows.parquet",
            (2, 8),
            "row i of out.rows.parquet next to it, whose source_row is the row of the source",
        ),
    ],
)
def test_how_to_read(name: str, rows_table: str, part: tuple[int, int] | None, end: str) -> None:
    """Row i is not said to be row i of the source if rows are left out, or in a part of it."""
    assert how_to_read(Path("/w", name), rows_table, part).endswith(end)
