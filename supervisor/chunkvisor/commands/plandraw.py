"""Writes a forecast as lines of plain text for a terminal or a pipe, at most 80 columns wide."""

from collections.abc import Iterator
from typing import Any

from chunkvisor.show.snapshot import figure
from chunkvisor.units import counted, human_bytes, human_time, wrapped

WIDTH = 80
_UNITS = {"tokens": "tokens", "estimated_tokens": "tokens (estimated)", "characters": "characters"}


def draw(forecast: dict[str, Any], *, blocks: bool = True, columns: int = 0) -> Iterator[str]:
    """Yield the lines, for a terminal of that width (0 = not a terminal).

    Without `blocks`, bars are made of ASCII, for a stream that cannot encode more.
    """
    width = min(columns or WIDTH, WIDTH)
    for name, output in forecast["outputs"].items():
        yield from _output(name, output, width, blocks=blocks)
        yield ""
    for label, text in [*_needs(forecast), *(("note", note) for note in forecast["notes"])]:
        yield from wrapped(f"{label:8}{text}", width, 8).splitlines()


def _output(name: str, output: dict[str, Any], width: int, *, blocks: bool) -> Iterator[str]:
    rows, lengths, limit = output["rows"], output["lengths"], output["max_length"]
    share = output["duplicate_share"]
    repeats = f", {_percent(share)} of the rows repeat a text" if share else ""
    yield f"{name}: {rows:,} rows, {output['distinct_texts']:,} distinct texts{repeats}"
    if output["rows_empty"]:
        empty = counted(output["rows_empty"], "row")
        yield f"  {'empty':9}{empty}, with one vector for all; `where` leaves them out"
    yield ""
    quantiles = f"median {lengths['median']:,}, 95 % up to {lengths['p95']:,}, longest {lengths['longest']:,}"
    yield f"  {_UNITS[output['length_unit']]} of a text: {quantiles}"
    most = max((each["count"] for each in lengths["bins"]), default=0)
    for each in lengths["bins"]:
        label, room = f"{each['low']:,} - {each['high']:,}", max(1, width - 41)
        # What is there at all shows.
        bar = ("█" if blocks else "#") * (max(1, round(each["count"] / most * room)) if each["count"] else 0)
        yield f"  {label:>17}  {bar:<{room}}{each['count']:>12,}{_percent(each['count'] / lengths['count']):>8}"
        if each["high"] == limit and lengths["truncated"]:
            yield "  " + f" max_length {limit:,}: longer texts are cut ".center(width - 2, "─" if blocks else "-")
    if limit is not None and lengths["truncated"]:
        cut, lost = _percent(lengths["truncated"] / lengths["count"]), _percent(lengths["lost_share"])
        yield f"  {cut} of the texts are cut, and with them {lost} of all tokens"
    elif limit is not None:
        yield f"  no text is longer than the {limit:,} tokens that the model reads"
    for number, text in enumerate(output["longest"]):
        place, room = text["place"], width - 21
        place = place if len(place) <= room else f"...{place[3 - room :]}"
        yield f"  {'' if number else 'longest':9}{text['length']:>8,}  {place}"
    yield ""
    if output["padding_share"] is not None:
        yield f"  {'batches':9}{output['batches']:,}; {_percent(output['padding_share'])} of the work is padding"
    # A cap of as many rows as tokens caps nothing, see `resolve_limits`.
    texts, tokens = output["batch_rows"], output["batch_tokens"]
    limits = [f"{texts:,} texts"] * (texts != tokens) + [f"{tokens or 0:,} padded tokens"] * (tokens is not None)
    yield f"  {'a batch':9}at most {' and '.join(limits)}"
    if known := output["texts_known"]:
        yield f"  {'texts':9}{known:,} have vectors already; {output['distinct_texts'] - known:,} are new"
    done = f", {output['chunks_done']:,} of them done" if output["chunks_done"] else ""
    why = f"; {output['chunk_size_reason']}" if output["chunk_size_reason"] else ""
    yield f"  {'chunks':9}{output['chunks']:,} of {output['chunk_size']:,} texts{done}{why}"
    if output["dimension"] is None:
        yield f"  {'file':9}{rows:,} rows; the dimension is unknown until a run has made a chunk"
    else:
        yield f"  {'file':9}{rows:,} rows x {output['dimension']:,}, {human_bytes(output['final_bytes'])}"


def _needs(forecast: dict[str, Any]) -> Iterator[tuple[str, str]]:
    outputs, free = forecast["outputs"].values(), forecast["free_disk_bytes"]
    disk = "unknown until a run has made a chunk"
    if forecast["peak_disk_bytes"] is not None and forecast["final_disk_bytes"] is not None:
        peak, final = human_bytes(forecast["peak_disk_bytes"]), human_bytes(forecast["final_disk_bytes"])
        disk = f"up to {peak} more while it runs, {final} of final files"
    yield "disk", disk + (f"; {human_bytes(free)} are free" if free is not None else "")
    weights, batch = forecast["weights_bytes"], max((each["activation_bytes"] or 0 for each in outputs), default=0)
    memory, on_gpu = "unknown until a run has downloaded the weights", forecast["gpu_memory_bytes"]
    if weights is not None:
        need, total = human_bytes(forecast["host_memory_bytes"]), human_bytes(forecast["total_memory_bytes"])
        memory = f"about {need} of {total}{' for each GPU' * forecast['per_gpu']}, an estimate: "
        memory += (
            f"{counted(forecast['workers'], 'worker')} (workers.per_device and standby together), each with 1 GiB "
        )
        memory += f"for its libraries and {human_bytes(weights)} of weights"
        if batch and on_gpu is None:
            memory += f"; {human_bytes(batch)} for the largest batch"
            at_once = forecast["batches_at_once"]
            memory += f", and a worker computes up to {at_once} at a time" if at_once > 1 else ""
    yield "memory", memory
    if on_gpu is not None:
        sum_of = f"0.5 GiB for CUDA, {human_bytes(weights)} of weights, and {human_bytes(batch)} for the largest batch"
        less = "workers take smaller ones if that is more than is free"
        yield "GPU", f"about {human_bytes(on_gpu)} of each GPU, an estimate: {sum_of}; {less}"
    left, rate = sum(each["texts_left"] for each in outputs), forecast["texts_per_s"]
    if forecast["time_s"] is None:
        yield "time", "unknown until a run has a rate; `chunkvisor run` with --max-rows 1000 finds it"
    elif not left:
        yield "time", "nothing is left to be done"
    else:
        a_text = sum(each["rows"] for each in outputs) / sum(each["distinct_texts"] for each in outputs)
        rows = f" ({figure(rate * a_text)} rows/s)" if a_text > 1 else ""  # a run tells its speed in rows
        first = "before it, the source is read and the model loaded"
        speed = f"{counted(left, 'text')} at the {figure(rate)} texts/s{rows} of the last run"
        yield "time", f"about {human_time(forecast['time_s'])} of computing: {speed}; {first}"


def _percent(share: float) -> str:
    return "<0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"
