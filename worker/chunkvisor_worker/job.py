"""One attempt at one chunk, from its spec to its result or its fault."""

import contextlib
import gc
import hashlib
import json
import os
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np

from chunkvisor_worker.contract.exits import PARENT_PID, TESTING_FAULTS, WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec, Phase, Result, Spec
from chunkvisor_worker.contract.wire import read_message, write_message
from chunkvisor_worker.encoder import Encoder
from chunkvisor_worker.faults import exit_code_of, fault_of
from chunkvisor_worker.liveness import Gate, be_first_victim, leave
from chunkvisor_worker.plugin import PluginEncoder
from chunkvisor_worker.progress import BeatWriter
from chunkvisor_worker.vectorfile import VectorFile

Build: TypeAlias = Callable[[Spec], Encoder]
"""Makes the encoder of an attempt."""

_held: list[BaseException] = []
"""Exceptions that must not be freed before the end: see `run_and_exit`."""


class TextsDamagedError(Exception):
    """The file of the texts is not the one that the spec speaks of."""


def make_encoder(model: ModelSpec, encode: EncodeSpec, device: str, import_path: tuple[str, ...]) -> Encoder:
    """The encoder that the model names; imports no more than that one needs."""
    if model.encoder != "sentence-transformers":
        return PluginEncoder(model, encode, device, import_path)
    from chunkvisor_worker.sentence_transformer import SentenceTransformerEncoder

    return SentenceTransformerEncoder(model, encode, device)


def build_encoder(spec: Spec) -> Encoder:
    """The encoder of an attempt."""
    return make_encoder(spec.model, spec.encode, spec.device, spec.import_path)


def run_and_exit(folder: Path, build: Build = build_encoder, progress: BeatWriter | None = None) -> NoReturn:
    """Do what the folder's spec asks for; the exit code tells in short what the folder tells in full.

    It ends the process, without a return to the interpreter and, after a fault, from within the `except` block: a CUDA
    fault that is sticky makes torch abort where pinned memory or an event is freed (pytorch#84756), and that is what
    the frames of the traceback hold. The abort would replace the exit code.
    """
    files = AttemptFiles(folder)
    spec = read_message(Spec, files.spec)
    if spec is None:
        leave(WorkerExit.USAGE, f"{files.spec} is missing, or is no spec of this version")
    if spec.threads:
        # For a torch that is imported later; a worker under supervision has it in its environment from the start.
        os.environ.setdefault("OMP_NUM_THREADS", str(spec.threads))
    gate = None
    if os.environ.get(PARENT_PID):
        be_first_victim()
        gate = Gate()
    if TESTING_FAULTS in os.environ:
        from chunkvisor_worker.drill import provoked

        progress = progress or provoked(files, spec)
    progress = progress or BeatWriter(files.beat)
    try:
        _work(build, spec, files, progress, gate)
    # Rust panics reach Python as a BaseException that is no Exception (pyo3 PanicException)
    except BaseException as error:  # noqa: BLE001
        gc.disable()  # a cycle, too, can hold pinned memory
        _log_traceback()
        beat = progress.beat
        fault = fault_of(error, beat.phase, beat.batch_rows, beat.batch_tokens, beat.rows_done, progress.provoked)
        try:
            write_message(files.fault, fault)
        except OSError:
            _log_traceback()  # a full disk: the exit code has to say it alone
        leave(exit_code_of(fault))
    progress.ended()
    leave(WorkerExit.DONE)


def _work(build: Build, spec: Spec, files: AttemptFiles, progress: BeatWriter, gate: Gate | None) -> None:
    progress.know(rows_total=spec.stop - spec.start - len(spec.skip))
    progress.phase(Phase.IMPORT)
    encoder = build(spec)
    encoder.load(progress)
    progress.phase(Phase.TOKENIZE)
    texts = read_texts(files.texts, spec)
    canary = _canary_of(spec, texts)
    # In doubt, nothing but the canary is touched before the device has shown that it works: not even its tokenizer,
    # which may die of a text, may then be taken for a device that fails.
    encoder.tokenize(texts if canary is None else [canary], progress)
    vectors = VectorFile(files, spec.stop - spec.start, spec.skip, encoder.facts)
    progress.phase(Phase.READY)
    limits = gate.wait_for_go().limits if gate else spec.limits
    if gate:
        progress.leave_when(lambda: gate.leaving)
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
    progress.tell_begun(lambda indices: vectors.begin(rest[indices]))
    for indices, block in encoder.encode(limits, progress) if len(rest) else ():
        vectors.add(rest[indices], block)
    if progress.leaving and vectors.left:
        leave(WorkerExit.ORPHANED, "told to leave after the batch under way; what is encoded stays in this folder")
    facts = encoder.facts()
    progress.know(freed=_release(encoder))
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


def _canary_of(spec: Spec, texts: list[str]) -> str | None:
    return spec.canary if spec.canary_row is None else texts[spec.canary_row]


def _encode_canary(encoder: Encoder, spec: Spec, vectors: VectorFile, limits: Limits, progress: BeatWriter) -> None:
    """Encode the canary, to its end: no other batch begins meanwhile, not even one that is prefetched."""
    own = np.array([spec.canary_row], dtype=np.int64) if spec.canary_row is not None else None
    if own is not None:
        vectors.note_cut(own, encoder.texts_cut())
    progress.positions = own if own is not None else np.zeros(0, dtype=np.int64)
    progress.phase(Phase.FORWARD)
    progress.tell_begun(lambda _: vectors.begin_canary() if own is None else vectors.begin(own))
    for _, block in encoder.encode(replace(limits, rows=1), progress):
        if own is None:
            vectors.pass_canary(block)
        else:
            vectors.add(own, block)
    if own is None:  # it was none of the attempt's texts
        progress.know(rows_done=0, tokens_done=0, padded_tokens=0)


def read_texts(path: Path, spec: Spec) -> list[str]:
    """The texts of the attempt, in order. Raises TextsDamagedError, OSError."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != spec.texts_digest:
        raise TextsDamagedError(f"{path.name} does not have the digest that its spec names")
    texts = [json.loads(line) for line in data.splitlines()]
    count = spec.stop - spec.start - len(spec.skip)
    if len(texts) != count or not all(isinstance(text, str) for text in texts):
        raise TextsDamagedError(f"{path.name} does not hold {count} strings")
    return texts


def _release(encoder: Encoder) -> bool:
    try:
        return encoder.release()
    except Exception as error:  # noqa: BLE001 - the vectors are there; the end of this process frees the device as well
        _log_traceback()
        _held.append(error)
        return False


def _log_traceback() -> None:
    with contextlib.suppress(OSError, ValueError):  # the encoder may have closed standard error
        traceback.print_exc()
