"""Find out what a run would do and need, without a worker or a GPU.

Nothing is written into the workdir.
"""

import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from chunkvisor.child import python_command, require_proc, run_child
from chunkvisor.config.choices import EngineKind
from chunkvisor.config.load import LoadedConfig, RowChoice
from chunkvisor.config.model import Config, encode_spec, resolve_limits
from chunkvisor.devices.gpu import find_devices, unfit_dtype, weakest
from chunkvisor.engine.expected import read_expected
from chunkvisor.engine.modelfolder import (
    LIBRARIES_BYTES,
    ModelFolder,
    check_model_files,
    pools_last_token,
    read_model_folder,
)
from chunkvisor.engine.modelsource import ModelSource, known_source
from chunkvisor.errors import Halt
from chunkvisor.outputs.combine import refuse_unequal
from chunkvisor.outputs.forms import VectorType, asked_form
from chunkvisor.outputs.stage import staged_before
from chunkvisor.outputs.state import read
from chunkvisor.printing import Say
from chunkvisor.show.snapshot import figure
from chunkvisor.sources.child import request_of, stage_table
from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.attempt import verdict_of_child
from chunkvisor.store.chunkfiles import committed_chunks
from chunkvisor.store.disk import (
    RESERVE_BYTES,
    free_bytes,
    nearest_existing,
    need_bytes,
    why_too_large,
)
from chunkvisor.store.identity import Plan, read_facts, read_fixed
from chunkvisor.store.layout import Layout
from chunkvisor.store.records import DamagedError
from chunkvisor.store.reuse import ledger_of
from chunkvisor.supervise.opening import pace_before, propose
from chunkvisor.supervise.session import require_extras
from chunkvisor.units import counted, human_bytes, human_time
from chunkvisor_worker.contract.exits import PARENT_PID
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import LengthsAnswer, LengthsRequest, LengthsTask
from chunkvisor_worker.contract.rules import TOO_LARGE
from chunkvisor_worker.contract.wire import read_message, write_message

# If there are more distinct texts, the lengths of evenly spread chunks are measured.
MOST_TEXTS = 1_000_000
# Characters of the longest bar.
_BAR = 39


def forecast(loaded: LoadedConfig, rows: RowChoice, say: Say) -> dict[str, Any]:
    """Return what `plan --json` prints; `say` gets the name of each slow step.

    Raises Halt if a run would refuse the source or the model; OSError.
    """
    config = (loaded if rows.part is None else loaded.of_rows(rows)).config
    model = ModelFolder()
    notes = list[str]()
    rate, entry_s = pace_before(config)
    require_extras(config)
    require_proc()
    if config.model.expect:
        read_expected(config.model.expect)
    devices = len(config.device)
    proposed = propose(rate, entry_s, config.workers.per_device * devices, config.device_kind)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-plan-") as folder:
        tables = {name: table_of(config, name, rows, Path(folder), say) for name in config.outputs}
        refuse_unequal(config.combine, {name: table.rows for name, table in tables.items()})
        outputs = {
            name: _read_output(config, name, table, proposed) for name, table in tables.items()
        }
        for name, output in config.outputs.items():
            if output.template_note:
                notes.append(f"{name}: {output.template_note}")
            if outputs[name].pop("of_another_source") and rows.first is None:
                notes.append(
                    f"{name}: the workdir has vectors of another source; `run --update` takes over "
                    f"what it can"
                )
        say("counting tokens")
        if config.model.is_plugin:
            notes.append(
                "only the plug-in encoder itself knows its tokens, so the lengths of texts are not "
                "shown"
            )
        else:
            path = _count_tokens(config, tables, outputs, Path(folder, ".lengths"), notes)
            if path:
                model = read_model_folder(Path(path))
                if config.engine.kind is EngineKind.LOCAL:
                    notes += _dtype_notes(config, model)
        for name, sizes in outputs.items():
            _add_bytes(sizes, config, name, tables[name], model.dimension)
        notes += _too_large(config, outputs)
    workers = (config.workers.per_device + config.workers.standby) * devices
    weights = model.weights_bytes
    return {
        "outputs": outputs,
        "combine": config.combine,
        "peak_disk_bytes": _sum_known(each["disk_bytes"] for each in outputs.values()),
        "final_disk_bytes": _sum_known(each["final_bytes"] for each in outputs.values()),
        "free_disk_bytes": free_bytes(nearest_existing(config.workdir)),
        "weights_bytes": weights,
        "workers": workers,
        "host_memory_bytes": None if weights is None else workers * (LIBRARIES_BYTES + weights),
        "total_memory_bytes": int(psutil.virtual_memory().total),
        "texts_per_s": rate,
        "time_s": sum(each["texts_left"] for each in outputs.values()) / rate if rate else None,
        "notes": notes,
    }


def _dtype_notes(config: Config, model: ModelFolder) -> list[str]:
    """Say that a GPU of this machine is not made for the dtype of the weights, if so."""
    with suppress(Halt):  # it is the plan of a job for another machine
        card = weakest(find_devices(config.device, may_ask_torch=False))
        unfit = unfit_dtype(model.computes_in(config.model), model.model_type, card)
        if unfit:
            return ["; ".join(unfit)]
    return []


def _add_bytes(
    sizes: dict[str, Any], config: Config, name: str, table: StagedTable, dimension: int | None
) -> None:
    """Add the bytes of the final file, and those that the disk must have while it is made."""
    dimension = sizes["dimension"] = sizes["dimension"] or dimension
    left = sizes["texts_left"]
    sizes["final_bytes"] = None
    sizes["disk_bytes"] = None if left else 0
    if dimension is None:
        return
    form = asked_form(config.outputs[name])
    row_bytes = VectorType(form.dtype, dimension).row_bytes
    sizes["final_bytes"] = row_bytes * table.rows + 128  # numpy's header
    if left:
        needed = need_bytes(table.rows, left, dimension, 0 if form.is_float32_npy else row_bytes)
        # A table that a run has staged already is not written again.
        if Layout(config.workdir).outputs not in table.folder.parents:
            needed += sum(path.stat().st_size for path in table.folder.iterdir())
        sizes["disk_bytes"] = needed - RESERVE_BYTES


def _too_large(config: Config, outputs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Note files that are larger than the file system or `ulimit -f` allows."""
    finals = {name: each["final_bytes"] for name, each in outputs.items() if each["final_bytes"]}
    # A file of another form is made from one of float32.
    largest = {
        name: max(size, 4 * outputs[name]["dimension"] * outputs[name]["rows"])
        for name, size in finals.items()
    }
    for name, members in config.combine.items():
        if finals.keys() >= set(members):
            largest[name] = sum(finals[member] for member in members)
    for name, size in largest.items():
        why = why_too_large(nearest_existing(config.workdir), size)
        if why:
            yield f"{name}: {why}. {TOO_LARGE.remedy}"


def _sum_known(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if one of the numbers is not known."""
    known = list(numbers)
    return None if None in known else sum(filter(None, known))


def table_of(config: Config, name: str, rows: RowChoice, scratch: Path, say: Say) -> StagedTable:
    """Open the output's staged table, or stage it in `scratch`. Raises Halt, OSError."""
    layout = Layout(config.workdir).output(name)
    request = request_of(config, name, rows)
    if staged_before(request, layout):
        with suppress(DamagedError):  # the next run stages it again
            return StagedTable.open(layout.table)
    say(f"{name}: reading its source")
    return stage_table(request, scratch / name, lambda: None)


def _read_output(
    config: Config, name: str, table: StagedTable, proposed: tuple[int, str]
) -> dict[str, Any]:
    """Return what is printed of one output, as far as its table and the workdir show it.

    `proposed` is the (size, reason) of chunks for `chunk.size: auto`.
    """
    layout = Layout(config.workdir).output(name)
    fixed = None
    reason = None
    with suppress(DamagedError):  # a run reports it
        fixed = read_fixed(layout)
    size = fixed.chunk_size if fixed else config.effective_chunk_size(name)
    if size == "auto":
        size, reason = proposed
    work = Plan(table.distinct, size)
    done = bytearray()
    dimension = config.effective_encode(name).truncate_dim
    ours = fixed is not None and fixed.identity.source_digest == table.digest
    if ours:
        with suppress(DamagedError):
            ledger = ledger_of(layout)
            if ledger:  # a run has looked which texts have a vector already
                work = ledger.plan
        done = committed_chunks(layout, work)
        if read(layout, check_file=False).manifest:
            done = bytearray(b"\1") * work.count
        facts = read_facts(layout)
        if facts:
            dimension = facts.dimension
    return {
        "rows": table.rows,
        "distinct_texts": table.distinct,
        "duplicate_share": 1 - table.distinct / table.rows,
        "rows_empty": table.empty,
        "texts_known": table.distinct - work.distinct,
        "texts_left": work.distinct - work.texts_in(done),
        "chunks": work.count,
        "chunks_done": done.count(1),
        "chunk_size": size,
        "chunk_size_reason": reason,
        "dimension": dimension,
        "lengths": distribution(np.empty(0, dtype=np.int32), None),
        **dict.fromkeys(("length_unit", "max_length", "batches", "padding_share")),
        "of_another_source": fixed is not None and not ours,
    }


def distribution(lengths: npt.NDArray[np.int32], max_length: int | None) -> dict[str, Any]:
    """Summarize lengths of texts, in tokens; each bin is twice as wide as the one before."""
    if not len(lengths):
        names = ("count", "median", "p95", "longest", "truncated", "lost_share")
        return {**dict.fromkeys(names, 0), "bins": []}
    median, p95, longest = np.quantile(lengths, (0.5, 0.95, 1), method="higher").tolist()
    highs = [8 << step for step in range(max(1, (longest - 1).bit_length() - 2))]
    lows = [0, *(high + 1 for high in highs)]
    counts = np.histogram(lengths, lows)[0].tolist()
    beyond = np.maximum(lengths - (max_length or longest), 0)
    return {
        "count": len(lengths),
        "median": median,
        "p95": p95,
        "longest": longest,
        "bins": [
            {"low": low, "high": high, "count": n}
            for low, high, n in zip(lows, highs, counts, strict=False)
        ],
        "truncated": int(np.count_nonzero(beyond)),
        "lost_share": float(beyond.sum() / max(1, lengths.sum())),
    }


def _count_tokens(
    config: Config,
    tables: dict[str, StagedTable],
    outputs: dict[str, dict[str, Any]],
    folder: Path,
    notes: list[str],
) -> str | None:
    """Add lengths and batches to the outputs, and notes; return the model's folder.

    A child process, which may use `folder`, loads the tokenizer. None if the folder is not known.
    Raises Halt if the model is wrong, OSError.
    """
    source = known_source(config.model, Layout(config.workdir).model) or ModelSource(
        None, config.model.revision
    )
    path = source.path
    warnings = check_model_files(config, path)
    folder.mkdir(mode=0o700)
    files = AttemptFiles(folder)
    tasks = list[LengthsTask]()
    for name, table in tables.items():
        paths = TableFiles(table.folder)
        encode = config.effective_encode(name)
        tasks.append(
            LengthsTask(
                str(paths.texts),
                str(paths.offsets),
                table.distinct,
                outputs[name]["chunk_size"],
                -(-table.distinct // MOST_TEXTS),  # every Nth chunk is measured
                encode_spec(encode),
                resolve_limits(encode, config.device_kind, plugin=False),
            )
        )
    request = LengthsRequest(source.spec(config.model), tuple(tasks))
    write_message(files.spec, request)
    command = python_command("chunkvisor_worker.lengths", folder)
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",  # no GPU is touched
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        PARENT_PID: str(os.getpid()),
        **config.secret_env,
    }
    returncode = run_child(command, files.log, environment=environment)
    answer = read_message(LengthsAnswer, files.result)
    if answer is None:
        verdict = verdict_of_child(returncode, files.fault, files.log)
        notes.append(
            f"tokens could not be counted: {verdict.reason.rstrip('.')}. "
            f"{verdict.remedy.replace('OWNER/NAME', config.model.name)}"
        )
    else:
        path = answer.path  # it may have found the tokenizer's files on the hub
        warnings = check_model_files(config, path)
        for (name, table), report in zip(tables.items(), answer.reports, strict=True):
            lengths = np.load(report.lengths, allow_pickle=False)
            outputs[name] |= {
                "lengths": distribution(lengths, report.max_length),
                "max_length": report.max_length,
                "length_unit": "estimated_tokens" if report.estimated else "tokens",
                "batches": round(report.batches * table.distinct / len(lengths)),
                "padding_share": 1 - report.tokens / max(1, report.padded_tokens),
            }
            if report.blank_ends and pools_last_token(Path(path), config.model):
                blank = counted(report.blank_ends, "text")
                what = (
                    "a vector is that of the last token, and sentence-transformers strips none "
                    "since 5.4"
                )
                notes.append(f"{name}: blanks at the end of {blank} change their vectors: {what}")
    notes += map("; ".join, warnings)
    return path


def plan_lines(forecast: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the plan: the outputs and their sum, each output, then the machine."""
    outputs = forecast["outputs"]
    keys = ("rows", "distinct_texts", "chunks")
    shown = dict(outputs)
    if len(outputs) > 1:
        shown["all"] = {key: sum(each[key] for each in outputs.values()) for key in keys}
    for name, each in shown.items():
        rows, texts, chunks = (each[key] for key in keys)
        yield (
            f"{name}: {counted(rows, 'row')}, {counted(texts, 'distinct text')}, "
            f"{counted(chunks, 'chunk')}"
        )
    for name, members in forecast["combine"].items():
        yield f"{name}: {' and '.join(members)} side by side"
    left = sum(each["texts_left"] for each in outputs.values())
    time = "nothing is left to be done"
    if forecast["time_s"] is None:
        time = "unknown until a run has a rate; `chunkvisor run` with --max-rows 1000 finds it"
    elif left:
        time = (
            f"about {human_time(forecast['time_s'])} for {counted(left, 'text')}, at the rate of "
            f"the last run: {figure(forecast['texts_per_s'])} texts/s, without its start"
        )
    yield f"time: {time}"
    for name, output in outputs.items():
        yield ""
        yield name
        yield from _output_lines(output)
    size = {
        key: "unknown" if number is None else human_bytes(number)
        for key, number in forecast.items()
        if "bytes" in key
    }
    yield (
        f"\ndisk    needed while it runs: {size['peak_disk_bytes']}; final files: "
        f"{size['final_disk_bytes']}; "
        f"free: {size['free_disk_bytes']}"
    )
    yield (
        f"memory  needed, without batches: {size['host_memory_bytes']} "
        f"({counted(forecast['workers'], 'worker')}, "
        f"each with 1 GiB and its weights: {size['weights_bytes']})"
    )
    yield f"        of this machine: {size['total_memory_bytes']}"
    yield from (f"note    {note}" for note in forecast["notes"])


def _output_lines(output: dict[str, Any]) -> Iterator[str]:
    """Yield the details of one output: lengths of its texts, repeats, batches, chunks, file."""
    lengths = output["lengths"]
    limit = output["max_length"]
    if lengths["count"]:
        yield (
            f"  {output['length_unit'].replace('_', ' ')} of {lengths['count']:,} texts: median "
            f"{lengths['median']:,}, 95 % up to {lengths['p95']:,}, longest {lengths['longest']:,}"
        )
    most = max((each["count"] for each in lengths["bins"]), default=0)
    for each in lengths["bins"]:
        count = each["count"]
        bar = "".ljust(math.ceil(count / most * _BAR), "#")
        share = _percent(count / lengths["count"])
        yield f"  {each['low']:>8,} - {each['high']:<8,}{bar:<{_BAR}}{count:>12,}{share:>8}"
    if lengths["truncated"]:
        cut = _percent(lengths["truncated"] / lengths["count"])
        lost = _percent(lengths["lost_share"])
        yield f"  {cut} of the texts are longer than {limit:,} and are cut: {lost} of all tokens"
    elif limit:
        yield f"  no text is longer than the {limit:,} tokens that the model reads"
    if output["duplicate_share"]:
        yield f"  repeats  {_percent(output['duplicate_share'])} of the rows repeat a text"
    if output["rows_empty"]:
        empty = counted(output["rows_empty"], "row")
        yield f"  empty    {empty}, with one vector for all; `where` leaves them out"
    if output["padding_share"] is not None:
        padding = _percent(output["padding_share"])
        yield f"  batches  {output['batches']:,}; {padding} of the work is padding"
    known = output["texts_known"]
    if known:
        new = output["distinct_texts"] - known
        yield f"  texts    {known:,} have vectors already; {new:,} are new"
    done = f", {output['chunks_done']:,} of them done" if output["chunks_done"] else ""
    why = f"; {output['chunk_size_reason']}" if output["chunk_size_reason"] else ""
    yield f"  chunks   {output['chunks']:,} of {output['chunk_size']:,} texts{done}{why}"
    size = "; the dimension is unknown until a run has made a chunk"
    if output["dimension"] is not None:
        size = f" x {output['dimension']:,}, {human_bytes(output['final_bytes'])}"
    yield f"  file     {output['rows']:,} rows{size}"


def _percent(share: float) -> str:
    """Say `12.5 %` for 0.125."""
    return "<0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"
