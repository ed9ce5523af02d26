"""The model as it is converted for `model.backend: openvino`: by a child process, once, and kept in the workdir.

One that is damaged, or made from something else, is made anew.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from chunkvisor.child import run_child
from chunkvisor.config.choices import Backend
from chunkvisor.config.modelsection import ModelConfig
from chunkvisor.config.specs import model_spec
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.store.childend import verdict_of_child
from chunkvisor.store.seal import digest_of
from chunkvisor.store.stamp import digest_file
from chunkvisor_worker.contract.converted import Converted, ConvertedFiles, ConvertRequest
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, make_folder, remove_folder
from chunkvisor_worker.contract.messages import ModelSpec
from chunkvisor_worker.contract.wire import read_message, write_message

_FORM = 1
"""Of what a worker expects of a converted model: one more where an older one would not do any more."""
_NAME_LENGTH = 32
"""Hex digits of the folder's name, which tell what it was made from."""


def openvino_version() -> str | None:
    """Of the package that is installed; None = it is not."""
    try:
        return version("openvino")
    except PackageNotFoundError:
        return None


def with_place(model: ModelSpec, folder: Path) -> ModelSpec:
    """The model with the place that its converted form has in the folder, be it there or not; as it is with torch."""
    if model.backend != Backend.OPENVINO:
        return model
    # Its dtype is not among them: the network is in float32, and is computed in the dtype that is asked for.
    whose = model.revision or model.name
    made_from = digest_of([_FORM, whose, openvino_version(), model.kwargs, model.trust_remote_code])
    return replace(model, converted=str(folder / made_from[:_NAME_LENGTH]))


def placed_spec(model: ModelConfig, source: ModelSource, folder: Path) -> ModelSpec:
    """The model as workers load it from these files, with the place of its converted form in the folder."""
    return with_place(model_spec(model, source.path, source.revision), folder)


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
    # Nothing is synced: what a power cut takes or spoils is made anew.
    make_folder(files.folder.parent, durable=False)
    remove_folder(files.folder)
    scratch = AttemptFiles(files.folder.with_name("converting"))
    remove_folder(scratch.folder)
    make_folder(scratch.folder, durable=False)
    made = ConvertedFiles(scratch.folder / "model")
    make_folder(made.folder, durable=False)
    write_message(scratch.spec, ConvertRequest(model, files.folder.name, str(made.folder)), durable=False)
    command = [sys.executable, "-P", "-m", "chunkvisor_worker.convert", str(scratch.folder)]
    returncode = run_child(command, scratch.log, on_wait, environment)
    if not made.record.exists():
        raise _failed(model, scratch, returncode)
    check()
    made.folder.rename(files.folder)
    remove_folder(scratch.folder)


def _is_whole(files: ConvertedFiles, on_wait: Callable[[], None]) -> bool:
    known = read_message(Converted, files.record)
    if known is None or known.made_from != files.folder.name:
        return False
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
    last_remedy = "free some space on that disk" if full else "give it more memory, or set model.backend to torch"
    return Halt(
        ExitCode(verdict.exit_code or ExitCode.MACHINE),
        f"the model {model.name} cannot be converted for OpenVINO",
        why=verdict.reason,
        remedy=verdict.remedy or last_remedy,
        log=scratch.log,
        see=verdict.see,
    )
