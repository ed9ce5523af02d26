"""The model as it is converted for `model.backend: openvino`: by a child process, once, and kept in the workdir.

One that is damaged, or made from something else, is made anew; of int8, `quantization` says what holds.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from chunkvisor.child import run_child
from chunkvisor.config.choices import Backend, Dtype
from chunkvisor.config.modelsection import ModelConfig
from chunkvisor.config.specs import model_spec
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.store.attempt import write_texts
from chunkvisor.store.childend import verdict_of_child
from chunkvisor.store.seal import digest_of
from chunkvisor.store.stamp import digest_file
from chunkvisor_worker.contract.converted import Converted, ConvertedFiles, ConvertRequest, TextSample
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, make_folder, remove_folder
from chunkvisor_worker.contract.messages import ModelSpec
from chunkvisor_worker.contract.wire import read_message, write_message

_FORM = 1
"""Of what a worker expects of a converted model: one more where an older one would not do any more."""
NAME_LENGTH = 32
"""Hex digits of the folder's name, which tell what it was made from; of int8, what is in it."""
_PLAIN, _OTHER = "converted for OpenVINO", "model.backend to torch"


def installed_version(package: str) -> str | None:
    """None = it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def openvino_version() -> str | None:
    """Of the package that is installed; None = it is not."""
    return installed_version("openvino")


def ingredients(model: ModelSpec) -> list[Any]:
    """What the model's form in float32 depends on."""
    return [_FORM, model.revision or model.name, openvino_version(), model.kwargs, model.trust_remote_code]


def with_place(model: ModelSpec, folder: Path, quantized: str | None = None) -> ModelSpec:
    """The model with the place that its converted form has in the folder, be it there or not; as it is with torch.

    In int8 that is the place of the form that is `quantized`, a digest of its content; None = it is not known yet.
    """
    if model.backend != Backend.OPENVINO:
        return model
    if model.dtype == Dtype.INT8:
        return replace(model, converted=str(place_of(folder, quantized)) if quantized is not None else None)
    # Its dtype is not among them: the network is in float32, and is computed in the dtype that is asked for.
    return replace(model, converted=str(place_of(folder, digest_of(ingredients(model)))))


def place_of(folder: Path, digest: str) -> Path:
    """The folder of a converted model, in the folder of all."""
    return folder / digest[:NAME_LENGTH]


def placed_spec(model: ModelConfig, source: ModelSource, folder: Path, quantized: str | None = None) -> ModelSpec:
    """The model as workers load it from these files, with the place of its converted form in the folder."""
    return with_place(model_spec(model, source.path, source.revision), folder, quantized)


def ensure_converted(
    model: ModelSpec,
    environment: Mapping[str, str],
    on_wait: Callable[[], None] = lambda: None,
    tell: Callable[[], None] = lambda: None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Have the converted form of the model be in its place; `tell` is called before a child sets about making it.

    `environment` is that child's. Calls `on_wait` about ten times a second, and `check` once it is made: what they
    raise ends it, and nothing is in the place then. Raises Halt, mostly 78, where the model cannot be converted, and
    OSError.
    """
    assert model.converted is not None
    files = ConvertedFiles(Path(model.converted))
    if _is_whole(files, on_wait):
        return
    tell()
    remove_folder(files.folder)
    with made_in(files.folder.parent, model, files.folder.name, environment, on_wait) as made:
        check()
        made.folder.rename(files.folder)


@contextlib.contextmanager
def made_in(
    folder: Path,
    model: ModelSpec,
    made_from: str,
    environment: Mapping[str, str],
    on_wait: Callable[[], None],
    texts: Iterable[str] = (),
    samples: Sequence[TextSample] = (),
) -> Iterator[ConvertedFiles]:
    """Have a child convert the model, beside its place in the folder; who enters gives it its name, or it goes.

    With `samples` it is quantised on their texts, from its form in float32 if the folder has that. Raises as
    `ensure_converted`.
    """
    # Nothing is synced: what a power cut takes or spoils is made anew, or missed.
    make_folder(folder, durable=False)
    scratch = AttemptFiles(folder / "converting")
    remove_folder(scratch.folder)
    make_folder(scratch.folder, durable=False)
    made = ConvertedFiles(scratch.folder / "model")
    make_folder(made.folder, durable=False)
    request = ConvertRequest(model, made_from, str(made.folder))
    if samples:
        write_texts(scratch.texts, texts)
        plain = ConvertedFiles(place_of(folder, digest_of(ingredients(model))))
        there = str(plain.folder) if _is_whole(plain, on_wait) else ""
        request = replace(request, texts=str(scratch.texts), samples=tuple(samples), plain=there)
    write_message(scratch.spec, request, durable=False)
    command = [sys.executable, "-P", "-m", "chunkvisor_worker.convert", str(scratch.folder)]
    try:
        returncode = run_child(command, scratch.log, on_wait, environment)
        if not made.record.exists():
            raise _failed(model, scratch, returncode)
        yield made
    except BaseException:
        for each in scratch.folder.glob("*/"):  # as large as the model; the log stays
            remove_folder(each)
        raise
    remove_folder(scratch.folder)


def _is_whole(files: ConvertedFiles, on_wait: Callable[[], None]) -> bool:
    """Whether the model in float32 is there as it was made, from what the name of its folder stands for."""
    known = read_message(Converted, files.record)
    return known is not None and known.made_from == files.folder.name and content_holds(files, known, on_wait)


def content_holds(files: ConvertedFiles, known: Converted, on_wait: Callable[[], None]) -> bool:
    """Whether the files are those of the record; calls `on_wait` before each."""
    for path in files.content:
        on_wait()
        try:
            if digest_file(path) != known.digests.get(path.name):
                return False
        except OSError:
            return False
    return True


def _failed(model: ModelSpec, scratch: AttemptFiles, returncode: int) -> Halt:
    verdict = verdict_of_child(returncode, scratch.fault, scratch.log)
    full = verdict.outcome is Outcome.DISK_FULL
    of_chunks = verdict.outcome in (Outcome.HOST_OOM, Outcome.CRASHED)  # their remedies say what is done about a chunk
    into, other = ("quantised to int8", "model.dtype to float32") if model.dtype == Dtype.INT8 else (_PLAIN, _OTHER)
    last_remedy = "free some space on that disk" if full else f"give it more memory, or set {other}"
    return Halt(
        ExitCode(verdict.exit_code or ExitCode.MACHINE),
        f"the model {model.name} cannot be {into}",
        why=verdict.reason,
        remedy=last_remedy if of_chunks else verdict.remedy or last_remedy,
        log=scratch.log,
        see=verdict.see,
    )
