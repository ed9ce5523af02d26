"""Draws a snapshot as lines of a terminal, in the room that it is given."""

from dataclasses import dataclass

from rich.text import Text

from chunkvisor.events.event import Severity, plain
from chunkvisor.events.stages import COMPUTING
from chunkvisor.show.progress import percent, rates, rows_in_words, stage, time_left
from chunkvisor.show.sensors import GpuReading
from chunkvisor.show.snapshot import DeviceState, OutputState, Snapshot, WorkerState
from chunkvisor.units import counted, human_bytes, human_elapsed, wrapped

_STYLES = {Severity.NEWS: "green", Severity.CARE: "yellow", Severity.LOSS: "red"}
_MIN_BAR, _MAX_BAR = 8, 40
_GAP = "  "
_WHY_TOKENS = " (longest texts come first)"
_MOST_FOOT = 4
"""Lines."""
_AIRY = 12
"""With as many lines as this, one stays empty between the news and the view."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the terminal has to offer."""

    columns: int
    lines: int
    ascii_only: bool = False


def view(snapshot: Snapshot, room: Room) -> list[Text]:
    """Lines that fit: none is wider than `columns`, and there are no more than `lines`.

    Where room is short, workers prepared ahead go first, then single outputs, then devices.
    """
    head = [Text()] * (room.lines >= _AIRY) + [_head(snapshot, room)]
    if snapshot.rows:
        head += [_overall(snapshot, room), _numbers(snapshot)]
    foot = _foot(snapshot, room)
    free = room.lines - len(head) - len(foot)
    outputs = [_output(output, room) for output in snapshot.outputs] if len(snapshot.outputs) > 1 else []
    devices = [_device(device, snapshot, room) for device in snapshot.devices]
    ahead = [_ahead(device, snapshot) for device in snapshot.devices]
    body = _body(outputs, devices, ahead, free)
    lines = [*head, *body, *foot][: max(1, room.lines)]
    for line in lines:
        line.no_wrap = True
        line.truncate(room.columns, overflow="ellipsis" if not room.ascii_only else "crop")
    return lines


def _foot(snapshot: Snapshot, room: Room) -> list[Text]:
    """Whether to worry; what is waited for, and what to do about it, in several lines where there is room."""
    words, style = plain(snapshot.health.marked), _STYLES[snapshot.health.severity]
    if room.lines < _AIRY:
        return [Text(words, style)]
    return [Text(line, style) for line in wrapped(words, room.columns, len("note: ")).splitlines()[:_MOST_FOOT]]


def _body(outputs: list[Text], devices: list[Text], ahead: list[Text | None], free: int) -> list[Text]:
    """As much as fits of outputs, devices and what is prepared ahead on each."""
    if len(outputs) + len(devices) + sum(line is not None for line in ahead) <= free:
        pairs = zip(devices, ahead, strict=True)
        return [*outputs, *(line for pair in pairs for line in pair if line is not None)]
    if len(outputs) + len(devices) <= free:
        return [*outputs, *devices]
    if len(devices) <= free:
        return devices
    shown = max(0, free - 1)
    return [
        *devices[:shown],
        *([Text(f"and {counted(len(devices) - shown, 'more device')}", "dim")] if free > 0 else []),
    ]


def _head(snapshot: Snapshot, room: Room) -> Text:
    line = Text(plain(stage(snapshot)), "bold")
    line.append(f", {human_elapsed(snapshot.elapsed_s)} so far", "not bold")
    if snapshot.eta_s is not None:
        line.append(f", {time_left(snapshot)}", "bold")
        if snapshot.by_tokens and line.cell_len + len(_WHY_TOKENS) <= room.columns:
            line.append(_WHY_TOKENS, "not bold dim")
    elif snapshot.doing == COMPUTING and snapshot.chunks and not snapshot.chunks_here:
        line.append(", estimating the time left", "not bold dim")
    return line


def _overall(snapshot: Snapshot, room: Room) -> Text:
    share = percent(snapshot.share).rjust(6)  # 100 % does not touch the bar
    return bar(snapshot.share, max(_MIN_BAR, room.columns - len(share)), room, "cyan").append(f"{share}")


def _numbers(snapshot: Snapshot) -> Text:
    parts = [rows_in_words(snapshot), *rates(snapshot)]
    if snapshot.chunks:
        parts.append(f"{snapshot.chunks_done:,} of {counted(snapshot.chunks, 'chunk')}")
    return Text(", ".join(parts))


def _output(output: OutputState, room: Room) -> Text:
    width = min(24, max(8, room.columns // 5))
    line = Text(f"{_fit(output.name, width)}{_GAP}")
    line.append_text(bar(output.share, max(_MIN_BAR, min(_MAX_BAR, room.columns // 4)), room, "cyan"))
    line.append(f"{percent(output.share):>6}")
    line.append(f"{_GAP}{counted(output.rows, 'row')}", "dim")
    return line


def _device(device: DeviceState, snapshot: Snapshot, room: Room) -> Text:
    """The device and the worker that computes on it, or is the next to do so."""
    worker = device.workers[0] if device.workers else None
    line = Text(f"{device.label:<6}", "bold")
    if worker is None:
        return line.append("idle", "not bold dim").append_text(Text("".join(_memory(device, None)), "dim"))
    line.append(f"{_chunk(worker, snapshot, room):<10} ", "not bold")
    line.append(f"{worker.phase:<10} ", "not bold " + ("cyan" if worker.computing else "dim"))
    share = worker.texts_done / worker.texts if worker.texts else 0.0
    fields = [f"{percent(share):>6}"]
    if room.columns >= 120 and worker.texts:
        fields.append(f"{_GAP}{worker.texts_done:,} of {counted(worker.texts, 'text')}")
    if worker.batch_rows:
        fields.append(f"{_GAP}batch {worker.batch_rows}")
    fields += _memory(device, worker, wide=room.columns >= 120)
    if (others := sum(slot.computing for slot in device.workers) - 1) > 0:
        fields.append(f"{_GAP}and {others} more")
    while len(fields) > 1 and line.cell_len + _MIN_BAR + sum(map(len, fields)) > room.columns:
        fields.pop()
    width = room.columns - line.cell_len - sum(map(len, fields))
    if width >= _MIN_BAR:
        line.append_text(bar(share, min(_MAX_BAR, width), room, "cyan"))
    return line.append("".join(fields), "not bold")


def _memory(device: DeviceState, worker: WorkerState | None, *, wide: bool = False) -> list[str]:
    """GPU and host memory, the more important first."""
    gpu, fields = device.gpu or GpuReading(0), []
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
        fields.append(f"{gpu.memory_used_bytes / (1 << 30):.0f}/{gpu.memory_total_bytes / (1 << 30):.0f} GiB")
    if worker is not None and worker.rss_bytes is not None:
        fields.append(f"RAM {human_bytes(worker.rss_bytes)}")
    others = ((gpu.utilization, "% busy"), (gpu.temperature_c, "°C"), (gpu.power_w, "W"))
    fields += [f"{value:.0f} {unit}" for value, unit in others if wide and value is not None]
    return [f"{_GAP}{field}" for field in fields]


def _ahead(device: DeviceState, snapshot: Snapshot) -> Text | None:
    """What is prepared for the device's next turns."""
    waiting = [worker for worker in device.workers[1:] if not worker.computing]
    if not waiting:
        return None
    names = ", ".join(f"{_chunk(worker, snapshot, None)} {worker.phase}" for worker in waiting)
    return Text(f"{'':<6}next: {names}", "dim")


def _chunk(worker: WorkerState, snapshot: Snapshot, room: Room | None) -> str:
    """With the output's name where there are several and there is room for it."""
    if len(snapshot.outputs) > 1 and (room is None or room.columns >= 120):
        return f"{worker.output} chunk {worker.chunk}"
    return f"chunk {worker.chunk}"


def bar(share: float, width: int, room: Room, style: str) -> Text:
    """A bar that can be read without colours, too."""
    share = min(1.0, max(0.0, share))
    done, todo, half = ("#", "-", "") if room.ascii_only else ("━", "─", "╸")
    cells = int(share * width)
    line = Text(done * cells, style)
    if half and cells < width and share * width - cells >= 0.5:
        line.append(half, style)
    return line.append(todo * (width - line.cell_len), "dim")


def _fit(text: str, width: int) -> str:
    text = plain(text)
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"
