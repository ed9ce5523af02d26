"""The folder of one attempt: filled for the worker, and afterwards read for the evidence that `outcome` judges."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path

import numpy as np
import xxhash

from chunkvisor.judge import EndedBy, Evidence
from chunkvisor.store.artifact import BadVectorsError, Shape, bad_rows, inspect, read_exactly, read_shape
from chunkvisor.store.disk import free_bytes
from chunkvisor.store.leftovers import read_tail
from chunkvisor.store.pickrows import fill
from chunkvisor_worker.contract.files import AttemptFiles, sync_folder
from chunkvisor_worker.contract.messages import (
    Beat,
    EncodeSpec,
    Facts,
    Fault,
    Limits,
    ModelSpec,
    Phase,
    Result,
    Spec,
)
from chunkvisor_worker.contract.wire import read_batch_log, read_beat, read_message, write_message


@dataclass(frozen=True, slots=True)
class Salvage:
    """What is left of an attempt; positions count from the first text of its spec."""

    done: tuple[int, ...] = ()
    """Texts whose vectors are in its partial file, verified."""
    under_way: tuple[int, ...] = ()
    """Texts of the batches that had begun and were not written: one of them may be what ended it."""


def look(files: AttemptFiles, spec: Spec, known: Facts | None, is_blank: Callable[[int], bool]) -> Salvage:
    """What is left of the attempt. Raises nothing: what cannot be read is not there.

    `known` and `is_blank` are as in `store.attempt.gather`.
    """
    record = read_batch_log(files.batches)
    rows = spec.stop - spec.start
    wanted = set(range(rows)).difference(spec.skip)
    under_way = tuple(sorted(wanted.intersection(record.under_way)))
    facts = record.facts
    if facts is None or (known is not None and (known.dimension, known.dtype) != (facts.dimension, facts.dtype)):
        return Salvage(under_way=under_way)
    done: list[int] = []
    try:
        with open(files.partial, "rb") as file:
            shape = read_shape(file)
            if (shape.rows, shape.dimension) != (rows, facts.dimension):
                return Salvage(under_way=under_way)
            for batch, digest in record.written:
                if wanted.issuperset(batch):
                    done += _good(file, shape, batch, digest, is_blank)
    except (BadVectorsError, OSError):
        return Salvage(under_way=under_way)
    return Salvage(tuple(sorted(done)), under_way)


def _good(
    file: BufferedReader, shape: Shape, rows: tuple[int, ...], digest: str, is_blank: Callable[[int], bool]
) -> list[int]:
    """Those rows of a batch whose vectors are good; none where they are not the ones that were written."""
    block = np.empty((len(rows), shape.dimension), dtype="<f4")
    for row, room in zip(rows, block, strict=True):
        file.seek(shape.offset_bytes + 4 * shape.dimension * row)
        read_exactly(file, room)
    if xxhash.xxh3_64_hexdigest(block.data) != digest:
        return []
    not_finite, zero = (set(found.tolist()) for found in bad_rows(block))
    refused = not_finite.union(at for at in zero if not is_blank(rows[at]))
    return [row for at, row in enumerate(rows) if at not in refused]


_PAIR_BYTES = 8


def take_cut(path: Path, texts: int, attempt: Path, start: int, stop: int) -> None:
    """Take over what an attempt at the texts start..stop says of them, if it says anything. Raises OSError.

    `path` is the output's file, `texts` the number of its encoded texts. A pair that cannot be is passed over.
    """
    try:
        with open(attempt, "rb") as file:
            data = file.read(_PAIR_BYTES * 2 * (stop - start))  # a canary is tokenized twice
    except FileNotFoundError:
        return
    pairs = np.frombuffer(data[: len(data) // _PAIR_BYTES * _PAIR_BYTES], dtype="<i4").reshape(-1, 2)
    pairs = pairs[(pairs[:, 0] >= 0) & (pairs[:, 0] < stop - start) & (pairs[:, 1] > 0)]
    if not len(pairs):
        return
    first, last = int(pairs[:, 0].min()), int(pairs[:, 0].max())
    tokens = np.zeros(last - first + 1, dtype="<i4")
    is_new = not path.exists()
    with open(os.open(path, os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as out:
        if is_new:
            os.ftruncate(out.fileno(), 4 * texts)
        fill(out.fileno(), tokens.view(np.uint8).data, 4 * (start + first))
        tokens[pairs[:, 0] - first] = pairs[:, 1]
        os.pwrite(out.fileno(), tokens.data, 4 * (start + first))
        os.fsync(out.fileno())
    if is_new:
        sync_folder(path.parent)


@dataclass(frozen=True, slots=True)
class Job:
    """What all attempts of one output have in common."""

    run_id: str
    fingerprint: str
    output: str
    model: ModelSpec
    encode: EncodeSpec
    import_path: tuple[str, ...]
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """What tells one attempt from the others."""

    chunk: int
    attempt: int
    start: int
    """First distinct text."""
    device: str
    """"cpu" or "cuda"."""
    threads: int = 0
    """0 = the job's; another machine has other cores."""
    model_path: str | None = None
    """Where the model's files are there; None = the job's."""
    skip: tuple[int, ...] = ()
    """Texts of the range, counted from its first, that have their vectors: the worker does not get them."""
    canary: str | None = None
    """See `Spec.canary`."""
    canary_row: int | None = None
    """See `Spec.canary_row`."""


def write_attempt(files: AttemptFiles, job: Job, place: Place, texts: Iterable[str], limits: Limits) -> Spec:
    """Write texts and spec into a new attempt folder, the texts as they come. Raises OSError.

    Not synced to the disk: an attempt that a power cut took is done again. Nobody reads the texts before the spec is
    there, so they need no rename.
    """
    digest, count = write_texts(files.texts, texts)
    spec = Spec(
        run_id=job.run_id,
        fingerprint=job.fingerprint,
        output=job.output,
        chunk=place.chunk,
        attempt=place.attempt,
        start=place.start,
        stop=place.start + count + len(place.skip),
        texts_digest=digest,
        device=place.device,
        model=job.model if place.model_path is None else replace(job.model, path=place.model_path),
        encode=job.encode,
        threads=place.threads or job.threads,
        import_path=job.import_path,
        skip=place.skip,
        limits=limits,
        canary=place.canary,
        canary_row=place.canary_row,
    )
    write_message(files.spec, spec, durable=False)
    return spec


def write_texts(path: Path, texts: Iterable[str]) -> tuple[str, int]:
    """Write a JSON string a line into a new file; returns its sha256 and how many there are. Raises OSError."""
    digest, count = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for text in texts:
            line = json.dumps(text, ensure_ascii=True).encode() + b"\n"
            digest.update(line)
            file.write(line)
            count += 1
    return digest.hexdigest(), count


def gather(
    files: AttemptFiles,
    spec: Spec,
    known: Facts | None,
    is_blank: Callable[[int], bool],
    *,
    returncode: int | None,
    ended_by: EndedBy = EndedBy.ITSELF,
    ended_why: str = "",
    oom_kills: int = 0,
    limits: Limits,
) -> Evidence:
    """All evidence of an ended attempt. Raises nothing: what cannot be read is evidence, too.

    `known` are the facts of the chunks committed before, `is_blank(i)` says whether the i-th text of the attempt has
    nothing but white space: the only texts whose vectors may be zero throughout.
    """
    result = read_message(Result, files.result)
    if result is not None and not _answers(result, spec):
        result = None
    evidence = Evidence(
        returncode,
        ended_by,
        ended_why,
        result=result,
        fault=read_message(Fault, files.fault),
        beat=_last_beat(files),
        log_tail=read_tail(files.log),
        oom_kills=oom_kills,
        disk_free_bytes=free_bytes(files.folder),
        limits=limits,
        on_cpu=spec.device == "cpu",
    )
    try:
        if result is not None:
            _verify(files.vectors, result, spec, known, is_blank)
    except BadVectorsError as bad:
        return replace(evidence, vectors_problem=str(bad), bad_rows=bad.rows, other_dimension=bad.other_dimension)
    except OSError as error:
        return replace(evidence, vectors_problem=f"cannot be read: {error.strerror}")
    return evidence


def drop_bulk(files: AttemptFiles) -> None:
    """Remove the vectors of a failed attempt, and the texts of failed ones before it; its own can be tried by hand.

    Others before it may be under way: parts of a chunk are tried beside each other.
    """
    with contextlib.suppress(OSError):
        for path in (files.vectors, files.partial):
            path.unlink(missing_ok=True)
        for folder in files.folder.parent.iterdir():
            other = AttemptFiles(folder)
            if folder.name.isdecimal() and int(folder.name) < int(files.folder.name) and other.verdict.exists():
                other.texts.unlink(missing_ok=True)


def _last_beat(files: AttemptFiles) -> Beat | None:
    """None where it cannot be read; where there is none, the worker died before its first line."""
    if not files.folder.exists() or os.path.lexists(files.beat):
        return read_beat(files.beat)
    return Beat(0, 0, Phase.START)


def _answers(result: Result, spec: Spec) -> bool:
    asked = (spec.fingerprint, spec.output, spec.chunk, spec.start, spec.stop)
    return asked == (result.fingerprint, result.output, result.chunk, result.start, result.stop)


def _verify(vectors: Path, result: Result, spec: Spec, known: Facts | None, is_blank: Callable[[int], bool]) -> None:
    """Raises BadVectorsError where the file is not what the result claims, or unlike the chunks before; OSError."""
    found = inspect(vectors, skip=frozenset(spec.skip))
    dimension, rows = found.shape.dimension, found.shape.rows
    if found.digest != result.digest:
        raise BadVectorsError("are not the ones that the result speaks of (another digest)")
    if rows != result.stop - result.start:
        raise BadVectorsError(f"are {rows} for {result.stop - result.start} texts")
    if dimension != result.facts.dimension:
        raise BadVectorsError(f"have dimension {dimension}, the result says {result.facts.dimension}")
    if known is not None and dimension != known.dimension:
        wrong = f"have dimension {dimension}, the chunks before have {known.dimension}"
        raise BadVectorsError(wrong, other_dimension=True)
    if known is not None and result.facts.dtype != known.dtype:
        raise BadVectorsError(f"come from weights in {result.facts.dtype}, the chunks before from {known.dtype}")
    zero = [row for row in found.zero if not is_blank(row)]
    listed = found.not_finite_count == len(found.not_finite) and found.zero_count == len(found.zero)
    bad = tuple(sorted(found.not_finite + zero)) if listed else ()
    if found.not_finite_count:
        first = found.not_finite[0]
        raise BadVectorsError(f"have NaN or infinity{_where(found.not_finite_count, rows, first)}", bad)
    if zero:
        raise BadVectorsError(f"are zero throughout{_where(len(zero), rows, zero[0])}", bad)


def _where(bad: int, rows: int, first: int) -> str:
    return f" in {bad:,} of {rows:,} rows (text {first} first)" if rows > 1 else ""
