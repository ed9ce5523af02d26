"""Has the words about failures.

What each outcome means, what a person can do, and how a run ends.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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
    """What a person wants to know of an end; a sentence or a few each."""

    what: str  # what happened
    then: str  # what the run does by itself
    do: str  # what a person can do


QUARANTINE = "quarantine"
"""The entry about rows without a vector, which is not an outcome of an attempt."""

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
        "process took the "
        "memory, the run waits for it, up to recovery.wait_timeout.",
        "Use a GPU with more memory, a smaller model.max_length, or, in another workdir, the "
        "model.dtype that "
        "`chunkvisor doctor CONFIG` names for the card.",
    ),
    Outcome.DEVICE_FAULT: Meaning(
        "The CUDA context broke: every later call in that process fails too.",
        "A new process tries the rest of the chunk, with CUDA_LAUNCH_BLOCKING=1, so that the log "
        "names the place. A "
        "text that does it again alone is quarantined. A GPU on which all fails while others "
        "succeed is left out.",
        "Read the log of the attempt. `chunkvisor doctor CONFIG` checks driver, torch and GPU. "
        "Look for Xid messages "
        "in the kernel's log (dmesg).",
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
        "The worker died, or raised an error that chunkvisor does not know.",
        "Finished batches are kept. The texts of the last one are tried again, then one by one; a "
        "text that fails "
        "alone twice is quarantined. No text is blamed for a fault before the first batch.",
        "Read the end of the log, and the attempt's fault.json next to it. If it was killed "
        "(SIGKILL): "
        "`chunkvisor explain killed-from-outside`.",
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
        "against NaN. "
        "`chunkvisor doctor CONFIG` tries the model on a few words.",
    ),
    Outcome.DISK_FULL: Meaning(
        "The disk is full or failing.",
        "It waits for space, up to recovery.wait_timeout, then ends with 74.",
        "Free some space on the disk of the workdir, or move it.",
    ),
    Outcome.HUB: Meaning(
        "The model hub, or the server of a plug-in, cannot be reached or asks to wait.",
        "It waits up to recovery.wait_timeout, then ends with 75.",
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
        "distinct texts among "
        "them, with 78.",
        "`<output>.quarantined.jsonl` lists each row with its place, the outcome and the reason. "
        "To try them again: "
        "`chunkvisor retry WORKDIR`, then the same run. If you correct the source: `chunkvisor run "
        "CONFIG --update`.",
    ),
}
"""By outcome, and the quarantine; every outcome has one."""

_OF_RULES = {rule.name: rule.if_ended for rule in RULES if rule.if_ended}


def last_remedy(verdict: Verdict) -> str:
    """What a person can do when the tries are used up.

    A rule's own remedy stands if the rule is about the machine, the config or the world. The others
    say what chunkvisor does next, and there is no next.
    """
    if verdict.on_cpu and verdict.rule in OF_GPUS:
        return (
            "The run is on the CPU: no GPU is at fault. The encoder itself raised a GPU's error; "
            "look at its code."
        )
    of_rule = _OF_RULES.get(verdict.rule, "")
    if verdict.exit_code is not None and verdict.remedy and not of_rule:
        return verdict.remedy
    figures = verdict.figures
    if figures is not None and verdict.others_hold_memory:
        return (
            f"Other processes hold {human_bytes(figures.others_bytes)} of the GPU's "
            f"{human_bytes(figures.total_bytes)}:"
            " `nvidia-smi` shows which. End them, wait for them, or choose another GPU with "
            "`device:`."
        )
    return of_rule or ENTRIES[verdict.outcome].do


def advice_on_row(outcome: str, rule: str) -> str:
    """What a person can look at first if a row has no vector, by how the attempts at it failed.

    `rule` may be "".
    """
    return _OF_RULES.get(rule) or (ENTRIES[outcome].do if outcome in ENTRIES else "")


def end_in_words(
    why: StopReason,
    code: ExitCode,
    verdict: Verdict,
    work: tuple[str, int, int],
    device: str = "",
    *,
    dropped: bool = False,
) -> Halt:
    """Put the end of a run, or of a device that it does without (`dropped`), into words.

    `work` is (output, chunk, texts of the output).
    """
    output, chunk, texts = work
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
            what = f"halted at {output} chunk {chunk}: the model is larger than the GPU's memory"
            because = f"{because}; no other process held much of it"
            remedy = (
                f"Use a GPU with more memory, or a smaller model. Then run the same command "
                f"again{KEPT}."
            )
        case StopReason.CANARY | StopReason.NOTHING_ENCODED if dropped:
            # Not even a text that was encoded before, or not one text at all, short ones tried
            # alone.
            was = "can no longer encode a text that it encoded before"
            was = was if why is StopReason.CANARY else "has encoded no text, not even short ones"
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
                f"texts, each tried "
            )
            what += f"alone, failed too, the last in chunk {chunk}"
            remedy = (
                f"{last_remedy(verdict)} A single text is unlikely to be the cause: look at "
                f"encoder, model and device "
                "(`chunkvisor doctor CONFIG` tries them on a few words). Then run the same command "
                "again."
            )
        case _:
            meaning = ENTRIES[verdict.outcome].what.partition(". ")[0].rstrip(".")
            what = (
                f"halted at {output} chunk {chunk}: {verdict.outcome} "
                f"({meaning[0].lower()}{meaning[1:]})"
            )
            if verdict.before_first_batch:
                phase = f"in phase {verdict.phase}, before the first batch: no text is the cause"
                because = f"{because.rstrip('.')} ({phase})"
    return Halt(code, what, remedy, why=because, see=see)


def too_bad(output: str, place: str, count: int, verdict: Verdict, most: int | None) -> Halt:
    """End a run by texts that fail alone, the last of them from `place`.

    With them there are `count`, and `most` are allowed; None = one is too many.
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
            f"recovery.max_bad_rows is "
        )
        what += f"{most:,}; the last one found is {place}"
        remedy = (
            "That many failures rarely come from the texts: if all fail alike, it is the encoder "
            "or the model. "
            f"{last_remedy(verdict)} Else correct the texts, or raise recovery.max_bad_rows."
        )
    return Halt(ExitCode.CONFIG, what, remedy, why=verdict.reason, see=verdict.see)


def all_bad(output: str, last: BadText | None) -> Halt:
    """End a run in which no text of an output can be encoded."""
    return Halt(
        ExitCode.CONFIG,
        f"halted at {output}: none of its texts can be encoded",
        "Check source and model, and correct what is wrong. Then run the same command again: it "
        "tries all texts "
        "again.",
        why=last.reason if last is not None else "",
        see=str(last.outcome) if last is not None else "",
    )


def damaged_again(output: str, chunk: int) -> Halt:
    """End a run whose committed chunks do not stay as they were committed."""
    return Halt(
        ExitCode.DISK,
        f"chunks of {output} are damaged again and again; the last one is {chunk}",
        "Move the workdir to another disk, then run the same command again.",
        why="the disk or the memory of this machine is failing",
    )


@frozen
class GivenUp:
    """A chunk that exhausted its tries."""

    output: str
    chunk: int
    verdict: Verdict
    log: Path | None
    """The newest of the chunk."""


_NUMBERS = re.compile(r"\d+")  # in which reasons may differ that are the same: of a line, of a text
_REASONS = 3


@frozen
class BadReason:
    """Why rows have no vector."""

    outcome: str
    """What became of the attempts at them."""
    reason: str
    """Of the first of them; of the others it may differ in numbers."""
    rows: int
    """How many."""


def reasons_of(rows: Iterable[Mapping[str, Any]]) -> tuple[BadReason, ...]:
    """Return the reasons of rows as a manifest lists them, the most frequent first."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["outcome"], _NUMBERS.sub("0", row["reason"])), []).append(row)
    alike = sorted(found.values(), key=len, reverse=True)
    return tuple(BadReason(each[0]["outcome"], each[0]["reason"], len(each)) for each in alike)


def reasons_in_words(reasons: Sequence[BadReason], count: int) -> list[str]:
    """Give lines about why so many rows have no vector.

    The reasons may be of the first of them alone.
    """
    rows = sum(each.rows for each in reasons)
    if rows == 1:
        return [f"{each.outcome}: {each.reason}" for each in reasons]
    if rows < count:
        return [f"of the first {rows:,}:", *reasons_in_words(reasons, rows)]
    if len(reasons) == 1:
        return [f"all {rows:,} for the same reason: {reasons[0].outcome}: {reasons[0].reason}"]
    lines = [
        f"{counted(each.rows, 'row')}: {each.outcome}: {each.reason}" for each in reasons[:_REASONS]
    ]
    if others := reasons[_REASONS:]:
        lines.append(
            f"{counted(sum(each.rows for each in others), 'row')}: "
            f"{counted(len(others), 'other reason')}"
        )
    return lines


def with_bad_rows(layout: Layout, manifests: Mapping[str, dict[str, Any]]) -> Halt:
    """The end of a run whose outputs, by name, have rows without a vector."""
    found = [
        (name, each) for name, manifest in manifests.items() for each in manifest["quarantined"]
    ]
    rows = [f"{name} row {each['row']} ({each['place']})" for name, each in found[:10]]
    count = sum(manifest["quarantined_rows"] for manifest in manifests.values())
    more = f" and {count - 10:,} more" if count > 10 else ""
    reasons = reasons_of(row for _, row in found)
    most = reasons[0]
    name = next(
        name
        for name, row in found
        if (row["outcome"], row["reason"]) == (most.outcome, most.reason)
    )
    rule, log = failed_as(layout.output(name).attempts, most.outcome, most.reason)
    if most.outcome == Outcome.BAD_OUTPUT and is_empty(str(log or "")):
        log = None
    advice = advice_on_row(most.outcome, rule)
    them = "it" if count == 1 else "them"
    files = [str(layout.output(name).quarantined) for name in manifests]
    return Halt(
        ExitCode.QUARANTINED,
        f"finished, but {counted(count, 'row')} could not be encoded: {', '.join(rows)}{more}",
        why="\n       ".join(reasons_in_words(reasons, count)),  # below each other
        remedy=f"{', '.join(files[:3])} {'lists' if len(files) == 1 else 'list'} every such row. "
        f"{advice}{' ' * bool(advice)}To try {them} again: chunkvisor retry {layout.workdir}, then "
        f"run again. "
        "If you correct the source: run again with --update.",
        log=log,
        see="quarantine",
    )


def gave_up(given_up: Sequence[GivenUp]) -> Halt:
    """The end of a run in which these chunks have exhausted their tries."""
    # each may be in parts
    chunks = list(dict.fromkeys(f"{each.output} chunk {each.chunk}" for each in given_up))
    last = given_up[-1]
    # What has no room on the GPU, be it long or short, will have none in the next run.
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
    """What went wrong in one run, by its events."""

    _draining: bool = False
    _failures: list[event.FailureEvent] = field(default_factory=list)
    """Since vectors were last saved."""
    _rows: list[str] = field(default_factory=list)  # given up, with their places in the source

    def heed(self, told: event.Event) -> None:
        """Take in what has happened."""
        match told:
            case event.Draining():
                # what is saved from now on does not show that the run would have continued
                self._draining = True
            case event.ChunkCommitted() | event.PartCommitted() | event.BatchesKept() if (
                not self._draining
            ):
                self._failures.clear()
            case event.FailureEvent() if not isinstance(told, event.AttemptInterrupted):
                self._failures.append(told)
            case event.Quarantined():
                self._rows.append(f"{told.output} row {told.row} ({told.place})")

    def added_to(self, halt: Halt) -> Halt:
        """Add the rows that were given up to a Halt, and earlier failures if it has no reason."""
        if halt.code is ExitCode.QUARANTINED:  # it names the rows itself
            return halt
        parts = [halt.why] if halt.why else []
        stopped = (
            halt.code in (ExitCode.TRY_AGAIN, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
            and not halt.why
        )
        if stopped and self._failures:
            last = self._failures[-1]
            count = counted(len(self._failures), "attempt")
            parts.append(
                f"{count} failed since vectors were last saved; the last one: {last.outcome}: "
                f"{last.reason}"
            )
            halt.log, halt.see = Path(last.log) if last.log else halt.log, last.rule or last.outcome
        if self._rows:
            parts.append(f"without a vector so far: {listed(self._rows, 10)}")
        halt.why = "\n       ".join(parts)  # below each other
        return halt
