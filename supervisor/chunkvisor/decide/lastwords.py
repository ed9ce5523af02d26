"""The words with which a run ends because of its workers or its texts.

Pure: the log to open is named, not read.
"""

from dataclasses import dataclass
from pathlib import Path

from chunkvisor.decide.bisect import BadText
from chunkvisor.decide.handbook import ENTRIES
from chunkvisor.decide.remedies import last_remedy
from chunkvisor.decide.verdict import Verdict
from chunkvisor.errors import KEPT, ExitCode, Halt
from chunkvisor.units import counted, human_bytes
from chunkvisor_worker.contract.exits import Outcome


@dataclass(frozen=True, slots=True)
class BadRows:
    """What the config says of texts that cannot be encoded."""

    fail: bool = False
    """End the run at the first one."""
    limit: int = 100
    """More of them, all outputs together, end the run."""


_RARELY_TEXTS = "So many failures rarely come from the texts: if all fail alike, look at the encoder and the model."


def halt_of(code: ExitCode, verdict: Verdict, output: str, chunk: int) -> Halt:
    """The end of a run by this verdict."""
    return Halt(
        code,
        f"halted at {output} chunk {chunk}: {verdict.outcome} ({_brief(verdict)})",
        why=_before_the_first_batch(verdict) if verdict.before_first_batch else verdict.why,
        remedy=f"{last_remedy(verdict)} Then run the same command again{KEPT}.",
        see=verdict.see,
    )


def _brief(verdict: Verdict) -> str:
    return "the encoder's error is that of a GPU" if verdict.gpu_error_on_cpu else ENTRIES[verdict.outcome].brief


def _before_the_first_batch(verdict: Verdict) -> str:
    return f"{verdict.why.rstrip('.')} (in phase {verdict.phase}, before the first batch: no text is the cause)"


def too_large(verdict: Verdict, output: str, chunk: int) -> Halt:
    """The end of a run whose model does not fit on the GPU."""
    figures = verdict.figures
    if figures is None:
        why = f"{verdict.reason}; nvidia-smi shows nobody else on it"
    else:
        memory = figures.allowed_bytes or figures.total_bytes
        why = f"the worker held {human_bytes(figures.ours_bytes)} of the GPU's {human_bytes(memory)} and wanted "
        why += f"{human_bytes(figures.wanted_bytes)} more before its first batch, and nobody else held much of it"
    return Halt(
        ExitCode.MACHINE,
        f"halted at {output} chunk {chunk}: the model is larger than the GPU's memory",
        why=why,
        remedy=f"Use a GPU with more memory, or a smaller model. Then run the same command again{KEPT}.",
        see=verdict.see,
    )


def too_bad(output: str, place: str, count: int, verdict: Verdict, log: Path | None, bad_rows: BadRows) -> Halt:
    """The end of a run by a text that fails alone, from `place`; it is the `count`th."""
    if bad_rows.fail:
        what = f"halted at {output}: a row cannot be encoded: {place}"
        remedy = "Correct or remove the row, or set recovery.on_bad_row: quarantine to go on without its vector."
    else:
        what = f"halted at {output}: {counted(count, 'row')} cannot be encoded, and recovery.max_bad_rows is "
        what += f"{bad_rows.limit:,}; the search for more ended with {place}"
        remedy = f"{_RARELY_TEXTS} If it is the texts, correct them, or raise recovery.max_bad_rows."
    return Halt(ExitCode.CONFIG, what, why=verdict.why, remedy=remedy, log=log, see=verdict.see)


def all_bad(output: str, last: BadText | None) -> Halt:
    """The end of a run in which no text of an output can be encoded."""
    return Halt(
        ExitCode.CONFIG,
        f"halted at {output}: none of its texts can be encoded",
        why=last.reason if last is not None else "",
        see=str(last.outcome) if last is not None else "",
        remedy="check the source and the model, and correct what is wrong; then: chunkvisor retry, and run again",
    )


def nothing_encoded(code: ExitCode, verdict: Verdict, output: str, chunk: int, texts: int) -> Halt:
    """The end of a run in which not one text was ever encoded, short ones neither."""
    look_at = "the encoder and the model" if verdict.on_cpu else "the encoder, the model and the device"
    return Halt(
        code,
        f"halted at {output}: no text has been encoded so far (0 of {texts:,}); short texts, each tried alone, failed "
        f"too, the last in chunk {chunk}",
        why=verdict.why,
        remedy=f"{last_remedy(verdict)} A single text is unlikely to be the cause: look at {look_at} (`chunkvisor "
        "doctor CONFIG` tries them on a few words). Then run the same command again; without a repair it will hardly "
        "get further.",
        see=verdict.see,
    )


def canary_failed(code: ExitCode, verdict: Verdict, output: str) -> Halt:
    """The end of a run in which even a text fails that has its vector already."""
    return Halt(
        code,
        f"halted at {output}: a text that was encoded before cannot be encoded any more",
        why=verdict.why,
        remedy=f"{last_remedy(verdict)} No text is the cause. Then run the same command again.",
        see=verdict.see,
    )


def failing_device(device: str, verdict: Verdict, *, good: bool) -> Halt:
    """The end of a device on which a text fails that was encoded before, or (not `good`) on which none ever was."""
    was = (
        "cannot encode a text any more that was encoded before" if good else "has encoded no text, not even short ones"
    )
    return Halt(
        ExitCode.MACHINE,
        f"{device} {was}",
        why=f"it {was}: {verdict.why}",
        see=verdict.see,
        remedy="check that device with nvidia-smi and `chunkvisor doctor`; then run the same command again",
    )


def broken_gpu(device: str, why: str) -> Halt:
    """The end of a device, by what nvidia-smi says."""
    return Halt(
        ExitCode.MACHINE,
        f"{device} cannot be used any more",
        why=why,
        remedy=f"correct that, then run the same command again{KEPT}",
    )


def busy_gpu(device: str, waited_s: float, why: str) -> Halt:
    """The end of the wait for a device that others hold."""
    return Halt(
        ExitCode.TRY_AGAIN,
        f"{device} stayed busy for {waited_s:.0f} s",
        why=why,
        remedy="end the other process, or wait for it; then run the same command again",
        see=str(Outcome.GPU_BUSY),
    )


def damaged_again(output: str, chunk: int) -> Halt:
    """The end of a run whose committed chunks do not stay as they were committed."""
    return Halt(
        ExitCode.DISK,
        f"chunk after chunk of {output} turns out damaged; the last one is {chunk}",
        why="the disk or the memory of this machine is failing",
        remedy="move the workdir to another disk, then run the same command again",
    )
