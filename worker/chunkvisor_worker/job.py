"""One attempt at one chunk, from its spec to its result or its fault.

An encoder is used once, in the order load, tokenize, start, encode, facts, release; in a template process it is loaded,
and in each process forked from it gets what the output wants (`wanted`) and goes on: load again, tokenize, and so on.

- `load` loads the weights to host memory, unless that is done; it touches no CUDA. `tokenize` takes the texts in.
- `start` moves to the device. After it, `texts_cut` has the texts of more tokens than the model reads, int64 of shape
  (n, 2): position, and tokens before the cut.
- `encode` yields (indices, vectors): int64 of shape (n,), positions in the list given to `tokenize`, each exactly once;
  float32 of shape (n, dimension). It ends before that if `progress.leaving` says so.
- `facts` has what was found out about the model. `release` gives the device's memory back, and says whether another
  process may have the device now, before this one has ended.
"""

import contextlib
import gc
import hashlib
import importlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np

from chunkvisor_worker.contract.exits import PARENT_PID, TESTING_FAULTS, WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec, Phase, Result, Spec
from chunkvisor_worker.contract.wire import read_message, write_message
from chunkvisor_worker.faults import fault_of, log_traceback, write_fault
from chunkvisor_worker.liveness import BeatWriter, Gate, be_first_victim, leave
from chunkvisor_worker.plugin import PluginEncoder
from chunkvisor_worker.vectorfile import VectorFile

if TYPE_CHECKING:  # a worker of a plug-in imports no more than that needs
    from chunkvisor_worker.sentence_transformer import SentenceTransformerEncoder

    Encoder: TypeAlias = PluginEncoder | SentenceTransformerEncoder
else:
    Encoder = PluginEncoder

_held: list[BaseException] = []  # exceptions that must not be freed before the end: see `run_and_exit`


class TextsDamagedError(Exception):
    """The file of the texts is not the one that the spec speaks of."""


def make_encoder(model: ModelSpec, encode: EncodeSpec, device: str, import_path: tuple[str, ...]) -> Encoder:
    """The encoder that the model names; imports no more than that one needs."""
    if model.encoder != "sentence-transformers":
        return PluginEncoder(model, encode, device, import_path)
    from chunkvisor_worker.sentence_transformer import SentenceTransformerEncoder

    return SentenceTransformerEncoder(model, encode, device)


def run_and_exit(folder: Path, encoder: Encoder | None = None) -> NoReturn:
    """Do what the folder's spec asks for; the exit code tells in short what the folder tells in full.

    After a fault it ends the process from within the `except` block: a sticky CUDA fault makes torch abort where pinned
    memory or an event is freed (pytorch#84756), which the frames of the traceback hold.
    """
    files = AttemptFiles(folder)
    spec = read_message(Spec, files.spec)
    if spec is None:
        leave(WorkerExit.USAGE, f"{files.spec} is missing, or is not a spec of this version")
    if spec.threads:
        # For a torch that is imported later; a supervised worker has it in its environment from the start.
        os.environ.setdefault("OMP_NUM_THREADS", str(spec.threads))
        if encoder is not None:
            _begin_anew(spec.threads)
    gate = None
    if os.environ.get(PARENT_PID):
        be_first_victim()
        gate = Gate()
    progress = BeatWriter(files.beat)
    if TESTING_FAULTS in os.environ:
        from chunkvisor_worker.drill import provoked

        progress = provoked(files, spec) or progress
    try:
        _work(encoder, spec, files, progress, gate)
    # Rust panics reach Python as a BaseException that is not an Exception (pyo3 PanicException)
    except BaseException as error:  # noqa: BLE001
        gc.disable()  # a cycle, too, can hold pinned memory
        log_traceback()
        leave(write_fault(files.fault, fault_of(error, progress.beat.phase, progress.beat)))
    progress.ended()
    leave(WorkerExit.DONE)


def _begin_anew(threads: int) -> None:
    """Undo in a forked process what its template had to do otherwise than a fresh worker."""
    # As many threads as a fresh worker has, unless the user's own code has chosen: one is what the template had.
    # torch is asked first: its answer is OpenMP's, which the pools change.
    torch = sys.modules.get("torch")
    untouched = torch is not None and torch.get_num_threads() == 1
    with contextlib.suppress(ImportError):  # a numpy loaded by the template then multiplies with one thread
        importlib.import_module("threadpoolctl").threadpool_limits(threads)
    if torch is not None and untouched:
        torch.set_num_threads(threads)
    # Python re-seeds `random` itself, after a fork; torch begins with the same seed in every process.
    if generators := sys.modules.get("numpy.random"):
        generators.seed()


def _work(encoder: Encoder | None, spec: Spec, files: AttemptFiles, progress: BeatWriter, gate: Gate | None) -> None:
    progress.know(rows_total=spec.stop - spec.start - len(spec.skip))
    progress.phase(Phase.IMPORT)
    encoder = encoder or make_encoder(spec.model, spec.encode, spec.device, spec.import_path)
    encoder.wanted = spec.encode
    encoder.load(progress)
    progress.phase(Phase.TOKENIZE)
    data = files.texts.read_bytes()
    if hashlib.sha256(data).hexdigest() != spec.texts_digest:
        raise TextsDamagedError(f"{files.texts.name} does not have the digest that its spec names")
    texts: list[str] = [json.loads(line) for line in data.splitlines()]
    canary = spec.canary if spec.canary_row is None else texts[spec.canary_row]
    # In doubt, nothing but the canary is touched before the device has shown that it works: a tokenizer that dies of a
    # text must not be taken for a device that fails.
    encoder.tokenize(texts if canary is None else [canary], progress)
    vectors = VectorFile(files, spec.stop - spec.start, spec.skip, encoder.facts)
    progress.phase(Phase.READY)
    limits = gate.wait_for_go() if gate else spec.limits
    progress.gate = gate
    encoder.start(progress)
    rest = np.arange(len(texts), dtype=np.int64)
    if canary is not None:
        _encode_canary(encoder, spec, vectors, limits, progress)
        if spec.canary_row is not None:
            rest = np.delete(rest, spec.canary_row)
        progress.phase(Phase.TOKENIZE)
        encoder.tokenize([texts[at] for at in rest], progress)
    vectors.note_cut(rest, encoder.texts_cut())
    progress.positions = rest
    progress.phase(Phase.FORWARD)
    progress.begun = lambda indices: vectors.begin(rest[indices])
    for indices, block in encoder.encode(limits, progress) if len(rest) else ():
        vectors.add(rest[indices], block)
    if progress.leaving and vectors.left:
        leave(WorkerExit.ORPHANED, "stopping after the current batch; finished vectors are kept in this folder")
    facts = encoder.facts()
    try:
        progress.know(freed=encoder.release())
    except Exception as error:  # noqa: BLE001 - the vectors are there; the end of this process frees the device as well
        log_traceback()
        _held.append(error)
    progress.phase(Phase.WRITE)
    if gate and progress.beat.freed:
        gate.call()
    digest, size_bytes = vectors.finish()
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
    write_message(files.result, result, durable=False)


def _encode_canary(encoder: Encoder, spec: Spec, vectors: VectorFile, limits: Limits, progress: BeatWriter) -> None:
    """Encode the canary, to its end: no other batch begins meanwhile, not even one that is prefetched."""
    own = np.array([spec.canary_row], dtype=np.int64) if spec.canary_row is not None else None
    if own is not None:
        vectors.note_cut(own, encoder.texts_cut())
        progress.positions = own
    progress.phase(Phase.FORWARD)
    progress.begun = lambda _: vectors.begin(own)
    for _, block in encoder.encode(replace(limits, rows=1), progress):
        if own is None:
            vectors.pass_canary(block)
        else:
            vectors.add(own, block)
    if own is None:  # it was none of the attempt's texts
        progress.know(rows_done=0, tokens_done=0, padded_tokens=0)
