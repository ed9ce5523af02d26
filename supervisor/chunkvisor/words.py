"""Has the words about failures: what each outcome means, what a person can do, and how a run ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkvisor.errors import KEPT, ExitCode, Halt, is_empty
from chunkvisor.events.event import (
    AttemptInterrupted,
    BatchesKept,
    ChunkCommitted,
    Draining,
    Event,
    FailureEvent,
    Go,
    OutputOpened,
    PartCommitted,
    Quarantined,
)
from chunkvisor.judge import Verdict
from chunkvisor.store.attempt import failed_as, last_log
from chunkvisor.store.identity import BadText
from chunkvisor.store.layout import Layout
from chunkvisor.units import counted, human_bytes, human_time, listed
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.rules import RULES


@dataclass(frozen=True, slots=True)
class Entry:
    """What a person wants to know of an end; each but the first a sentence or a few."""

    brief: str
    """What happened, in a few words."""
    what: str
    """What happened."""
    then: str
    """What the run does by itself."""
    do: str
    """What a person can do."""


QUARANTINE = "quarantine"
"""The entry about rows without a vector, which is no outcome of an attempt."""

ENTRIES: dict[str, Entry] = {
    Outcome.COMMITTED: Entry(
        "it is done",
        "The attempt's vectors are verified and part of the output.",
        "It continues with the next chunk.",
        "Nothing.",
    ),
    Outcome.GPU_OOM: Entry(
        "the GPU ran out of memory",
        "The GPU ran out of memory. The NVML assertion of CUDACachingAllocator.cpp is the same thing in disguise.",
        "A new process continues at the batch that did not fit, with half of it. The smaller size is kept for texts "
        "of that length and more, in this run and in later ones. Where another process came and took the memory, "
        "chunkvisor waits for it, up to recovery.wait_timeout, and makes no batch smaller.",
        "Nothing, as long as the run continues. If it ended the run: use a GPU with more memory, a smaller "
        "model.max_length, or, in another workdir, the model.dtype that `chunkvisor doctor CONFIG` names for the card.",
    ),
    Outcome.DEVICE_FAULT: Entry(
        "the GPU failed in every new process",
        "The CUDA context broke: every later call in that process fails as well.",
        "A new process tries the rest of the chunk, with CUDA_LAUNCH_BLOCKING=1, so that the log names the place. A "
        "text that does it again alone is quarantined. A GPU on which all fails while others succeed is left out.",
        "Read the log of the attempt. `chunkvisor doctor CONFIG` checks driver, torch and GPU. Look for Xid messages "
        "in the kernel's log (dmesg).",
    ),
    Outcome.HARDWARE_FAULT: Entry(
        "the GPU itself is faulty or gone",
        "The GPU itself is faulty or gone: it fell off the bus, needs a reset, or has memory errors.",
        "The GPU is left out, and the run continues on the others. Without another one it ends with 69.",
        "Reset the GPU (`nvidia-smi -r`), reboot, or replace it. Then run the same command again.",
    ),
    Outcome.GPU_BUSY: Entry(
        "another process holds the GPU",
        "Another process holds the GPU or its memory.",
        "The run waits up to recovery.wait_timeout, and continues as soon as there is room. Otherwise it ends with 75.",
        "See who it is with `nvidia-smi`. End that process, wait, or choose another GPU with `device:`.",
    ),
    Outcome.SETUP: Entry(
        "every worker would fail alike",
        "The driver, a package, the model or the config is wrong, so that every worker would fail alike.",
        "The run ends with 78 or 69, unless workers have succeeded before: then it tries again.",
        "Do what the last lines of the run say. `chunkvisor doctor CONFIG` repeats a worker's start without a run.",
    ),
    Outcome.HOST_OOM: Entry(
        "the machine ran out of memory, threads or open files",
        "The machine, or its memory limit, ran out of memory, threads or open files.",
        "The chunk is tried again with half the batch.",
        "Give the machine or the container more memory, set workers.standby to 0, or lower chunk.size.",
    ),
    Outcome.CRASHED: Entry(
        "the worker died",
        "The worker died, or raised an error that chunkvisor does not know.",
        "Finished batches are kept. The texts under way are tried again, then one by one; a text that fails alone "
        "twice is quarantined. A fault before the first batch is blamed on no text.",
        "Read the log: its last lines, and the attempt's fault.json next to it, say where. If it was killed (SIGKILL): "
        "`chunkvisor explain killed-from-outside`.",
    ),
    Outcome.HUNG: Entry(
        "the worker made no progress",
        "The worker made no progress for recovery.stall_timeout (before its first batch: recovery.startup_timeout).",
        "It is asked for its stack and killed. Finished batches are kept, and the texts under way are tried again; a "
        "text that hangs alone twice is quarantined.",
        "Read the log: it has the stack. If the worker was only slow, raise recovery.stall_timeout.",
    ),
    Outcome.BAD_INPUT: Entry(
        "a text cannot be encoded",
        "A text cannot be encoded by this model.",
        "The text is quarantined, and all others are encoded.",
        "Correct the row in the source, or do without its vector.",
    ),
    Outcome.BAD_OUTPUT: Entry(
        "the vectors cannot be used",
        "The encoder gave vectors that are not finite, all zero, or of the wrong shape or type; or it gave none.",
        "They are not used. The chunk is tried again; a text whose vector is bad again is quarantined.",
        "Correct your encoder. With a model, model.dtype float32 in another workdir often helps against NaN. "
        "`chunkvisor doctor CONFIG` tries the model on a few words.",
    ),
    Outcome.DISK_FULL: Entry(
        "the disk is full or failing",
        "The disk is full or failing.",
        "The run waits for space, up to recovery.wait_timeout. Then it ends with 74; finished work is kept.",
        "Free some space, or move the workdir. Then run the same command again.",
    ),
    Outcome.HUB: Entry(
        "the model hub cannot be reached",
        "The model hub cannot be reached, or asks to wait.",
        "The run waits up to recovery.wait_timeout, then ends with 75.",
        "Check the network and the token (HF_TOKEN), or name a local folder as model.name. Once a model is "
        "downloaded, later runs in the same workdir do not ask the hub.",
    ),
    Outcome.INTERRUPTED: Entry(
        "somebody else ended the worker",
        "The worker was asked to stop, and not by the run.",
        "Finished batches are kept. If the run itself was stopped, run it again to continue; otherwise the chunk "
        "is tried again.",
        "Run the same command again. If it was not you: look at the batch system and the container's limits.",
    ),
    Outcome.LOST: Entry(
        "the worker's machine was lost",
        "The machine that the worker ran on was lost, or the way to it.",
        "The chunk goes to another machine at once. This spends none of its tries.",
        "Look at the memory of that machine and at its Ray logs.",
    ),
    QUARANTINE: Entry(
        "rows have no vector",
        "Some texts fail every time, even alone. Their rows have no vector: NaN in a float file, zeros in int8 and "
        "ubinary, null in parquet.",
        "All other rows are complete, and the run ends with 3. With more than recovery.max_bad_rows of them, it ends "
        "with 78: that is rarely the texts' fault.",
        "Once the output is complete, its manifest (`<output>.json`) lists each row with its "
        "place in the source, the outcome and the reason. Until then `report.html` lists those found so far. To "
        "try them again, with other packages for instance: `chunkvisor retry WORKDIR`, then the same run. If you "
        "correct the source: `chunkvisor run CONFIG --update`.",
    ),
}
"""By outcome, and the quarantine; every outcome has one."""


def last_remedy(verdict: Verdict) -> str:
    """What a person can do when the tries are used up.

    A rule's own remedy stands where the rule is about the machine, the config or the world. The others say what
    chunkvisor does next, and there is no next.
    """
    if verdict.gpu_error_on_cpu:
        at = f": {verdict.raised_at}" if verdict.raised_at else ""
        return (
            "The run is on the CPU (`device: cpu`), so no GPU and no driver is at fault; leave them alone. The encoder "
            f"raised an error that belongs to a GPU. Look at its code{at}."
        )
    of_rule = _OF_RULES.get(verdict.rule, "")
    if verdict.exit_code is not None and verdict.remedy and not of_rule:
        return verdict.remedy
    figures = verdict.figures
    if figures is not None and verdict.others_hold_memory:
        return (
            f"Other processes hold {human_bytes(figures.others_bytes)} of the GPU's {human_bytes(figures.total_bytes)}:"
            " `nvidia-smi` shows which. End them, wait for them, or choose another GPU with `device:`."
        )
    return of_rule or _LAST_REMEDIES.get(verdict.outcome, "Read the log.")


def advice_on_row(outcome: str, rule: str) -> str:
    """What a person can look at first where a row has no vector, by how the attempts at it failed; `rule` may be ""."""
    by_outcome = _LAST_REMEDIES.get(Outcome(outcome), "") if outcome in list(Outcome) else ""
    return _OF_RULES.get(rule, by_outcome)


_OF_RULES = {rule.name: rule.if_ended for rule in RULES if rule.if_ended}

_LAST_REMEDIES = {
    Outcome.GPU_OOM: "Use a GPU with more memory, or a smaller model.max_length.",
    Outcome.HOST_OOM: "Give the machine or its container more memory, or set workers.standby to 0.",
    Outcome.DEVICE_FAULT: "Read the log; `chunkvisor doctor CONFIG` checks driver, torch and GPU.",
    Outcome.CRASHED: "Read the log: its last lines say where.",
    Outcome.HUNG: "Read the log: it has the stack. If it was only slow, raise recovery.stall_timeout; to find out, run "
    "it with --max-rows 5 --set recovery.stall_timeout=30m.",
    Outcome.BAD_INPUT: "Correct the row in the source.",
    Outcome.BAD_OUTPUT: "Correct your encoder, or check the model with `chunkvisor doctor CONFIG`: "
    "model.dtype float32, in another workdir, often helps against NaN.",
    Outcome.INTERRUPTED: "Find out who ends the workers: a batch system, a container limit, another person.",
    Outcome.LOST: "Find out why the machines that worked on it were lost: look at their memory and their Ray logs.",
    Outcome.DISK_FULL: "Free some space on the disk of the workdir.",
    Outcome.GPU_BUSY: "End the other process on the GPU, or wait for it.",
    Outcome.HUB: "Check the network, or name a local model folder.",
}


@dataclass(frozen=True, slots=True)
class BadRows:
    """What the config says of texts that cannot be encoded."""

    fail: bool = False
    """End the run at the first one."""
    limit: int = 100
    """More of them, all outputs together, end the run."""


def end_in_words(
    why: str,
    code: ExitCode,
    verdict: Verdict,
    work: tuple[str, int, int],
    device: str = "",
    *,
    dropped: bool = False,
    waited_s: float = 0.0,
) -> Halt:
    """Put the end of a run, or of a device that it does without (`dropped`), into words.

    `why` is as in `messages.Halted`; `work` is (output, chunk, texts of the output).
    """
    output, chunk, texts = work
    what, because, see = f"halted at {output} chunk {chunk}: ", verdict.why, verdict.see
    remedy = f"{last_remedy(verdict)} Then run the same command again{KEPT}."
    match why:
        case "broken":
            what, because, see = f"{device} cannot be used any more", verdict.reason, ""
            remedy = f"correct that, then run the same command again{KEPT}"
        case "busy":
            what, because = f"{device} stayed busy for {waited_s:.0f} s", verdict.reason
            remedy = "end the other process, or wait for it; then run the same command again"
        case "too large":
            what += "the model is larger than the GPU's memory"
            because = f"{verdict.reason}; nvidia-smi shows no other process on it"
            if (figures := verdict.figures) is not None:
                memory = human_bytes(figures.allowed_bytes or figures.total_bytes)
                because = f"the worker held {human_bytes(figures.ours_bytes)} of the GPU's {memory} and wanted "
                because += (
                    f"{human_bytes(figures.wanted_bytes)} more before its first batch; no other process held much"
                )
            remedy = f"Use a GPU with more memory, or a smaller model. Then run the same command again{KEPT}."
        case "canary" | "first" if dropped:
            # Not even a text that was encoded before, or (first) not one text, short ones tried alone.
            was = "cannot encode a text any more that was encoded before"
            was = was if why == "canary" else "has encoded no text, not even short ones"
            code, what, because = ExitCode.MACHINE, f"{device} {was}", f"it {was}: {verdict.why}"
            remedy = "check that device with nvidia-smi and `chunkvisor doctor`; then run the same command again"
        case "canary":
            what = f"halted at {output}: a text that was encoded before cannot be encoded any more"
            remedy = f"{last_remedy(verdict)} No text is the cause. Then run the same command again."
        case "first":
            look_at = "the encoder and the model" if verdict.on_cpu else "the encoder, the model and the device"
            what = (
                f"halted at {output}: no text has been encoded so far (0 of {texts:,}); short texts, each tried alone, "
            )
            what += f"failed too, the last in chunk {chunk}"
            remedy = (
                f"{last_remedy(verdict)} A single text is unlikely to be the cause: look at {look_at} (`chunkvisor "
                "doctor CONFIG` tries them on a few words). Then run the same command again; without a repair it will "
                "hardly get further."
            )
        case _:
            of_gpu = "the encoder's error is that of a GPU"
            what += f"{verdict.outcome} ({of_gpu if verdict.gpu_error_on_cpu else ENTRIES[verdict.outcome].brief})"
            if verdict.before_first_batch:
                because = (
                    f"{because.rstrip('.')} (in phase {verdict.phase}, before the first batch: no text is the cause)"
                )
    return Halt(code, what, why=because, remedy=remedy, see=see)


def too_bad(output: str, place: str, count: int, verdict: Verdict, log: Path | None, bad_rows: BadRows) -> Halt:
    """End a run by a text that fails alone, from `place`; it is the `count`th."""
    if bad_rows.fail:
        what = f"halted at {output}: a row cannot be encoded: {place}"
        remedy = "Correct or remove the row, or set recovery.on_bad_row: quarantine to go on without its vector."
    else:
        what = f"halted at {output}: {counted(count, 'row')} cannot be encoded, and recovery.max_bad_rows is "
        what += f"{bad_rows.limit:,}; the search for more ended with {place}"
        remedy = (
            "So many failures rarely come from the texts: if all fail alike, look at the encoder and the model. If it "
            "is the texts, correct them, or raise recovery.max_bad_rows."
        )
    return Halt(ExitCode.CONFIG, what, why=verdict.why, remedy=remedy, log=log, see=verdict.see)


def all_bad(output: str, last: BadText | None) -> Halt:
    """End a run in which no text of an output can be encoded."""
    return Halt(
        ExitCode.CONFIG,
        f"halted at {output}: none of its texts can be encoded",
        why=last.reason if last is not None else "",
        see=str(last.outcome) if last is not None else "",
        remedy="check the source and the model, and correct what is wrong; then: chunkvisor retry, and run again",
    )


def damaged_again(output: str, chunk: int) -> Halt:
    """End a run whose committed chunks do not stay as they were committed."""
    return Halt(
        ExitCode.DISK,
        f"chunk after chunk of {output} turns out damaged; the last one is {chunk}",
        why="the disk or the memory of this machine is failing",
        remedy="move the workdir to another disk, then run the same command again",
    )


_SHOWN, _FILES = 10, 3


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A chunk that exhausted its tries."""

    output: str
    chunk: int
    verdict: Verdict
    files: AttemptFiles


def with_bad_rows(layout: Layout, manifests: Mapping[str, dict[str, Any]]) -> Halt:
    """The end of a run whose outputs, by name, have rows without a vector."""
    from chunkvisor.assemble.badrows import count_of, reasons_in_words, reasons_of, where_listed
    from chunkvisor.assemble.forms import (
        without_vectors,  # numpy with them: the words are imported before the model loads
    )

    listed = [(name, each) for name, manifest in manifests.items() for each in manifest["quarantined"]]
    rows = [f"{name} row {each['row']} ({each['place']})" for name, each in listed[:_SHOWN]]
    count = sum(map(count_of, manifests.values()))
    more = f" and {count - _SHOWN:,} more" if count > _SHOWN else ""
    reasons = reasons_of(row for _, row in listed)
    most = reasons[0]
    name = next(name for name, row in listed if (row["outcome"], row["reason"]) == (most.outcome, most.reason))
    rule, log = failed_as(layout.output(name).attempts, most.outcome, most.reason)
    if most.outcome == Outcome.BAD_OUTPUT and is_empty(str(log or "")):
        log = None
    advice, them = advice_on_row(most.outcome, rule), "it" if count == 1 else "them"
    files = [where_listed(layout.output(name), manifest) for name, manifest in manifests.items()]
    return Halt(
        ExitCode.QUARANTINED,
        f"finished, but {counted(count, 'row')} could not be encoded and {without_vectors(count, manifests)}: "
        + ", ".join(rows)
        + more,
        why="\n       ".join(reasons_in_words(reasons, count)),  # below each other
        remedy=f"{', '.join(map(str, files[:_FILES]))} {'lists' if len(files) == 1 else 'list'} every such row. "
        f"{advice}{' ' * bool(advice)}To try {them} again: chunkvisor retry {layout.workdir}, then run again. "
        "If you correct the source: run again with --update",
        log=log,
        see="quarantine",
    )


def gave_up(given_up: Sequence[GivenUp]) -> Halt:
    """The end of a run in which these chunks have exhausted their tries."""
    chunks = list(dict.fromkeys(f"{each.output} chunk {each.chunk}" for each in given_up))  # each may be in parts
    names = ", ".join(chunks[:10])
    more = f" and {len(chunks) - 10} more" if len(chunks) > 10 else ""
    last = given_up[-1]
    # What has no room on the GPU, be it long or short, will have none in the next run.
    lacks_memory = all(each.verdict.outcome is Outcome.GPU_OOM for each in given_up)
    return Halt(
        ExitCode.MACHINE if lacks_memory else ExitCode.TRY_AGAIN,
        f"not complete: {names}{more} failed in every try; everything else is done",
        why=last.verdict.why,
        remedy=f"{last_remedy(last.verdict)} Then run the same command again.",
        log=last_log(last.files),
        see=last.verdict.see,
    )


_STOPPED = (ExitCode.TRY_AGAIN, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
_NAMED = 10
"""Rows, at most."""


@dataclass(slots=True)
class Troubles:
    """Of one run, by its events."""

    _since_s: float | None = None
    """When it last got on; None = it has not begun."""
    _draining: bool = False
    _failures: dict[tuple[str, str], tuple[int, FailureEvent]] = field(default_factory=dict)
    """Since then, by outcome and rule: how many, and the last of them."""
    _rows: list[str] = field(default_factory=list)
    """Given up, with their places in the source."""
    _rows_before: dict[str, int] = field(default_factory=dict)
    """By output, how many rows earlier runs gave up."""

    def heed(self, event: Event, now_s: float) -> None:
        """Take in what has happened; `now_s` in seconds, by any clock."""
        match event:
            case Draining():
                self._draining = True  # what is finished or saved now is no sign that it would have got on
            case Go() if self._since_s is None:
                self._since_s = now_s
            case ChunkCommitted() | PartCommitted() | BatchesKept() if not self._draining:
                self._since_s = now_s
                self._failures.clear()
            case AttemptInterrupted():
                pass
            case FailureEvent():
                key = event.outcome, event.rule
                count, _ = self._failures.get(key, (0, event))
                self._failures[key] = count + 1, event
            case OutputOpened():
                self._rows_before.setdefault(event.output, event.quarantined)  # opened again, it has ours as well
            case Quarantined():
                self._rows.append(f"{event.output} row {event.row} ({event.place})")

    def added_to(self, halt: Halt, now_s: float) -> Halt:
        """The Halt, with the troubles as its reason where a run was stopped amid them, and the rows that it gave up."""
        if halt.code is ExitCode.QUARANTINED:  # it names them itself
            return halt
        parts, log, see = [halt.why] if halt.why else [], halt.log, halt.see
        stopped = halt.code in _STOPPED and not halt.why
        if stopped and self._failures and self._since_s is not None:
            most, last = max(self._failures.values(), key=lambda each: each[0])
            count = sum(number for number, _ in self._failures.values())
            lasts_s = now_s - self._since_s
            since = f"in the last {human_time(lasts_s)} nothing was encoded, and " if lasts_s >= 1 else ""
            parts.append(
                f"{since}{counted(count, 'attempt')} failed{f', {most:,} of them so' if most < count else ''}: "
                f"{last.outcome}: {last.reason}"
            )
            log, see = Path(last.log) if last.log else log, last.rule or last.outcome
        if rows := self._rows_in_words():
            parts.append(rows)
        halt.why, halt.log, halt.see = "\n       ".join(parts), log, see  # below each other
        return halt

    def _rows_in_words(self) -> str:
        """Which rows have no vector, as far as they have been found; empty where there are none."""
        before = sum(self._rows_before.values())
        earlier = f"{counted(before, 'row')} in earlier runs" if before else ""
        found = "; ".join(filter(None, (listed(self._rows, _NAMED) if self._rows else "", earlier)))
        return f"without a vector so far: {found}" if found else ""
