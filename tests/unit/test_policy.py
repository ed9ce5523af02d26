"""The next step after an attempt, as a table of verdicts and histories."""

import itertools
from typing import Any

import pytest

from chunkvisor.decide.history import Budget, Company, History
from chunkvisor.decide.policy import BACKOFF_MAX_S, BARREN_CHUNKS, FRUITLESS_ATTEMPTS, backoff_s, decide
from chunkvisor.decide.steps import Commit, EndRun, Quarantine, Retry, SetAside, Split, StartAgain, Step, Wait
from chunkvisor.decide.verdict import Verdict
from chunkvisor.errors import ExitCode
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, Phase, Tier
from chunkvisor_worker.contract.oommessage import OomFigures

BUDGET = Budget(attempts=3, min_batch_size=1, wait_timeout_s=600)


GIB = 1 << 30


def after(outcome: Outcome, tries: int = 0, **history: Any) -> History:
    """A chunk that has failed with the outcome so often before."""
    return History({outcome: tries}, **history)


def of(outcome: Outcome, exit_code: int | None = None, **details: Any) -> Verdict:
    """A verdict; unless `details` say otherwise on a batch of one row, so that nothing is left to halve."""
    return Verdict(outcome, "why", exit_code=exit_code, **{"limits": Limits(1), "batch_rows": 1, **details})


RETRIED = (Outcome.CRASHED, Outcome.HUNG, Outcome.BAD_OUTPUT, Outcome.GPU_OOM, Outcome.HOST_OOM)
WAITED = ((Outcome.GPU_BUSY, ExitCode.TRY_AGAIN), (Outcome.HUB, ExitCode.TRY_AGAIN), (Outcome.DISK_FULL, ExitCode.DISK))
HALVED: dict[str, Any] = {"limits": Limits(32), "batch_rows": 32}
SUSPECT: dict[str, Any] = {"row_can_cause": True}
LAST_FRUITLESS = FRUITLESS_ATTEMPTS - 1

TABLE: dict[str, tuple[Verdict, History, Step]] = {
    "committed": (of(Outcome.COMMITTED), History(), Commit()),
    **{f"{o}, first": (of(o), after(o), Retry(0.5)) for o in RETRIED},
    **{f"{o}, second": (of(o), after(o, 1), Retry(1.0)) for o in RETRIED},
    **{f"{o}, third": (of(o), after(o, 2), SetAside()) for o in RETRIED},
    "another cause before": (of(Outcome.HUNG), after(Outcome.CRASHED, 2), Retry(0.5)),
    "device fault": (of(Outcome.DEVICE_FAULT), History(), Retry(0.5, blocking_launches=True)),
    "device fault, third": (of(Outcome.DEVICE_FAULT), after(Outcome.DEVICE_FAULT, 2), SetAside()),
    "device fault with a code": (of(Outcome.DEVICE_FAULT, 69), History(), Retry(0.5, blocking_launches=True)),
    "device fault with a code, third": (
        of(Outcome.DEVICE_FAULT, 69),
        after(Outcome.DEVICE_FAULT, 2),
        EndRun(ExitCode.MACHINE),
    ),
    "third chunk given up in a row": (
        of(Outcome.CRASHED),
        after(Outcome.CRASHED, 2, barren_chunks=BARREN_CHUNKS - 1),
        EndRun(ExitCode.TRY_AGAIN),
    ),
    "second chunk given up in a row": (
        of(Outcome.CRASHED),
        after(Outcome.CRASHED, 2, barren_chunks=BARREN_CHUNKS - 2),
        SetAside(),
    ),
    "barren, but a try is left": (of(Outcome.CRASHED), after(Outcome.CRASHED, 1, barren_chunks=9), Retry(1.0)),
    "bad input that is no row's": (of(Outcome.BAD_INPUT), History(), Retry(0.5)),
    "fruitless": (of(Outcome.HUNG), History(fruitless=LAST_FRUITLESS), EndRun(ExitCode.TRY_AGAIN)),
    "nearly fruitless": (of(Outcome.HUNG), History(fruitless=LAST_FRUITLESS - 1), Retry(0.5)),
    "no memory while texts are tokenised": (
        of(Outcome.HOST_OOM, phase=Phase.TOKENIZE, **HALVED),
        after(Outcome.HOST_OOM),
        Retry(0.5),
    ),
    "fruitless, but the batch gets smaller": (
        of(Outcome.GPU_OOM, **HALVED),
        History(fruitless=LAST_FRUITLESS),
        Retry(tier=Tier(0, 16), charged=False),
    ),
    "fruitless, but taken apart": (
        of(Outcome.CRASHED, **SUSPECT),
        after(Outcome.CRASHED, 2, fruitless=LAST_FRUITLESS),
        Split(),
    ),
    "fruitless, but a text alone is looked at again": (
        of(Outcome.CRASHED, **SUSPECT),
        History(fruitless=LAST_FRUITLESS, texts=1),
        Retry(),
    ),
    "fruitless, but the text is found": (
        of(Outcome.CRASHED, **SUSPECT),
        after(Outcome.CRASHED, 1, fruitless=LAST_FRUITLESS, texts=1),
        Quarantine(),
    ),
    "fruitless, but we stopped it": (
        of(Outcome.INTERRUPTED, asked_for=True),
        History(fruitless=LAST_FRUITLESS),
        Retry(charged=False),
    ),
    "fruitless, but the world is not ready": (of(Outcome.HUB), History(fruitless=LAST_FRUITLESS), Wait(1.0)),
    "gpu_oom halves": (
        of(Outcome.GPU_OOM, **HALVED),
        after(Outcome.GPU_OOM, 9),
        Retry(tier=Tier(0, 16), charged=False),
    ),
    "host_oom halves": (of(Outcome.HOST_OOM, **HALVED), History(), Retry(tier=Tier(0, 16), charged=False)),
    "host_oom that no smaller batch helps": (
        of(Outcome.HOST_OOM, **HALVED, phase=Phase.FORWARD, smaller_batch_helps=False),
        after(Outcome.HOST_OOM, 2),
        SetAside(),
    ),
    "stopped": (of(Outcome.INTERRUPTED, asked_for=True), after(Outcome.INTERRUPTED, 9), Retry(charged=False)),
    "interrupted by others": (of(Outcome.INTERRUPTED), History(), Retry(0.5)),
    "interrupted by others, third": (of(Outcome.INTERRUPTED), after(Outcome.INTERRUPTED, 2), SetAside()),
    "lost": (of(Outcome.LOST), after(Outcome.LOST, 8), Retry()),
    "lost, again and again": (of(Outcome.LOST), after(Outcome.LOST, 9), SetAside()),
    "lost among many": (of(Outcome.LOST), History(fruitless=LAST_FRUITLESS), Retry()),
    "setup": (of(Outcome.SETUP), History(), EndRun(ExitCode.CONFIG)),
    "setup, no GPU": (of(Outcome.SETUP, 69), History(), EndRun(ExitCode.MACHINE)),
    "setup that worked before, no code, third": (
        of(Outcome.SETUP),
        after(Outcome.SETUP, 2, worked_before=True),
        EndRun(ExitCode.CONFIG),
    ),
    "setup that worked before": (of(Outcome.SETUP, 69), History(worked_before=True), Retry(0.5)),
    "setup that worked before, third": (
        of(Outcome.SETUP, 69),
        after(Outcome.SETUP, 2, worked_before=True),
        EndRun(ExitCode.MACHINE),
    ),
    "hardware": (of(Outcome.HARDWARE_FAULT), History(worked_before=True), EndRun(ExitCode.MACHINE)),
    **{f"{o}, first": (of(o), History(), Wait(1.0)) for o, _ in WAITED},
    **{f"{o}, after 100 s": (of(o), History(waited_s=100), Wait(11.0)) for o, _ in WAITED},
    **{f"{o}, nearly at the end": (of(o), History(waited_s=595), Wait(5.0)) for o, _ in WAITED},
    **{f"{o}, at the end": (of(o), History(waited_s=600), EndRun(code)) for o, code in WAITED},
    "gpu_busy at the end, with a code": (of(Outcome.GPU_BUSY, 69), History(waited_s=600), EndRun(ExitCode.MACHINE)),
}


@pytest.mark.parametrize(("verdict", "history", "step"), TABLE.values(), ids=list(TABLE))
def test_step(verdict: Verdict, history: History, step: Step) -> None:
    """Each verdict has one step, by what came before it."""
    assert decide(verdict, history, BUDGET) == step


def test_one_attempt_only() -> None:
    """With recovery.attempts 1 the first failure gives the chunk up, but halving and waiting still go on."""
    budget = Budget(attempts=1)
    assert decide(of(Outcome.CRASHED), History(), budget) == SetAside()
    assert decide(of(Outcome.GPU_OOM, **HALVED), History(), budget) == Retry(tier=Tier(0, 16), charged=False)
    assert decide(of(Outcome.HUB), History(), budget) == Wait(1.0)


BAD_ROWS: dict[str, Any] = {"row_can_cause": True, "bad_rows": (1, 3)}
BIG_BATCH: dict[str, Any] = {"row_can_cause": True, "limits": Limits(32), "batch_rows": 32}

SUSPECTED: dict[str, tuple[Verdict, History, Step]] = {
    "crash, first": (of(Outcome.CRASHED, **SUSPECT), History(texts=8), Retry(0.5)),
    "device fault, first": (
        of(Outcome.DEVICE_FAULT, **SUSPECT),
        History(texts=8),
        Retry(0.5, blocking_launches=True),
    ),
    "second, the batch can be smaller": (
        of(Outcome.CRASHED, **BIG_BATCH),
        after(Outcome.CRASHED, 1, texts=64),
        Retry(1.0, Tier(0, 16), lesson=False),
    ),
    "second, a smaller batch does not help": (
        of(Outcome.CRASHED, smaller_batch_helps=False, **BIG_BATCH),
        after(Outcome.CRASHED, 1, texts=64),
        Split(),
    ),
    "second, the batch is as small as can be": (
        of(Outcome.CRASHED, **SUSPECT),
        after(Outcome.CRASHED, 1, texts=8),
        Split(),
    ),
    "third": (of(Outcome.CRASHED, **BIG_BATCH), after(Outcome.CRASHED, 2, texts=64), Split()),
    "a part": (of(Outcome.CRASHED, **BIG_BATCH), History(texts=4, taken_apart=True), Split()),
    "a text alone": (of(Outcome.CRASHED, **BIG_BATCH), History(texts=1, taken_apart=True), Retry()),
    "a text alone, second": (
        of(Outcome.CRASHED, **SUSPECT),
        after(Outcome.CRASHED, 1, texts=1, taken_apart=True),
        Quarantine(),
    ),
    "a text alone, second but of another kind": (
        of(Outcome.CRASHED, **SUSPECT),
        after(Outcome.DEVICE_FAULT, 1, texts=1, taken_apart=True),
        Retry(),
    ),
    "a text that cannot be encoded": (of(Outcome.BAD_INPUT, **SUSPECT), History(texts=8), Split()),
    "a text that cannot be encoded, alone": (of(Outcome.BAD_INPUT, **SUSPECT), History(texts=1), Quarantine()),
    "bad vectors": (of(Outcome.BAD_OUTPUT, **BAD_ROWS), History(texts=8), Split((1, 3))),
    "bad vector of a text alone": (
        of(Outcome.BAD_OUTPUT, row_can_cause=True, bad_rows=(0,)),
        History(texts=1, taken_apart=True),
        Quarantine(),
    ),
    "half of the vectors are bad": (of(Outcome.BAD_OUTPUT, **BAD_ROWS), History(texts=4), Split((1, 3))),
    "most vectors are bad": (of(Outcome.BAD_OUTPUT, **BAD_ROWS), History(texts=3), Split((1, 3))),
    "all vectors are bad": (of(Outcome.BAD_OUTPUT, **BAD_ROWS), History(texts=2), Retry(0.5)),
    "all vectors are bad, again": (
        of(Outcome.BAD_OUTPUT, **BAD_ROWS),
        after(Outcome.BAD_OUTPUT, 1, texts=2),
        Split((1, 3)),
    ),
    "hung over texts": (of(Outcome.HUNG, **SUSPECT), History(texts=8), Retry(0.5)),
    "hung over texts, again: each try costs a stall_timeout": (
        of(Outcome.HUNG, **SUSPECT, **HALVED),
        after(Outcome.HUNG, 1, texts=8),
        Split(),
    ),
    "hung over a part": (of(Outcome.HUNG, **SUSPECT), History(texts=4, taken_apart=True), Split()),
    "hung over one text": (of(Outcome.HUNG, **SUSPECT), History(texts=1), Retry()),
    "hung over one text, again": (of(Outcome.HUNG, **SUSPECT), after(Outcome.HUNG, 1, texts=1), Quarantine()),
    "another dimension of one text, again": (
        of(Outcome.BAD_OUTPUT, **SUSPECT),
        after(Outcome.BAD_OUTPUT, 1, texts=1),
        Quarantine(),
    ),
    "most vectors of a part are bad": (
        of(Outcome.BAD_OUTPUT, **BAD_ROWS),
        History(texts=3, taken_apart=True),
        Split((1, 3)),
    ),
    "out of memory, smallest batch": (
        of(Outcome.GPU_OOM, **SUSPECT),
        after(Outcome.GPU_OOM, 1, texts=8),
        Split(),
    ),
    "out of memory, text alone": (
        of(Outcome.GPU_OOM, **SUSPECT),
        after(Outcome.GPU_OOM, 1, texts=1, taken_apart=True),
        Quarantine(),
    ),
}


@pytest.mark.parametrize(("verdict", "history", "step"), SUSPECTED.values(), ids=list(SUSPECTED))
def test_step_where_a_text_can_be_the_cause(verdict: Verdict, history: History, step: Step) -> None:
    """Tried again, then with a smaller batch for one try, then taken apart; a text that fails alone twice is bad."""
    assert decide(verdict, history, BUDGET) == step


BEFORE = (Phase.START, Phase.IMPORT, Phase.MODEL_LOAD, Phase.READY, Phase.CUDA_INIT)
ON_LOADING = (Phase.START, Phase.IMPORT, Phase.MODEL_LOAD)
CAN_BE_A_TEXTS = {"row_can_cause": True, "smaller_batch_helps": True, "limits": Limits(32), "batch_rows": 0}
TWICE, THRICE = History(failed_starts=1), History(failed_starts=2)
STARTS: dict[str, tuple[Outcome, int | None, Phase, History, Step]] = {
    **{f"crash in {p}": (Outcome.CRASHED, None, p, History(), StartAgain(0.5)) for p in BEFORE},
    **{f"crash in {p}, of a text alone": (Outcome.CRASHED, None, p, History(texts=1), StartAgain(0.5)) for p in BEFORE},
    **{
        f"crash in {p}, whatever the chunk was charged with": (
            Outcome.CRASHED,
            None,
            p,
            after(Outcome.CRASHED, 2, texts=8, taken_apart=True),
            StartAgain(0.5),
        )
        for p in BEFORE
    },
    "crash, second": (Outcome.CRASHED, None, Phase.IMPORT, History(failed_starts=1), StartAgain(1.0)),
    **{
        f"crash in {p}, third": (
            Outcome.CRASHED,
            None,
            p,
            History(failed_starts=2),
            EndRun(ExitCode.CONFIG if p in ON_LOADING else ExitCode.MACHINE),
        )
        for p in BEFORE
    },
    "crash, where it worked before, is waited out": (
        Outcome.CRASHED,
        None,
        Phase.CUDA_INIT,
        History(failed_starts=7, failing_s=599, worked_before=True),
        StartAgain(60.0),
    ),
    "crash, where it worked before, and waited for": (
        Outcome.CRASHED,
        None,
        Phase.CUDA_INIT,
        History(failed_starts=7, failing_s=600, worked_before=True),
        EndRun(ExitCode.MACHINE),
    ),
    "killed, third": (Outcome.CRASHED, 69, Phase.MODEL_LOAD, History(failed_starts=2), EndRun(ExitCode.MACHINE)),
    **{
        f"{o}, {name}": (o, None, Phase.MODEL_LOAD, history, step)
        for o in (Outcome.DEVICE_FAULT, Outcome.HUNG, Outcome.HOST_OOM, Outcome.GPU_OOM)
        for name, history, step in (("second", TWICE, StartAgain(1.0)), ("third", THRICE, EndRun(ExitCode.MACHINE)))
    },
    "device fault": (Outcome.DEVICE_FAULT, None, Phase.CUDA_INIT, History(), StartAgain(0.5)),
    "host_oom": (Outcome.HOST_OOM, None, Phase.MODEL_LOAD, History(), StartAgain(0.5)),
    "setup": (Outcome.SETUP, None, Phase.IMPORT, History(), EndRun(ExitCode.CONFIG)),
    "setup that worked": (Outcome.SETUP, 69, Phase.IMPORT, History(worked_before=True), StartAgain(0.5)),
    "setup that worked, waited for": (
        Outcome.SETUP,
        69,
        Phase.IMPORT,
        History(worked_before=True, failed_starts=2, failing_s=600),
        EndRun(ExitCode.MACHINE),
    ),
    "bad output": (Outcome.BAD_OUTPUT, None, Phase.IMPORT, History(), StartAgain(0.5)),
    "interrupted": (Outcome.INTERRUPTED, None, Phase.IMPORT, History(), Retry(0.5)),
    "lost": (Outcome.LOST, None, Phase.CUDA_INIT, History(), Retry()),
    "crash while tokenising": (Outcome.CRASHED, None, Phase.TOKENIZE, after(Outcome.CRASHED, 2, texts=8), Split()),
    "crash while tokenising, alone": (
        Outcome.CRASHED,
        None,
        Phase.TOKENIZE,
        after(Outcome.CRASHED, 1, texts=1),
        Quarantine(),
    ),
}


@pytest.mark.parametrize(("outcome", "code", "phase", "history", "step"), STARTS.values(), ids=list(STARTS))
def test_step_before_the_first_batch(
    outcome: Outcome, code: int | None, phase: Phase, history: History, step: Step
) -> None:
    """No text is the cause: none is charged or taken apart, and what comes back ends the run with 69 or 78."""
    assert decide(of(outcome, code, phase=phase, **CAN_BE_A_TEXTS), history, BUDGET) == step


FULL = OomFigures(
    wanted_bytes=GIB, total_bytes=8 * GIB, free_bytes=GIB // 4, process_bytes=7 * GIB + GIB // 2, reserved_bytes=0
)
HELD = OomFigures(wanted_bytes=GIB, total_bytes=8 * GIB, free_bytes=GIB // 4, process_bytes=2 * GIB, reserved_bytes=0)
WEIGHTS: dict[str, Any] = {"rule": "gpu-full-before-work", "phase": Phase.CUDA_INIT}
SMALLEST: dict[str, Any] = {"limits": Limits(1), "batch_rows": 1, "phase": Phase.FORWARD}
LATER: dict[str, Any] = {"limits": Limits(32), "batch_rows": 32, "rows_done": 64, "phase": Phase.FORWARD}
FIRST: dict[str, Any] = {**LATER, "rows_done": 0}
HALF = Retry(tier=Tier(0, 16), charged=False)
MEMORY: dict[str, tuple[Verdict, History, Step]] = {
    "a model larger than the GPU": (
        of(Outcome.GPU_BUSY, 75, **WEIGHTS, figures=FULL),
        History(),
        EndRun(ExitCode.MACHINE, too_large=True),
    ),
    "the same, where nvidia-smi says it": (
        of(Outcome.GPU_BUSY, 75, **WEIGHTS),
        History(company=Company.ALONE),
        EndRun(ExitCode.MACHINE, too_large=True),
    ),
    "no room, others hold it": (of(Outcome.GPU_BUSY, 75, **WEIGHTS, figures=HELD), History(), Wait(1.0)),
    "no room, and nobody can tell why": (
        of(Outcome.GPU_BUSY, 75, **WEIGHTS),
        History(company=Company.BLIND),
        Wait(1.0),
    ),
    "no room beside another worker of ours": (
        of(Outcome.GPU_BUSY, 75, **WEIGHTS, figures=FULL),
        History(company=Company.OURS),
        Wait(1.0),
    ),
    "busy for another reason": (
        of(Outcome.GPU_BUSY, 75, rule="gpu-exclusive", phase=Phase.CUDA_INIT),
        History(company=Company.ALONE),
        Wait(1.0),
    ),
    **{
        f"out of memory, {company.value}": (of(Outcome.GPU_OOM, **FIRST), History(company=company), HALF)
        for company in Company
        if company is not Company.CAME
    },
    "out of memory by a neighbour": (of(Outcome.GPU_OOM, **FIRST), History(company=Company.CAME), Wait(1.0)),
    "out of memory by a neighbour that stays": (
        of(Outcome.GPU_OOM, **FIRST),
        History(company=Company.CAME, waited_s=600),
        HALF,
    ),
    "blind, after batches that fitted": (of(Outcome.GPU_OOM, **LATER), History(company=Company.BLIND), Wait(1.0)),
    "blind, after batches that fitted, waited for": (
        of(Outcome.GPU_OOM, **LATER),
        History(company=Company.BLIND, waited_s=600),
        HALF,
    ),
    "blind, the smallest batch": (
        of(Outcome.GPU_OOM, row_can_cause=True, **SMALLEST),
        after(Outcome.GPU_OOM, 2, company=Company.BLIND, texts=8),
        Wait(1.0),
    ),
    "blind, the smallest batch, waited for": (
        of(Outcome.GPU_OOM, row_can_cause=True, **SMALLEST),
        after(Outcome.GPU_OOM, 2, company=Company.BLIND, texts=8, waited_s=600),
        Split(),
    ),
    "not blind, after batches that fitted": (of(Outcome.GPU_OOM, **LATER), History(company=Company.ALONE), HALF),
    "host memory has no neighbours": (of(Outcome.HOST_OOM, **LATER), History(company=Company.BLIND), HALF),
    "a pause grows with the spell": (
        of(Outcome.GPU_BUSY),
        History(waited_s=3, spell_s=300),
        Wait(31.0),
    ),
}


@pytest.mark.parametrize(("verdict", "history", "step"), MEMORY.values(), ids=list(MEMORY))
def test_step_where_gpu_memory_ran_out(verdict: Verdict, history: History, step: Step) -> None:
    """What others hold is waited for and leaves no lesson; what nobody else holds is ours, or too much for the GPU."""
    assert decide(verdict, history, BUDGET) == step


def test_one_attempt_only_with_a_suspect() -> None:
    """With recovery.attempts 1 a chunk is taken apart at once, and a text that fails alone is not tried again."""
    budget = Budget(attempts=1)
    assert decide(of(Outcome.CRASHED, **BIG_BATCH), History(texts=64), budget) == Split()
    assert decide(of(Outcome.CRASHED, **SUSPECT), History(texts=1), budget) == Quarantine()


def test_backoff_doubles_up_to_a_minute() -> None:
    """Half a second first, twice that each time, a minute at most, whatever the number."""
    pauses = [backoff_s(tries) for tries in range(1, 12)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, *[BACKOFF_MAX_S] * 4]
    assert backoff_s(0) == 0.5
    assert backoff_s(1000) == BACKOFF_MAX_S


def test_every_verdict_has_a_step_that_ends() -> None:
    """With its tries and its time used up every outcome ends, but for what is nobody's fault."""
    free = {Outcome.LOST, Outcome.COMMITTED}
    for outcome, exit_code, worked in itertools.product(Outcome, (None, 69, 74, 75, 78), (False, True)):
        step = decide(of(outcome, exit_code), History({outcome: 4}, worked, 600, failing_s=600), BUDGET)
        assert isinstance(step, SetAside | EndRun) == (outcome not in free)
        for texts, apart in ((1, True), (8, False), (8, True)):
            history = History({outcome: 4}, worked, 600, texts=texts, taken_apart=apart)
            step = decide(of(outcome, exit_code, row_can_cause=True), history, BUDGET)
            assert isinstance(step, SetAside | EndRun | Split | Quarantine) == (outcome not in free)
            assert not isinstance(step, Split) or texts > 1


@pytest.mark.parametrize("texts", [1, 8])
def test_a_hang_is_never_taken_for_a_text_at_once(texts: int) -> None:
    """Where the config wants one try as well: it may have been the machine that stood still."""
    verdict = of(Outcome.HUNG, **SUSPECT)
    assert isinstance(decide(verdict, History(texts=texts), Budget(attempts=1)), Retry)
    assert not isinstance(decide(verdict, after(Outcome.HUNG, 1, texts=texts), Budget(attempts=1)), Retry)
