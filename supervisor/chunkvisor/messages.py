"""Puts failures into words: what each outcome means, what a person can do, how a run ended."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from chunkvisor.config.choices import Dtype
from chunkvisor.errors import KEPT, ExitCode, Halt, StopReason, is_empty
from chunkvisor.events import event
from chunkvisor.judge import Verdict
from chunkvisor.store.attempt import failed_as
from chunkvisor.store.identity import BadText
from chunkvisor.store.layout import Layout
from chunkvisor.units import counted, human_bytes, listed
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.rules import OF_GPUS, RULES


class Meaning(NamedTuple):
    """What a person wants to know about an outcome; a sentence or a few each."""

    what: str  # what has happened
    then: str  # what the run does about it
    do: str  # what a person can do


QUARANTINE = "quarantine"
"""Name of the entry about rows without a vector, which is not an outcome of attempts."""

ENTRIES: dict[str, Meaning] = {
    Outcome.COMMITTED: Meaning(
        "The attempt's vectors are verified and part of the output.",
        "It continues with the next chunk.",
        "Nothing.",
    ),
    Outcome.GPU_OOM: Meaning(
        "The GPU ran out of memory. The NVML assertion of CUDACachingAllocator.cpp is the same "
        "thing in disguise.",
        "A new process continues with half the batch, and later runs keep that size. If another "
        "process took the memory, the run waits for it, up to recovery.wait_timeout.",
        "Use a GPU with more memory, a smaller model.max_length, or, in another workdir, the "
        "model.dtype that `chunkvisor doctor CONFIG` names for the card.",
    ),
    Outcome.DEVICE_FAULT: Meaning(
        "The CUDA context broke: every later call in that process fails too.",
        "A new process tries the rest of the chunk, with CUDA_LAUNCH_BLOCKING=1, so that the log "
        "names the place. A text that does it again alone is quarantined. A GPU on which all fails "
        "while others succeed is left out.",
        "Read the log of the attempt. `chunkvisor doctor CONFIG` checks driver, torch and GPU. "
        "Look for Xid messages in the kernel's log (dmesg).",
    ),
    Outcome.HARDWARE_FAULT: Meaning(
        "The GPU itself is faulty or gone: it fell off the bus, needs a reset, or has memory "
        "errors.",
        "It continues on the other GPUs. Without another one it ends with 69.",
        "Reset the GPU (`nvidia-smi -r`), reboot, or replace it.",
    ),
    Outcome.GPU_BUSY: Meaning(
        "Another process holds the GPU or its memory.",
        "It waits up to recovery.wait_timeout, then ends with 75.",
        "`nvidia-smi` shows the process. End it, wait, or choose another GPU with `device:`.",
    ),
    Outcome.SETUP: Meaning(
        "The driver, a package, the model or the config is wrong, so that every worker would fail "
        "alike.",
        "It ends with 78 or 69, unless workers have succeeded before: then it tries again.",
        "The end of the log says what is wrong. `chunkvisor doctor CONFIG` repeats a worker's "
        "start without a run.",
    ),
    Outcome.HOST_OOM: Meaning(
        "The machine, or its memory limit, ran out of memory, threads or open files.",
        "The chunk is tried again with half the batch.",
        "Give the machine or the container more memory, set workers.standby to 0, or lower "
        "chunk.size.",
    ),
    Outcome.CRASHED: Meaning(
        "The worker died, or raised an unrecognized error.",
        "Finished batches are kept. The texts of the last one are tried again, then one by one; a "
        "text that fails alone twice is quarantined. No text is blamed for a fault before the "
        "first batch.",
        "Read the end of the log, and the attempt's fault.json next to it. If it was killed "
        "(SIGKILL): `chunkvisor explain killed-from-outside`.",
    ),
    Outcome.HUNG: Meaning(
        "The worker made no progress for recovery.stall_timeout (before its first batch: "
        "recovery.startup_timeout).",
        "It is asked for its stack and killed. The rest is as for `crashed`.",
        "The log has the stack. If the worker was only slow, raise recovery.stall_timeout.",
    ),
    Outcome.BAD_INPUT: Meaning(
        "A text cannot be encoded by this model.",
        "The text is quarantined, and all others are encoded.",
        "Correct the row in the source, or do without its vector.",
    ),
    Outcome.BAD_OUTPUT: Meaning(
        "The encoder gave vectors that are not finite, all zero, or of the wrong shape or type; or "
        "it gave none.",
        "The chunk is tried again; a text whose vector is bad again is quarantined.",
        "Correct your encoder. With a model, model.dtype float32 in another workdir often helps "
        "against NaN. `chunkvisor doctor CONFIG` tries the model on a few words.",
    ),
    Outcome.DISK_FULL: Meaning(
        "The disk is full or failing.",
        "It waits for space, up to recovery.wait_timeout, then ends with 74.",
        "Free some space on the disk of the workdir, or move it.",
    ),
    Outcome.HUB: Meaning(
        "The model hub, or the server of a plug-in, cannot be reached or asks to wait.",
        "It waits up to recovery.wait_timeout, then ends with 75. A text for which a server fails "
        "while it encodes others is quarantined.",
        "Check the network and the token (HF_TOKEN), or name a local folder as model.name.",
    ),
    Outcome.INTERRUPTED: Meaning(
        "The worker was asked to stop, and not by the run.",
        "Finished batches are kept, and the chunk is tried again.",
        "If it was not you: find out what ends the workers, a batch system, a container's limit or "
        "another user.",
    ),
    Outcome.LOST: Meaning(
        "The machine that the worker ran on was lost, or the way to it.",
        "The chunk goes to another machine at once. This spends none of its tries.",
        "Look at the memory of that machine and at its Ray logs.",
    ),
    QUARANTINE: Meaning(
        "Some texts fail every time, even alone. Their rows have no vector: NaN in an array, null "
        "in a table.",
        "All other rows are complete, and it ends with 3; with more than recovery.max_bad_rows "
        "distinct texts among them, with 78.",
        "`<output>.quarantined.jsonl` lists each row with its place, the outcome and the reason. "
        "To try them again: `chunkvisor retry WORKDIR`, then the same run. If you correct the "
        "source: `chunkvisor run CONFIG --update`.",
    ),
}
"""An entry for each outcome, and that about the quarantine."""

_BELOW = "\n       "  # between reasons that stand below each other

_OF_RULES = {rule.name: rule.if_ended for rule in RULES if rule.if_ended}


def last_remedy(verdict: Verdict) -> str:
    """Return what a person can do when a fault has ended the run.

    The remedy of a rule with an exit code is about the machine, the config or a server. Those of
    other rules are about what the run does next, and this one has ended: `if_ended` is for that.
    """
    if verdict.on_cpu and verdict.rule in OF_GPUS:
        return (
            "The run is on the CPU: no GPU is at fault. The encoder itself raised a GPU's error; "
            "look at its code."
        )
    of_rule = _OF_RULES.get(verdict.rule, "")
    if verdict.exit_code and verdict.remedy and not of_rule:
        return verdict.remedy
    figures = verdict.figures
    if figures and verdict.others_hold_memory:
        return (
            f"Other processes hold {human_bytes(figures.others_bytes)} of the GPU's "
            f"{human_bytes(figures.total_bytes)}: `nvidia-smi` shows which. End them, wait for "
            "them, or choose another GPU with `device:`."
        )
    return of_rule or ENTRIES[verdict.outcome].do


def advice_on_bad_rows(outcome: str, rule: str) -> str:
    """Return what a person can look at if a row has no vector; `rule` may be empty."""
    return _OF_RULES.get(rule) or (ENTRIES[outcome].do if outcome in ENTRIES else "")


def halt_in_words(
    why: StopReason,
    code: ExitCode,
    verdict: Verdict,
    work: tuple[str, int, int],
    device: str,
    *,
    dropped: bool,
) -> Halt:
    """Put the end of a run into words; if `dropped`, that it continues without `device`.

    `work` is (output, chunk, distinct texts of the output).
    """
    output, chunk, texts = work
    at_chunk = f"halted at {output} chunk {chunk}"
    because = verdict.reason
    see = verdict.see
    remedy = f"{last_remedy(verdict)} Then run the same command again{KEPT}."
    match why:
        case StopReason.BROKEN:
            what = f"{device} cannot be used any more"
            see = ""
            remedy = f"Repair the device, then run the same command again{KEPT}."
        case StopReason.BUSY:
            what = f"{device} stayed busy for longer than recovery.wait_timeout"
            remedy = "End the other process, or wait for it. Then run the same command again."
        case StopReason.TOO_LARGE:
            what = f"{at_chunk}: the model is larger than the GPU's memory"
            because = f"{because}; no other process held much of it"
            remedy = "Use a GPU with more memory, or a smaller model."
            remedy = f"{remedy} Then run the same command again{KEPT}."
        case StopReason.CANARY | StopReason.NOTHING_ENCODED if dropped:
            was = "has encoded no text, not even short ones"
            if why is StopReason.CANARY:
                was = "can no longer encode a text that it encoded before"
            code = ExitCode.MACHINE
            what = f"{device} {was}"
            because = f"it {was}: {because}"
            remedy = (
                "Check that device with nvidia-smi and `chunkvisor doctor`. Then run the same "
                "command again."
            )
        case StopReason.CANARY:
            what = f"halted at {output}: a text that was encoded before can no longer be encoded"
            remedy = (
                f"{last_remedy(verdict)} No text is the cause. Then run the same command again."
            )
        case StopReason.NOTHING_ENCODED:
            what = (
                f"halted at {output}: no text has been encoded so far (0 of {texts:,}); short "
                f"texts, each tried alone, failed too, the last in chunk {chunk}"
            )
            remedy = (
                f"{last_remedy(verdict)} A single text is unlikely to be the cause: look at "
                "encoder, model and device (`chunkvisor doctor CONFIG` tries them on a few words). "
                "Then run the same command again."
            )
        case _:
            meaning = ENTRIES[verdict.outcome].what.partition(". ")[0].rstrip(".")
            what = f"{at_chunk}: {verdict.outcome} ({meaning[0].lower()}{meaning[1:]})"
            if verdict.before_first_batch:
                phase = f"in phase {verdict.phase}, before the first batch: no text is the cause"
                because = f"{because.rstrip('.')} ({phase})"
    return Halt(code, what, remedy, why=because, see=see)


def too_many_bad_texts(
    output: str, place: str, count: int, verdict: Verdict, most: int | None
) -> Halt:
    """Return the end of a run in which `count` texts fail alone, the last of them at `place`.

    The config allows `most`; None = it allows none (`on_bad_row: fail`).
    """
    if most is None:
        what = f"halted at {output}: a row cannot be encoded: {place}"
        remedy = (
            "Correct or remove the row, or set recovery.on_bad_row: quarantine to continue without "
            "its vector."
        )
    else:
        what = (
            f"halted at {output}: {counted(count, 'text')} cannot be encoded, and "
            f"recovery.max_bad_rows is {most:,}; the last one found is {place}"
        )
        remedy = (
            "That many failures rarely come from the texts: if all fail alike, it is the encoder "
            f"or the model. {last_remedy(verdict)} Else correct the texts, or raise "
            "recovery.max_bad_rows."
        )
    return Halt(ExitCode.CONFIG, what, remedy, why=verdict.reason, see=verdict.see)


def name_dtype(halt: Halt, model: str, dtype: str, better: str) -> None:
    """Add the model and its dtype to the end of a run through bad vectors.

    Most often float16 is too small for the model; `better` is the smallest dtype that is large
    enough and that the device has.
    """
    halt.why = f"{halt.why}; {model} computes in {dtype}"
    if dtype == better:
        better = Dtype.FLOAT32
    if dtype != Dtype.FLOAT32:
        remedy = halt.remedy.replace(f"{ENTRIES[Outcome.BAD_OUTPUT].do} ", "")
        halt.remedy = (
            f"If {dtype} is too small for the model, set model.dtype to {better} and start over "
            f"with --from-scratch. {remedy}"
        )


def all_texts_bad(output: str, last: BadText | None) -> Halt:
    """Return the end of a run in which no text of an output can be encoded."""
    return Halt(
        ExitCode.CONFIG,
        f"halted at {output}: none of its texts can be encoded",
        "Check source and model, and correct what is wrong. Then run the same command again: it "
        "tries all texts again.",
        why=last.reason if last else "",
        see=str(last.outcome) if last else "",
    )


def chunks_damaged_again(output: str, chunk: int) -> Halt:
    """Return the end of a run whose committed chunks become damaged."""
    return Halt(
        ExitCode.DISK,
        f"chunks of {output} are damaged again and again; the last one is {chunk}",
        "Move the workdir to another disk, then run the same command again.",
        why="the disk or the memory of this machine is failing",
    )


@frozen
class GivenUp:
    """A chunk that has used up its tries."""

    output: str
    chunk: int
    verdict: Verdict
    log: Path | None
    """The newest log of the chunk."""


_NUMBERS = re.compile(r"\d+")  # reasons that differ in these alone count as the same
_REASONS = 3  # that are named, at most


@frozen
class BadReason:
    """Why rows have no vector."""

    outcome: str
    """Outcome of the last attempts at them."""
    reason: str
    """The reason of the first; those of the others may differ in numbers."""
    rows: int
    """How many rows have this reason."""


def reasons_of(rows: Iterable[Mapping[str, Any]]) -> tuple[BadReason, ...]:
    """Return the reasons of rows in the form of a manifest, the most frequent reason first."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["outcome"], _NUMBERS.sub("0", row["reason"])), []).append(row)
    alike = sorted(found.values(), key=len, reverse=True)
    return tuple(BadReason(each[0]["outcome"], each[0]["reason"], len(each)) for each in alike)


def reasons_in_words(reasons: Sequence[BadReason], count: int) -> list[str]:
    """Say in lines why `count` rows have no vector; `reasons` may be of the first rows alone."""
    rows = sum(each.rows for each in reasons)
    if rows == 1:
        return [f"{each.outcome}: {each.reason}" for each in reasons]
    if rows < count:
        return [f"of the first {rows:,}:", *reasons_in_words(reasons, rows)]
    if len(reasons) == 1:
        return [f"all {rows:,} for the same reason: {reasons[0].outcome}: {reasons[0].reason}"]
    first = reasons[:_REASONS]
    others = reasons[_REASONS:]
    lines = [f"{counted(each.rows, 'row')}: {each.outcome}: {each.reason}" for each in first]
    if others:
        count = sum(each.rows for each in others)
        lines.append(f"{counted(count, 'row')}: {counted(len(others), 'other reason')}")
    return lines


def finished_with_bad_rows(layout: Layout, manifests: Mapping[str, dict[str, Any]]) -> Halt:
    """Return the end of a run whose outputs, by name, have rows without a vector."""
    count = sum(manifest["quarantined_rows"] for manifest in manifests.values())
    found = list[tuple[str, Mapping[str, Any]]]()
    for name, manifest in manifests.items():
        found += [(name, row) for row in manifest["quarantined"]]
    rows = [f"{name} row {row['row']} ({row['place']})" for name, row in found[:10]]
    more = f" and {count - 10:,} more" if count > 10 else ""
    reasons = reasons_of(row for _, row in found)
    most = (reasons[0].outcome, reasons[0].reason)
    name = next(name for name, row in found if (row["outcome"], row["reason"]) == most)
    rule, log = failed_as(layout.output(name).attempts, *most)
    if most[0] == Outcome.BAD_OUTPUT and is_empty(str(log or "")):
        log = None
    files = [str(layout.output(name).quarantined) for name in manifests]
    remedies = [
        f"{', '.join(files[:3])} {'lists' if len(files) == 1 else 'list'} every such row.",
        advice_on_bad_rows(most[0], rule),
        f"To try {'it' if count == 1 else 'them'} again: chunkvisor retry {layout.workdir}, then "
        "run again. If you correct the source: run again with --update.",
    ]
    return Halt(
        ExitCode.QUARANTINED,
        f"finished, but {counted(count, 'row')} could not be encoded: {', '.join(rows)}{more}",
        " ".join(filter(None, remedies)),
        why=_BELOW.join(reasons_in_words(reasons, count)),
        log=log,
        see=QUARANTINE,
    )


def chunks_given_up(given_up: Sequence[GivenUp]) -> Halt:
    """Return the end of a run in which these chunks have used up their tries."""
    # A chunk stands there once for each of its pieces that was given up.
    chunks = list(dict.fromkeys(f"{each.output} chunk {each.chunk}" for each in given_up))
    last = given_up[-1]
    # What lacks the GPU's memory will lack it in the next run as well.
    lacks_memory = all(each.verdict.outcome is Outcome.GPU_OOM for each in given_up)
    return Halt(
        ExitCode.MACHINE if lacks_memory else ExitCode.TRY_AGAIN,
        f"not complete: {listed(chunks, 10)} failed in every try; everything else is done",
        f"{last_remedy(last.verdict)} Then run the same command again.",
        why=last.verdict.reason,
        log=last.log,
        see=last.verdict.see,
    )


@dataclass(slots=True)
class Troubles:
    """What went wrong in one run, gathered from its events for the message at its end."""

    _draining: bool = False
    _failures: list[event.FailureEvent] = field(default_factory=list)
    """Those since vectors were last saved."""
    _rows: list[str] = field(default_factory=list)  # given up, with their places in the source

    def observe(self, told: event.Event) -> None:
        """Take in an event."""
        match told:
            case event.Draining():
                # A run that drains starts nothing new: vectors that are saved now do not show that
                # what failed works again.
                self._draining = True
            case event.ChunkCommitted() | event.PartCommitted() | event.BatchesKept() if (
                not self._draining
            ):
                self._failures.clear()
            case event.FailureEvent() if not isinstance(told, event.AttemptInterrupted):
                self._failures.append(told)
            case event.Quarantined():
                self._rows.append(f"{told.output} row {told.row} ({told.place})")

    def add_reasons_to(self, halt: Halt) -> Halt:
        """Add the quarantined rows to the Halt, and the last failures if it gives no reason."""
        if halt.code is ExitCode.QUARANTINED:  # it names the rows itself
            return halt
        parts = [halt.why]
        stopped = halt.code in (ExitCode.TRY_AGAIN, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
        if stopped and self._failures and not halt.why:
            last = self._failures[-1]
            parts.append(
                f"{counted(len(self._failures), 'attempt')} failed since vectors were last saved; "
                f"the last one: {last.outcome}: {last.reason}"
            )
            halt.see = last.rule or last.outcome
            if last.log:
                halt.log = Path(last.log)
        if self._rows:
            parts.append(f"without a vector so far: {listed(self._rows, 10)}")
        halt.why = _BELOW.join(filter(None, parts))
        return halt
