"""The screen of `chunkvisor status`: state, progress, whether to worry, what to do, in a few plain lines."""

from collections.abc import Sequence
from pathlib import Path

from chunkvisor.events.progress import DeviceTimes
from chunkvisor.observe.progress import percent, rates
from chunkvisor.observe.snapshot import Snapshot
from chunkvisor.observe.status import OutputStatus, SliceStatus, State, Status
from chunkvisor.units import counted, human_time, listed

_MOST_SLICES = 16
_STOPPED = {
    None: "its process was killed, or the machine went down; nothing that is done is lost",
    3: "rows that had no vector are pending again",
    130: "somebody asked it to (SIGINT)",
    143: "somebody asked it to (SIGTERM)",
}


def status_screen(
    status: Status, snapshot: Snapshot, begun: Sequence[tuple[str, int]], ending: int | None, workdir: Path
) -> list[str]:
    """The lines.

    `begun` are the chunks under way when the run ended without a word, `ending` is its exit code if it had one.
    """
    lines = [str(status.state)]
    if status.state is State.RUNNING:
        by = "" if status.slices else f" (pid {status.pid})"
        lines[0] = f"running{by}: {snapshot.doing}, {human_time(snapshot.elapsed_s)} so far"
        lines[0] += f", about {human_time(snapshot.eta_s)} left" if snapshot.eta_s is not None else ""
    lines += [f"  {name}: {_progress(output)}" for name, output in status.outputs.items()]
    if status.state is State.RUNNING:
        lines += _running(snapshot)
    else:
        lines += [_device(number, device) for number, device in status.devices.items() if device.busy_s]
    lines += [f"  {line}" for line in _slices(status.slices)]
    if status.attempts:
        lines.append("  attempts: " + ", ".join(f"{count:,} {outcome}" for outcome, count in status.attempts.items()))
    lines += [f"  {line}" for line in status.message]
    if status.state is State.RUNNING:
        lines += [f"  {snapshot.health.marked}", f"  to look on: chunkvisor status --watch {workdir}"]
    elif status.state is State.COMPLETE:
        lines.append(f"  {_complete(status, workdir)}")
    else:
        lines += [f"  {line}" for line in again(status, begun)]
        if status.state is State.STOPPED:
            why = _STOPPED.get(ending, f"the last run ended with code {ending}")
            lines[0] += f": {'no slice is at work' if status.slices else why}"
    return lines


def again(status: Status, begun: Sequence[tuple[str, int]]) -> list[str]:
    """What running again would do."""
    chunks = sum(output.chunks for output in status.outputs.values())
    kept = sum(output.chunks_done for output in status.outputs.values())
    lines = ["run the same command again to go on; what is done stays done"]
    if status.slices:
        lines = ["run the slices that are left, or the same command without --slice; what is done stays done"]
    if not chunks:
        return lines
    if rest := chunks - kept:
        lines.append(f"it would keep {kept:,} of {chunks:,} chunks and compute the other {rest:,}")
    else:
        lines.append(f"it would keep all {chunks:,} chunks and join them")
    if begun:
        several = len({output for output, _ in begun}) > 1
        names = listed([f"{output} {chunk}" if several else str(chunk) for output, chunk in begun], 10)
        noun = "chunk" if len(begun) == 1 else "chunks"
        lines.append(f"under way at the end, and tried afresh unless their result is there: {noun} {names}")
    return lines


def _slices(slices: Sequence[SliceStatus]) -> list[str]:
    """A line for each, but for those that are done, of which only the names are told."""
    done = [each.slice for each in slices if each.state is State.COMPLETE]
    others = [each for each in slices if each.state is not State.COMPLETE]
    lines = [_slice(each) for each in others[:_MOST_SLICES]]
    if len(others) > _MOST_SLICES:
        lines.append(f"and {len(others) - _MOST_SLICES:,} more slices")
    if done:
        lines.append(f"done with their share: {listed(done, _MOST_SLICES)}")
    return lines


def _slice(each: SliceStatus) -> str:
    where = f" on {each.host}, pid {each.pid}" if each.host else ""
    far = f", {each.chunks_done:,} of its {each.chunks:,} chunks" if each.chunks else ""
    left = f", about {human_time(each.eta_s)} left" if each.eta_s else ""
    return f"slice {each.slice}: {each.state}{where}{far}{left}"


def _progress(output: OutputStatus) -> str:
    if not output.rows:
        return "its source has not been read to the end yet"
    share = output.rows_done / output.rows
    text = f"{percent(share)}, {output.rows_done:,} of {output.rows:,} rows"
    text += f", {output.chunks_done:,} of {output.chunks:,} chunks"
    return text + (f", {output.quarantined:,} quarantined" if output.quarantined else "")


def _running(snapshot: Snapshot) -> list[str]:
    lines = [f"  {', '.join(rates(snapshot))}"] if rates(snapshot) else []
    for device in snapshot.devices:
        if device.workers:
            worker = device.workers[0]
            done = f", {worker.texts_done:,} of {worker.texts:,} texts" if worker.texts else ""
            lines.append(f"  {device.label}: {worker.output} chunk {worker.chunk}, {worker.phase}{done}")
    return lines


def _device(number: str, device: DeviceTimes) -> str:
    tokens = f", {device.tokens_per_s:,.0f} tokens/s" if device.tokens_per_s else ""
    if device.padding_share is not None:
        tokens += f", {100 * device.padding_share:.1f} % padding"
    idle = 100 * device.idle_s / (device.busy_s + device.idle_s)
    return f"  device {number}: {device.texts_per_s or 0:,.0f} texts/s{tokens}, idle {idle:.1f} % between chunks"


def _complete(status: Status, workdir: Path) -> str:
    quarantined = sum(output.quarantined for output in status.outputs.values())
    if not quarantined:
        return f"nothing to do; the files are in {workdir}"
    rows = counted(quarantined, "row")
    return f"{rows} without a vector, listed in the manifests; after a mend: chunkvisor retry {workdir}"
