"""The next step after an attempt, as a table of verdicts and histories."""

import inspect
import itertools
import re
from typing import Any, get_args

import pytest

from chunkvisor.config.model import RecoveryConfig
from chunkvisor.core.policy import (
    BatchLimit,
    GiveUp,
    History,
    How,
    KnownText,
    OwnText,
    Quarantine,
    Repeated,
    Retry,
    Split,
    Step,
    Stop,
    Wait,
    decide,
)
from chunkvisor.errors import ExitCode, StopReason
from chunkvisor.judge import BACKOFF_MAX_S, OtherProcesses, Verdict, backoff_s
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, Phase
from chunkvisor_worker.contract.taxonomy import OomFigures

RECOVERY = RecoveryConfig()
GIB = 1 << 30


def of(outcome: Outcome, exit_code: int | None = None, **details: Any) -> Verdict:
    """A verdict; unless `details` say otherwise on a batch of one row, so that nothing is left to
    halve.
    """
    return Verdict(
        outcome, "why", exit_code=exit_code, **{"limits": Limits(1), "batch_rows": 1, **details}
    )


def suspect(outcome: Outcome = Outcome.CRASHED, **details: Any) -> Verdict:
    """A fault in a batch, which a text can cause."""
    return of(outcome, **{"row_can_cause": True, "phase": Phase.FORWARD, **details})


RETRIED = (Outcome.CRASHED, Outcome.HUNG, Outcome.BAD_OUTPUT, Outcome.GPU_OOM, Outcome.HOST_OOM)
WAITED = (
    (Outcome.GPU_BUSY, ExitCode.TRY_AGAIN),
    (Outcome.HUB, ExitCode.TRY_AGAIN),
    (Outcome.DISK_FULL, ExitCode.DISK),
)
IN_BATCH: dict[str, Any] = {"limits": Limits(32, 512), "batch_rows": 32}
DOUBTED: dict[str, Any] = {"canary": KnownText(7), "output_has_vectors": True}
PROVEN: dict[str, Any] = {**DOUBTED, "any_text_succeeded": True}
LOADING: dict[str, Any] = {"phase": Phase.MODEL_LOAD}
ON_DEVICE: dict[str, Any] = {"phase": Phase.CUDA_INIT}
CANARY = Retry(0.5, charge=False, counts=Repeated.CANARY)
START = Retry(0.5, charge=False, counts=Repeated.START)

TABLE: dict[str, tuple[Verdict, History, Step]] = {
    **{f"{o}, first": (of(o), History(), Retry(0.5)) for o in RETRIED},
    **{f"{o}, second": (of(o), History(charged_failures=1), Retry(1.0)) for o in RETRIED},
    **{f"{o}, third": (of(o), History(charged_failures=2), GiveUp()) for o in RETRIED},
    "device fault with a code, third": (
        of(Outcome.DEVICE_FAULT, 69),
        History(charged_failures=2),
        Stop(ExitCode.MACHINE),
    ),
    "third chunk given up in a row": (
        of(Outcome.CRASHED),
        History(charged_failures=2, given_up=2),
        Stop(ExitCode.TRY_AGAIN),
    ),
    "twentieth in a row": (
        of(Outcome.CRASHED),
        History(without_progress=19),
        Stop(ExitCode.TRY_AGAIN),
    ),
    "twentieth in a row, nothing encoded": (
        suspect(),
        History(without_progress=19),
        Stop(ExitCode.MACHINE, why=StopReason.NOTHING_ENCODED),
    ),
    "twentieth in a row, looked at alone": (
        suspect(),
        History(without_progress=19, texts=1, **PROVEN),
        Retry(),
    ),
    # Whose fault is it?
    "unproven, no canary": (suspect(), History(), Retry(0.5)),
    "a canary failed": (suspect(), History(**DOUBTED), CANARY),
    "two canaries failed": (
        suspect(),
        History(failed_canaries=1, **DOUBTED),
        Stop(ExitCode.TRY_AGAIN, local=True, why=StopReason.CANARY),
    ),
    "two canaries of another dimension": (
        suspect(Outcome.BAD_OUTPUT),
        History(failed_canaries=1, **DOUBTED),
        Stop(ExitCode.CONFIG, local=True, why=StopReason.CANARY),
    ),
    "three shortest failed": (
        suspect(),
        History(canary=OwnText(0), failed_canaries=2),
        Stop(ExitCode.MACHINE, local=True, why=StopReason.NOTHING_ENCODED),
    ),
    "three shortest refused": (
        suspect(Outcome.BAD_OUTPUT),
        History(canary=OwnText(0), failed_canaries=2),
        Stop(ExitCode.CONFIG, local=True, why=StopReason.NOTHING_ENCODED),
    ),
    "proven, first failure": (suspect(), History(**PROVEN), Retry(0.5)),
    "proven, second failure": (suspect(), History(charged_failures=1, **PROVEN), Split(How.HALVES)),
    "proven, batch known": (
        suspect(),
        History(charged_failures=1, texts=9, in_flight=3, **PROVEN),
        Split(How.SUSPECTS),
    ),
    "proven, one by one": (
        suspect(),
        History(charged_failures=1, texts=9, in_flight=9, singly=True, **PROVEN),
        Split(How.HALVES),
    ),
    "a part is taken apart at once": (
        suspect(),
        History(bisecting=True, texts=4, **PROVEN),
        Split(How.HALVES),
    ),
    "alone, first failure": (suspect(), History(texts=1, **PROVEN), Retry()),
    "alone, second failure": (
        suspect(),
        History(texts=1, charged_failures=1, **PROVEN),
        Quarantine(),
    ),
    "refused by the encoder": (suspect(Outcome.BAD_INPUT), History(texts=1), Quarantine()),
    "one of many refused": (suspect(Outcome.BAD_INPUT), History(), Split(How.HALVES)),
    "some vectors bad": (
        suspect(Outcome.BAD_OUTPUT, bad_rows=(3,)),
        History(texts=9),
        Split(How.BAD),
    ),
    "a bad vector alone": (
        suspect(Outcome.BAD_OUTPUT, bad_rows=(0,)),
        History(texts=1, **PROVEN),
        Quarantine(),
    ),
    # Starts
    "first start": (of(Outcome.CRASHED, **ON_DEVICE), History(), START),
    "third start": (
        of(Outcome.CRASHED, **ON_DEVICE),
        History(failed_starts=2),
        Stop(ExitCode.MACHINE, local=True),
    ),
    "third load": (
        of(Outcome.CRASHED, **LOADING),
        History(failed_starts=2),
        Stop(ExitCode.CONFIG, local=True),
    ),
    "set up wrongly": (of(Outcome.SETUP, **LOADING), History(), Stop(ExitCode.CONFIG, local=True)),
    "set up, and worked": (of(Outcome.SETUP, **LOADING), History(succeeded_before=True), START),
    "waited for a start": (
        of(Outcome.CRASHED, **ON_DEVICE),
        History(failed_starts=2, succeeded_before=True, failing_s=600),
        Stop(ExitCode.MACHINE, local=True),
    ),
    "too large alone": (
        suspect(Outcome.GPU_OOM),
        History(texts=1, charged_failures=1, oom_singletons=3, **PROVEN),
        Quarantine(),
    ),
    "not even its shortest has memory": (
        suspect(Outcome.GPU_OOM),
        History(canary=OwnText(0), shortest_first=True, output_has_vectors=True),
        Retry(0.5, charge=False, counts=Repeated.OOM_SINGLETON),
    ),
    "three of its shortest": (
        suspect(Outcome.GPU_OOM),
        History(canary=OwnText(2), shortest_first=True, output_has_vectors=True, oom_singletons=2),
        GiveUp(),
    ),
    "a shortest that is bad itself": (
        suspect(Outcome.CRASHED),
        History(canary=OwnText(0), shortest_first=True, output_has_vectors=True),
        Retry(0.5),
    ),
    "host memory, alone": (
        suspect(Outcome.HOST_OOM),
        History(texts=1, charged_failures=3, **PROVEN),
        Retry(32.0),
    ),
    # Memory
    "a batch is halved": (
        of(Outcome.GPU_OOM, batch_tokens=320, **IN_BATCH),
        History(),
        Retry(charge=False, limit=BatchLimit(32, 160)),
    ),
    "halved in rows where tokens are not known": (
        of(Outcome.GPU_OOM, limits=Limits(32), batch_rows=20),
        History(),
        Retry(charge=False, limit=BatchLimit(10, None)),
    ),
    "while texts are tokenized": (
        of(Outcome.HOST_OOM, phase=Phase.TOKENIZE, **IN_BATCH),
        History(),
        Retry(0.5),
    ),
    "others came": (of(Outcome.GPU_OOM, **IN_BATCH), History(others=OtherProcesses.NEW), Wait(1.0)),
    "others stay": (
        of(Outcome.GPU_OOM, batch_tokens=320, **IN_BATCH),
        History(others=OtherProcesses.NEW, waited_s=600),
        Retry(charge=False, limit=BatchLimit(32, 160)),
    ),
    "the model is larger than the GPU": (
        of(Outcome.GPU_BUSY, rule="gpu-full-before-work"),
        History(others=OtherProcesses.NONE),
        Stop(ExitCode.MACHINE, local=True, why=StopReason.TOO_LARGE),
    ),
    # The world
    **{f"{o}: wait": (of(o), History(waited_s=50), Wait(6.0)) for o, _ in WAITED},
    "the server says when": (of(Outcome.HUB, wait_s=90.0), History(waited_s=50), Wait(90.0)),
    "the server says never": (of(Outcome.HUB, wait_s=9000.0), History(waited_s=500), Wait(100.0)),
    "the server fails, unproven": (suspect(Outcome.HUB), History(**DOUBTED), Wait(1.0)),
    "the server fails at a text, first look": (suspect(Outcome.HUB), History(**PROVEN), Retry(0.5)),
    "the server fails at a text, second look": (
        suspect(Outcome.HUB),
        History(charged_failures=1, **PROVEN),
        Split(How.HALVES),
    ),
    "the server fails at a text, fourth alone": (
        suspect(Outcome.HUB, wait_s=9.0),
        History(texts=1, charged_failures=3, **PROVEN),
        Retry(9.0),
    ),
    "the server fails at a text, fifth alone": (
        suspect(Outcome.HUB),
        History(texts=1, charged_failures=4, **PROVEN),
        Quarantine(),
    ),
    "the server takes no batch of this size": (
        suspect(Outcome.BAD_INPUT, **IN_BATCH),
        History(),
        Retry(charge=False, limit=BatchLimit(16, 256)),
    ),
    "an error in the code": (suspect(rule="encoder-broken"), History(), CANARY),
    "an error in the code, after vectors": (
        suspect(rule="encoder-broken"),
        History(output_has_vectors=True),
        Retry(0.5),
    ),
    "busy for too long": (
        of(Outcome.GPU_BUSY),
        History(waited_s=600),
        Stop(ExitCode.TRY_AGAIN, local=True),
    ),
    "no hub for too long": (of(Outcome.HUB), History(waited_s=600), Stop(ExitCode.TRY_AGAIN)),
    "full for too long": (
        of(Outcome.DISK_FULL),
        History(waited_s=600),
        Stop(ExitCode.DISK, local=True),
    ),
    "a machine is lost": (of(Outcome.LOST), History(charged_failures=8), Retry()),
    "the tenth machine is lost": (of(Outcome.LOST), History(charged_failures=9), GiveUp()),
    "stopped by us": (
        of(Outcome.INTERRUPTED, asked_for=True),
        History(charged_failures=9),
        Retry(charge=False),
    ),
    "hardware": (of(Outcome.HARDWARE_FAULT), History(), Stop(ExitCode.MACHINE, local=True)),
    "setup in a batch": (of(Outcome.SETUP), History(), Stop(ExitCode.CONFIG, local=True)),
}


@pytest.mark.parametrize(("verdict", "history", "step"), TABLE.values(), ids=TABLE)
def test_step(verdict: Verdict, history: History, step: Step) -> None:
    """Each row of the policy."""
    assert decide(verdict, history, RECOVERY) == step


def test_the_table_in_the_docstring_is_true() -> None:
    """Each line of the table of `decide` names a case, and the step that it has."""
    lines = re.findall(r"^ {4}(\S.*?) {2,}([A-Z]\w+)\b", inspect.getdoc(decide) or "", re.MULTILINE)
    assert {name: type(TABLE[name][2]).__name__ for name, _ in lines} == dict(lines)
    assert set(get_args(Step)) == {type(TABLE[name][2]) for name, _ in lines}


def test_one_attempt_blames_at_the_first_proven_look_but_for_a_hang() -> None:
    """A hang may always have been the machine's."""
    once = RecoveryConfig(attempts=1)
    assert decide(suspect(), History(texts=1, **PROVEN), once) == Quarantine()
    assert decide(suspect(Outcome.HUNG), History(texts=1, **PROVEN), once) == Retry()


def test_a_model_larger_than_its_gpu_by_the_figures_of_its_message() -> None:
    """What the worker held and wanted is more than there is: nobody has to be asked."""
    figures = OomFigures(
        wanted_bytes=2 * GIB,
        total_bytes=8 * GIB,
        free_bytes=0,
        process_bytes=7 * GIB,
        reserved_bytes=0,
    )
    verdict = of(Outcome.GPU_BUSY, rule="gpu-full-before-work", figures=figures)
    assert decide(verdict, History(), RECOVERY) == Stop(
        ExitCode.MACHINE, local=True, why=StopReason.TOO_LARGE
    )


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.COMMITTED])
def test_every_failure_has_a_step(outcome: Outcome) -> None:
    """In whatever phase and after whatever came before; what charges nothing is counted in another
    way.
    """
    for phase, row, good, texts, tries in itertools.product(
        (None, *Phase), (0, 1), (0, 1), (1, 8), (0, 9)
    ):
        verdict, any_text_succeeded = of(outcome, phase=phase, row_can_cause=bool(row)), bool(good)
        canary = KnownText(7) if good else None
        history = History(
            texts=texts,
            charged_failures=tries,
            canary=canary,
            any_text_succeeded=any_text_succeeded,
            output_has_vectors=any_text_succeeded,
        )
        decide(verdict, history, RECOVERY)
        step = decide(suspect(outcome, phase=phase), History(texts=1, canary=canary), RECOVERY)
        if isinstance(step, Retry) and not (step.charge or step.counts) and step.limit is None:
            assert canary is None


def test_pauses_double_up_to_a_minute() -> None:
    """Half a second, one, two, and so on."""
    assert [backoff_s(tries) for tries in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert backoff_s(100) == BACKOFF_MAX_S
