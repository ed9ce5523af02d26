"""Uploads the finals of a finished run to where the config says, unless they are there already."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from chunkvisor.assemble.manifest import read_done_manifest, recorded_parts
from chunkvisor.assemble.sides import side_files
from chunkvisor.assemble.upload import Sent, UploadRequest
from chunkvisor.child import ask_child
from chunkvisor.config.model import Config
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import Emit
from chunkvisor.events.output import Uploaded, Uploading
from chunkvisor.ingest.remote import State, state_of
from chunkvisor.store.layout import Layout
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.seal import DamagedError, read_record, write_sealed
from chunkvisor.store.stamp import digest_file
from chunkvisor_worker.contract.files import remove_folder


@dataclass(frozen=True, slots=True)
class _Record:
    """What was uploaded last."""

    address: str
    files: dict[str, str]
    """sha256 of each, by its name."""
    manifest_size_bytes: int
    manifest_tag: str
    """Of the manifest there, as `remote.state_of` has them."""


def upload_finals(config: Config, layout: Layout, emit: Emit, on_wait: Callable[[], None]) -> None:
    """Upload each complete final, combined ones as well. Raises Halt: 74, 75, 78; OSError."""
    if config.upload is None:
        return
    outputs = [*map(layout.output, config.outputs), *map(layout.combined, config.combine)]
    for output in outputs:
        files = _files_of(output)
        if not files:
            continue
        before = _read(output)
        wanted = {sent.name: sent.digest for sent in files}
        if (
            before is not None
            and (before.address, before.files) == (config.upload, wanted)
            and _is_there(before, output)
        ):
            continue
        stale = sorted(before.files.keys() - wanted) if before is not None and before.address == config.upload else []
        size_bytes = sum(Path(sent.path).stat().st_size for sent in files)
        emit(Uploading(output.name, config.upload, size_bytes))
        there = _run(output, UploadRequest(config.upload, files, tuple(stale)), on_wait)
        _, manifest_bytes, tag, *_ = there[output.manifest.name]
        write_sealed(output.uploaded, asdict(_Record(config.upload, wanted, int(manifest_bytes), str(tag))))
        emit(Uploaded(output.name, f"{config.upload}/{output.manifest.name}"))


def _files_of(output: OutputLayout) -> tuple[Sent, ...]:
    """Sides, final or shards, and the manifest at the end; none where it is not complete."""
    try:
        manifest = read_done_manifest(output)
    except DamagedError:
        return ()
    if manifest is None:
        return ()
    found = [*side_files(output, manifest), *((part.path, digest) for part, digest in recorded_parts(output, manifest))]
    if (listed := manifest.get("quarantined_in")) is not None:
        found.insert(0, (output.quarantined, listed["digest"].removeprefix("sha256:")))
    found.append((output.manifest, digest_file(output.manifest)))
    return tuple(Sent(str(path), str(path.relative_to(output.workdir)), digest) for path, digest in found)


def _read(output: OutputLayout) -> _Record | None:
    try:
        return read_record(_Record, output.uploaded)
    except DamagedError:
        return None


def _is_there(record: _Record, output: OutputLayout) -> bool:
    """Whether nobody has removed or replaced it there. Raises Halt where it cannot be told."""
    try:
        _, size_bytes, tag, *_ = state_of(f"{record.address}/{output.manifest.name}")
    except Halt as halt:
        if halt.code is ExitCode.CONFIG:
            return False  # the upload says what is wrong, or mends it
        raise
    return (size_bytes, tag) == (record.manifest_size_bytes, record.manifest_tag)


def _run(output: OutputLayout, request: UploadRequest, on_wait: Callable[[], None]) -> dict[str, State]:
    folder = output.state / "upload"
    remove_folder(folder)
    folder.mkdir(mode=0o700)
    log = folder / "upload.log"
    answer = ask_child("chunkvisor.assemble.upload", request, folder, log, on_wait)
    if answer.status == 0:
        remove_folder(folder)
        found: dict[str, State] = answer.said
        return found
    why = f"{output.name} is complete in the workdir all the same"
    if answer.halt is not None:
        remove_folder(folder)
        answer.halt.why = "; ".join(filter(None, [answer.halt.why, why]))
        raise answer.halt
    raise Halt(
        ExitCode.BUG,
        f"the process that uploads {output.name} ended with {answer.status}",
        why=why,
        remedy="please report it with the log",
        log=log,
    )
