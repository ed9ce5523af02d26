"""A forecast as lines of plain text for a terminal or a pipe, at most 80 columns wide. Pure."""

from collections.abc import Iterator

from chunkvisor.commands.planning.histogram import Bin
from chunkvisor.commands.planning.survey import Forecast, OutputForecast, Unit
from chunkvisor.show.lines import figure
from chunkvisor.units import counted, human_bytes, human_time, wrapped

WIDTH = 80

_LABEL_CHARS, _COUNT_CHARS = 17, 20
_WORDS = {Unit.TOKENS: "tokens", Unit.ESTIMATED_TOKENS: "tokens (estimated)", Unit.CHARACTERS: "characters"}


def draw(forecast: Forecast, *, blocks: bool = True, columns: int = 0) -> Iterator[str]:
    """The lines, for a terminal of so many `columns` (0: it is none).

    Without `blocks`, bars are made of ASCII, for a stream that cannot encode more.
    """
    width = min(columns or WIDTH, WIDTH)
    for name, output in forecast.outputs.items():
        yield from _draw_output(name, output, width, blocks=blocks)
        yield ""
    said = [("disk", _disk(forecast)), ("memory", _memory(forecast)), ("time", _time(forecast))]
    if forecast.gpu_memory_bytes is not None:
        said.insert(2, ("GPU", _gpu_memory(forecast)))
    for label, text in [*said, *(("note", note) for note in forecast.notes)]:
        yield from wrapped(f"{label:8}{text}", width, 8).splitlines()


def _draw_output(name: str, output: OutputForecast, width: int, *, blocks: bool) -> Iterator[str]:
    repeats = f", {_percent(output.duplicate_share)} of the rows repeat a text" if output.duplicate_share else ""
    yield f"{name}: {output.rows:,} rows, {output.distinct_texts:,} distinct texts{repeats}"
    if output.rows_empty:
        yield f"  {'empty':9}{counted(output.rows_empty, 'row')}, with one vector for all; `where` leaves them out"
    lengths = output.lengths
    yield ""
    yield (
        f"  {_WORDS[output.length_unit]} of a text: median {lengths.median:,}, 95 % up to {lengths.p95:,}, "
        f"longest {lengths.longest:,}"
    )
    most = max((each.count for each in lengths.bins), default=0)
    for each in lengths.bins:
        yield _row(each, most, lengths.count, width, blocks=blocks)
        if each.high == output.max_length and lengths.truncated:
            marked = f" max_length {output.max_length:,}: longer texts are cut "
            yield "  " + marked.center(width - 2, "─" if blocks else "-")
    if output.max_length is not None:
        yield f"  {_truncated(output)}"
    for number, text in enumerate(output.longest):
        yield f"  {'longest' if not number else '':9}{text.length:>8,}  {_end_of(text.place, width - 21)}"
    yield ""
    if output.batches is not None and output.padding_share is not None:
        yield f"  {'batches':9}{output.batches:,}; {_percent(output.padding_share)} of the work is padding"
    yield f"  {'a batch':9}{_limits(output)}"
    if output.texts_known:
        new = output.distinct_texts - output.texts_known
        yield f"  {'texts':9}{output.texts_known:,} have vectors already; {new:,} are new"
    done = f", {output.chunks_done:,} of them done" if output.chunks_done else ""
    why = f"; {output.chunk_size_reason}" if output.chunk_size_reason else ""
    yield f"  {'chunks':9}{output.chunks:,} of {output.chunk_size:,} texts{done}{why}"
    if output.dimension is None:
        yield f"  {'file':9}{output.rows:,} rows; the dimension is unknown until a run has made a chunk"
    else:
        size = human_bytes(output.final_bytes or 0)
        yield f"  {'file':9}{output.rows:,} rows x {output.dimension:,}, {size}"


def _row(each: Bin, most: int, total: int, width: int, *, blocks: bool) -> str:
    label = f"{each.low:,} - {each.high:,}"
    width = max(1, width - 2 - _LABEL_CHARS - 2 - _COUNT_CHARS)
    # What is there at all shows.
    drawn = ("█" if blocks else "#") * (max(1, round(each.count / most * width)) if each.count else 0)
    return f"  {label:>{_LABEL_CHARS}}  {drawn:<{width}}{each.count:>12,}{_percent(each.count / total):>8}"


def _truncated(output: OutputForecast) -> str:
    if not output.lengths.truncated:
        return f"no text is longer than the {output.max_length:,} tokens that the model reads"
    share = _percent(output.lengths.truncated / output.lengths.count)
    return f"{share} of the texts are cut, and with them {_percent(output.lengths.lost_share)} of all tokens"


def _limits(output: OutputForecast) -> str:
    # A row cap of as many rows as tokens caps nothing, see `resolve_limits`.
    rows = f"{output.batch_rows:,} texts" if output.batch_rows != output.batch_tokens else ""
    tokens = f"{output.batch_tokens:,} padded tokens" if output.batch_tokens is not None else ""
    return "at most " + " and ".join(filter(None, [rows, tokens]))


def _disk(forecast: Forecast) -> str:
    free = f"; {human_bytes(forecast.free_disk_bytes)} are free" if forecast.free_disk_bytes is not None else ""
    if forecast.peak_disk_bytes is None or forecast.final_disk_bytes is None:
        return f"unknown until a run has made a chunk{free}"
    peak, final = human_bytes(forecast.peak_disk_bytes), human_bytes(forecast.final_disk_bytes)
    return f"up to {peak} more while it runs, {final} of final files{free}"


def _memory(forecast: Forecast) -> str:
    if forecast.host_memory_bytes is None or forecast.weights_bytes is None:
        return "unknown until a run has downloaded the weights"
    each = " for each GPU" if forecast.per_gpu else ""
    need, total = human_bytes(forecast.host_memory_bytes), human_bytes(forecast.total_memory_bytes)
    which = f"{counted(forecast.workers, 'worker')} (workers.per_device and standby together)"
    sum_of = f"{which}, each with 1 GiB for its libraries and {human_bytes(forecast.weights_bytes)} of weights"
    batch = max((output.activation_bytes or 0 for output in forecast.outputs.values()), default=0)
    if batch and forecast.gpu_memory_bytes is None:
        sum_of += f"; {human_bytes(batch)} for the largest batch"
        if forecast.batches_at_once > 1:
            sum_of += f", and a worker computes up to {forecast.batches_at_once} at a time"
    return f"about {need} of {total}{each}, an estimate: {sum_of}"


def _gpu_memory(forecast: Forecast) -> str:
    """Of one GPU; the largest batch is what its limits allow, and workers take smaller ones where that does not fit."""
    batch = max((output.activation_bytes or 0 for output in forecast.outputs.values()), default=0)
    need, weights = human_bytes(forecast.gpu_memory_bytes or 0), human_bytes(forecast.weights_bytes or 0)
    return (
        f"about {need} of each GPU, an estimate: 0.5 GiB for CUDA, {weights} of weights, and {human_bytes(batch)} for "
        "the largest batch; workers take smaller ones where that is more than is free"
    )


def _time(forecast: Forecast) -> str:
    if forecast.time_s is None:
        return "unknown until a run has a rate; `chunkvisor run` with --max-rows 1000 finds it"
    if not forecast.time_s:
        return "nothing is left to be done"
    outputs, rate = forecast.outputs.values(), figure(forecast.texts_per_s or 0)
    texts = counted(sum(output.texts_left for output in outputs), "text")
    rows_per_text = sum(output.rows for output in outputs) / sum(output.distinct_texts for output in outputs)
    # A run tells its speed in rows.
    rows = f" ({figure((forecast.texts_per_s or 0) * rows_per_text)} rows/s)" if rows_per_text > 1 else ""
    about = human_time(forecast.time_s)
    first = "before it, the source is read and the model loaded"
    return f"about {about} of computing: {texts} at the {rate} texts/s{rows} of the last run; {first}"


def _end_of(place: str, width: int) -> str:
    return place if len(place) <= width else f"...{place[3 - width :]}"


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{100 * share:.1f} %"
