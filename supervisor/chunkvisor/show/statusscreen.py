"""The screen of `chunkvisor status`: state, progress, whether to worry, what to do, in a few plain lines."""

from collections.abc import Mapping
from pathlib import Path

from chunkvisor.assemble.badreasons import reasons_in_words
from chunkvisor.errors import KEPT, ExitCode
from chunkvisor.events.progress import DeviceTimes
from chunkvisor.show.lines import figure, percent, rates, rows_in_words, stage, time_left
from chunkvisor.show.outputstatus import OutputStatus
from chunkvisor.show.snapshot import Snapshot
from chunkvisor.show.status import State, Status
from chunkvisor.units import counted, human_elapsed, human_time, listed

_NEED_A_PERSON = (ExitCode.MACHINE, ExitCode.DISK, ExitCode.CONFIG)
_STOPPED = {
    None: "its process was killed, the machine went down, or the disk was full",
    3: "the next run tries the rows without a vector again",
    130: "it was interrupted (Ctrl-C, SIGINT)",
    143: "it was told to stop (SIGTERM)",
}


def status_screen(
    status: Status, snapshot: Snapshot, begun: Mapping[tuple[str, int], int], ending: int | None, workdir: Path
) -> list[str]:
    """The lines.

    `begun` are the chunks under way when the run ended without a word, with the number of texts saved of each;
    `ending` is its exit code if it had one.
    """
    lines = [str(status.state)]
    if status.state is State.RUNNING:
        lines[0] = f"running ({_process(status)}): {stage(snapshot)}, {human_elapsed(snapshot.elapsed_s)} so far"
        lines[0] += f", {time_left(snapshot)}" if snapshot.eta_s is not None else ""
    lines += [f"  {name}: {_progress(output)}" for name, output in status.outputs.items()]
    if status.state is State.RUNNING:
        lines += _running(snapshot)
    else:
        names = status.device_names
        lines += [_device(names.get(key, f"device {key}"), each) for key, each in status.devices.items() if each.busy_s]
    if status.attempts:
        lines.append("  attempts: " + ", ".join(f"{count:,} {outcome}" for outcome, count in status.attempts.items()))
    lines += [f"  {line}" for line in status.message]
    if status.state is State.RUNNING:
        lines += [f"  {snapshot.health.marked}", f"  to follow it: chunkvisor status --watch {workdir}"]
    elif status.state is State.COMPLETE:
        lines += _complete(lines, status, workdir)
    else:
        lines += [f"  {line}" for line in again(status, begun, ending)]
        if status.state is State.STOPPED:
            why = _STOPPED.get(ending, f"the last run ended with code {ending}")
            why += KEPT if ending is None and (status.anything_done or any(begun.values())) else ""
            lines[0] += f": {why}"
    return lines


def again(status: Status, begun: Mapping[tuple[str, int], int], ending: int | None) -> list[str]:
    """What running again would do; `ending` is the exit code of the last run."""
    chunks = sum(output.chunks for output in status.outputs.values())
    kept = sum(output.chunks_done for output in status.outputs.values())
    first = "do what is said above, then " if ending in _NEED_A_PERSON else ""
    lines = [f"to go on: {first}run the same command again"]
    if status.command:
        lines.append(f"the command: {status.command}")
    if not chunks:
        return lines
    if not (rest := chunks - kept):
        each = "the chunk is done and only has" if chunks == 1 else f"all {chunks:,} chunks are done and only have"
        lines.append(f"{each} to be joined")
    elif kept:
        lines.append(f"{kept:,} of {chunks:,} chunks are done and kept; {counted(rest, 'chunk')} to compute")
    if begun:
        several = len({output for output, _ in begun}) > 1
        names = listed([f"{output} chunk {chunk}" if several else f"chunk {chunk}" for output, chunk in begun], 10)
        saved, them = sum(begun.values()), "it" if len(begun) == 1 else "them"
        kept_texts = counted(saved, "text") if saved else "no text"
        saved_of = f"{kept_texts} of {them} {'are' if saved > 1 else 'is'} saved"
        lines.append(f"{len(begun)} of these had begun ({names}; the first chunk is 0); {saved_of}")
    return lines


def _process(status: Status) -> str:
    """Which process it is; of one on another host, how long ago it last gave a sign of life."""
    if status.silent_s is None:
        return f"pid {status.pid}"
    unsure = f"last sign of life {human_time(status.silent_s)} ago, more cannot be seen from here"
    return f"pid {status.pid} on {status.host}, {unsure}"


def _progress(output: OutputStatus) -> str:
    if not output.rows:
        return "its source has not been read yet"
    share = output.rows_done / output.rows
    text = f"{percent(share)}, {rows_in_words(output)}"
    text += f", {output.chunks_done:,} of {counted(output.chunks, 'chunk')}" if output.chunks else ""
    text += f", {counted(output.quarantined, 'row')} without a vector" if output.quarantined else ""
    return text + (f", {counted(output.truncated, 'row')} cut" if output.truncated else "")


def _running(snapshot: Snapshot) -> list[str]:
    lines = [f"  {', '.join(rates(snapshot))}"] if rates(snapshot) else []
    for device in snapshot.devices:
        if device.workers:
            worker = device.workers[0]
            done = f", {worker.texts_done:,} of {counted(worker.texts, 'text')}" if worker.texts else ""
            lines.append(f"  {device.label}: {worker.output} chunk {worker.chunk}, {worker.phase}{done}")
    return lines


def _device(name: str, device: DeviceTimes) -> str:
    tokens = f", {device.tokens_per_s:,.0f} tokens/s" if device.tokens_per_s else ""
    if device.padding_share is not None:
        tokens += f", {100 * device.padding_share:.1f} % padding"
    idle = 100 * device.idle_s / (device.busy_s + device.idle_s)
    rate = f"{figure(device.texts_per_s or 0)} texts/s{tokens}"
    return f"  {name}: {rate} while computing, idle {idle:.1f} % between chunks"


def _complete(lines: list[str], status: Status, workdir: Path) -> list[str]:
    bad = {name: output.quarantined for name, output in status.outputs.items() if output.quarantined}
    if not bad:
        moved = [output.file for output in status.outputs.values() if output.file]
        return [f"  nothing to do; the {f'file is {moved[0]}' if moved else f'files are in {workdir}'}"]
    count = sum(bad.values())
    lines[0] += f", but {counted(count, 'row')} {'has' if count == 1 else 'have'} no vector"
    reasons = [
        f"  {f'{name}: ' * (len(bad) > 1)}{words}"
        for name in bad
        for words in reasons_in_words(status.outputs[name].reasons, bad[name])
    ]
    lists = listed([status.outputs[name].listed_in for name in bad], 3)
    return [
        *reasons,
        f"  which rows: {lists}",
        f"  to try {'it' if count == 1 else 'them'} again: chunkvisor retry {workdir}, then run again",
        "  see: chunkvisor explain quarantine",
    ]
