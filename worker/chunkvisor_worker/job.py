"""Makes one attempt at one chunk, from its spec to its result or its fault.

An encoder's methods are called in the order load, tokenize, start, encode, facts, release. If
there is a canary, `tokenize` and `encode` are called for it first, and then for the other texts. A
template process calls `load` alone, and each process forked from it calls all of them, with its own
output's `encode_spec`.

- `load` loads the weights to host memory, unless that is done; it does not use CUDA. `tokenize`
  takes the texts in.
- `start` moves the model to the device. After it, `texts_cut` has the texts of more tokens than
  the model reads, int64 of shape (n, 2): position, and tokens before the cut.
- `encode` yields (indices, vectors): int64 of shape (n,), positions in the list given to
  `tokenize`, each exactly once; float32 of shape (n, dimension). It ends early if
  `progress.leaving` becomes true.
- `facts` has what was found out about the model. `release` gives the device's memory back, and
  says whether another process may use the device before this one has ended.
"""

import gc
import hashlib
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np
import xxhash

from chunkvisor_worker.batching import Indices, Vectors
from chunkvisor_worker.contract.exits import PARENT_PID, TESTING_FAULTS, WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import (
    BatchLine,
    Facts,
    Limits,
    ModelSpec,
    Phase,
    Result,
    Spec,
)
from chunkvisor_worker.contract.wire import read_message, to_json, write_message
from chunkvisor_worker.faults import fault_of, log_traceback, write_fault
from chunkvisor_worker.liveness import BeatWriter, Gate, be_first_victim, exit_now, open_own
from chunkvisor_worker.plugin import BadOutputError, PluginEncoder

if TYPE_CHECKING:  # a worker of a plug-in imports no more than that needs
    from chunkvisor_worker.sentence_transformer import SentenceTransformerEncoder

    Encoder: TypeAlias = PluginEncoder | SentenceTransformerEncoder
else:
    Encoder = PluginEncoder

_BLOCK_BYTES = 2 << 20
# Exceptions that must not be freed before the process ends, see `run_and_exit`.
_held: list[BaseException] = []


class TextsDamagedError(Exception):
    """The file of the texts does not have the digest that its spec names."""


class VectorFile:
    """Writes the vectors of an attempt as they come, so that they outlive the worker.

    The file is not synced: checksums show whether it is whole, and the parent syncs what it keeps.
    Each method raises OSError.
    """

    def __init__(
        self, files: AttemptFiles, count: int, skip: Sequence[int], facts: Callable[[], Facts]
    ) -> None:
        """Make a file for `count` texts; the rows in `skip` stay zero."""
        self._files = files
        self._count = count
        self._places = np.delete(np.arange(count, dtype=np.int64), list(skip))
        self._facts = facts
        self.left = len(self._places)  # texts that have no vector yet
        self._dimension = 0
        self._offset = 0  # of the first row in the file
        self._file: FileIO | None = None
        self._log = _create(files.batches, os.O_APPEND | os.O_TRUNC)

    def note_cut(self, texts: Indices, cut: Indices) -> None:
        """Write which texts are cut: `cut` is the encoder's `texts_cut`.

        `texts` are the positions in the attempt of the encoder's texts.
        """
        if len(cut):
            pairs = np.column_stack(
                [self._places[texts[cut[:, 0]]], np.minimum(cut[:, 1], np.iinfo(np.int32).max)]
            )
            with _create(self._files.cut, os.O_APPEND) as file:
                file.write(np.ascontiguousarray(pairs, dtype="<i4").tobytes())

    def begin_batch(self, indices: Indices | None) -> None:
        """Begin a batch of the texts at these positions; None = a canary of another chunk."""
        self._log_line(
            BatchLine(rows=() if indices is None else tuple(self._places[indices].tolist()))
        )

    def write_block(self, indices: Indices, block: Vectors) -> None:
        """Write the vectors of the oldest batch under way, float32 of shape (n, dimension).

        Raises BadOutputError for another dimension than before.
        """
        file = self._file or self._open(block.shape[1])
        if block.shape[1] != self._dimension:
            raise BadOutputError(
                f"vectors of {block.shape[1]} dimensions follow vectors of {self._dimension}"
            )
        block = np.ascontiguousarray(block, dtype="<f4")
        rows = self._places[indices]
        first = 0
        for stop in [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]:
            _write_at(
                file,
                self._offset + int(rows[first]) * 4 * self._dimension,
                block[first:stop].data.cast("B"),
            )
            first = stop
        self.left -= len(indices)
        self._log_line(BatchLine(digest=xxhash.xxh3_64_hexdigest(block.data)))

    def pass_canary(self, block: Vectors) -> None:
        """End the batch of a canary of another chunk.

        Raises BadOutputError if its vector is not finite or zero, as no sound device gives it.
        """
        if not np.isfinite(block).all() or not block.any():
            raise BadOutputError(
                "a text that had a good vector before has none now: NaN, infinity or zero "
                "throughout"
            )
        self._log_line(BatchLine(facts=self._facts()))
        self._log_line(BatchLine(digest=xxhash.xxh3_64_hexdigest(np.ascontiguousarray(block).data)))

    def complete(self) -> tuple[str, int]:
        """Give the file its name, and return (xxh3-128, size in bytes).

        Raises BadOutputError if a text has no vector.
        """
        if not self._file or self.left:
            raise BadOutputError(
                f"the encoder left {self.left} of {len(self._places)} texts without a vector"
            )
        digest = xxhash.xxh3_128()
        self._file.seek(0)
        while block := self._file.read(_BLOCK_BYTES):
            digest.update(block)
        size_bytes = self._file.tell()
        self.close()
        self._files.partial.replace(self._files.vectors)
        return digest.hexdigest(), size_bytes

    def close(self) -> None:
        """Close the files; a worker that fails just ends."""
        self._log.close()
        if self._file:
            self._file.close()

    def _log_line(self, line: BatchLine) -> None:
        self._log.write(to_json(line))

    def _open(self, dimension: int) -> FileIO:
        header = io.BytesIO()
        shape = {"descr": "<f4", "fortran_order": False, "shape": (self._count, dimension)}
        np.lib.format.write_array_header_1_0(header, shape)
        self._dimension = dimension
        self._offset = header.tell()
        self._file = file = _create(self._files.partial, os.O_TRUNC)
        try:
            # The space is reserved first, so that a full disk shows before the second batch.
            os.posix_fallocate(file.fileno(), 0, self._offset + self._count * 4 * dimension)
        except OSError:
            with suppress(OSError):
                # else ext4 keeps what it could reserve, and the disk stays full
                file.truncate(0)
            raise
        _write_at(file, 0, header.getbuffer())
        self._log_line(BatchLine(facts=self._facts()))
        return file


def make_encoder(model: ModelSpec, device: str, import_path: tuple[str, ...]) -> Encoder:
    """Make the encoder that the model names, importing no more than it needs."""
    if model.encoder != "sentence-transformers":
        return PluginEncoder(model, device, import_path)
    from chunkvisor_worker.sentence_transformer import SentenceTransformerEncoder

    return SentenceTransformerEncoder(model, device)


def run_and_exit(folder: Path, encoder: Encoder | None = None) -> NoReturn:
    """Make the attempt in the folder, and end the process with a WorkerExit.

    `encoder` is one that a template has loaded.

    After a fault it ends the process from within the `except` block: a sticky CUDA fault makes
    torch abort where pinned memory or an event is freed (pytorch#84756), which the frames of the
    traceback hold.
    """
    files = AttemptFiles(folder)
    spec = read_message(Spec, files.spec)
    if not spec:
        exit_now(WorkerExit.USAGE, f"{files.spec} is missing, or is not a spec of this version")
    if spec.threads:
        # For a worker run by hand: a supervised one has it in its environment from the start.
        os.environ.setdefault("OMP_NUM_THREADS", str(spec.threads))
        if encoder:
            _begin_anew(spec.threads)
    gate = None
    if os.environ.get(PARENT_PID):
        be_first_victim()
        gate = Gate()
    progress = BeatWriter(files.beat)
    if TESTING_FAULTS in os.environ:
        from chunkvisor_worker.drill import tripwire_for

        progress = tripwire_for(files, spec) or progress
    try:
        _work(encoder, spec, files, progress, gate)
    except BaseException as error:  # noqa: BLE001 - a panic in Rust is not an Exception
        gc.disable()  # a cycle can hold pinned memory as well
        log_traceback()
        with suppress(OSError):
            progress.write()  # what was noted of the memory
        exit_now(write_fault(files.fault, fault_of(error, progress.beat.phase, progress.beat)))
    progress.ended()
    exit_now(WorkerExit.DONE)


def _begin_anew(threads: int) -> None:
    """Give a forked process the threads and the seed that a fresh worker has."""
    # A template has one thread; another number was chosen by the user's own code, and stays. torch
    # is asked first: its answer is OpenMP's, which threadpoolctl changes.
    torch = sys.modules.get("torch")
    untouched = torch and torch.get_num_threads() == 1
    # Without that package, a numpy that the template has loaded multiplies with one thread.
    with suppress(ImportError):
        importlib.import_module("threadpoolctl").threadpool_limits(threads)
    if torch and untouched:
        torch.set_num_threads(threads)
    # Python re-seeds `random` after a fork; torch has the same seed in every process.
    generators = sys.modules.get("numpy.random")
    if generators:
        generators.seed()


def _work(
    encoder: Encoder | None,
    spec: Spec,
    files: AttemptFiles,
    progress: BeatWriter,
    gate: Gate | None,
) -> None:
    progress.update(rows_total=spec.stop - spec.start - len(spec.skip))
    progress.phase(Phase.IMPORT)
    encoder = encoder or make_encoder(spec.model, spec.device, spec.import_path)
    encoder.encode_spec = spec.encode
    encoder.load(progress)
    progress.phase(Phase.TOKENIZE)
    data = files.texts.read_bytes()
    if hashlib.sha256(data).hexdigest() != spec.texts_digest:
        raise TextsDamagedError(f"{files.texts.name} does not have the digest that its spec names")
    texts: list[str] = [json.loads(line) for line in data.splitlines()]
    canary = None if spec.canary_row is None else texts[spec.canary_row]
    if spec.canary:
        canary = texts.pop()
    # A canary is tokenized and encoded before the other texts are tokenized: a tokenizer that
    # crashes at a text must not look like a device that fails.
    encoder.tokenize(texts if canary is None else [canary], progress)
    vectors = VectorFile(files, spec.stop - spec.start, spec.skip, encoder.facts)
    progress.phase(Phase.READY)
    limits = gate.wait_for_go() if gate else spec.limits
    progress.gate = gate
    encoder.start(progress)
    rest = np.arange(len(texts), dtype=np.int64)
    if canary is not None:
        place = None if spec.canary_row is None else rest[[spec.canary_row]]
        _encode(encoder, vectors, place, replace(limits, rows=1), progress)
        if place is None:
            progress.update(rows_done=0, tokens_done=0, padded_tokens=0)
        else:
            rest = np.delete(rest, place)
    if len(rest):
        if canary is not None:
            progress.phase(Phase.TOKENIZE)
            encoder.tokenize([texts[at] for at in rest], progress)
        _encode(encoder, vectors, rest, limits, progress)
    if progress.leaving and vectors.left:
        exit_now(
            WorkerExit.ORPHANED,
            "stopping after the current batch; finished vectors are kept in this folder",
        )
    facts = encoder.facts()
    try:
        progress.update(freed=encoder.release())
    except Exception as error:  # noqa: BLE001 - the end of this process frees the device as well
        log_traceback()
        _held.append(error)
    progress.phase(Phase.WRITE)
    if gate and progress.beat.freed:
        gate.call()
    digest, size_bytes = vectors.complete()
    progress.phase(Phase.DONE)
    result = Result(
        fingerprint=spec.fingerprint,
        output=spec.output,
        chunk=spec.chunk,
        start=spec.start,
        stop=spec.stop,
        digest=digest,
        size_bytes=size_bytes,
        facts=facts,
        limits=limits,
        tokens=progress.beat.tokens_done,
        padded_tokens=progress.beat.padded_tokens,
        phase_s=progress.phase_s,
    )
    write_message(files.result, result)


def _encode(
    encoder: Encoder,
    vectors: VectorFile,
    places: Indices | None,
    limits: Limits,
    progress: BeatWriter,
) -> None:
    """Encode the texts that the encoder has, and write their vectors.

    `places` are their positions in the attempt; None for a canary of another chunk.
    """
    if places is not None:
        vectors.note_cut(places, encoder.texts_cut())
        progress.positions = places
    progress.phase(Phase.FORWARD)
    progress.on_batch = lambda indices: vectors.begin_batch(
        None if places is None else places[indices]
    )
    for indices, block in encoder.encode(limits, progress):
        if places is None:
            vectors.pass_canary(block)
        else:
            vectors.write_block(places[indices], block)


def _write_at(file: FileIO, offset: int, data: memoryview) -> None:
    while data.nbytes:
        written = os.pwrite(file.fileno(), data, offset)
        offset += written
        data = data[written:]


def _create(path: Path, flags: int) -> FileIO:
    return open(open_own(path, os.O_RDWR | os.O_CREAT | flags), "r+b", buffering=0)
