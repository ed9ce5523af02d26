"""Uploads the finals of a finished run to where the config says, unless they are there already.

What was put where is recorded beside the finals, so that later runs, updates and those from scratch know it again;
another's files are not replaced.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from chunkvisor.assemble.manifest import read_done_if_whole, recorded_parts
from chunkvisor.assemble.sides import side_files
from chunkvisor.assemble.upload import Sent, States, UploadRequest
from chunkvisor.assemble.uploadowner import Content, Known, refusal, vectors_of
from chunkvisor.child import ask_child
from chunkvisor.config.model import Config
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import Emit
from chunkvisor.events.output import Uploaded, Uploading
from chunkvisor.events.run import Note
from chunkvisor.store.layout import Layout
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.seal import read_if_whole, write_sealed
from chunkvisor.store.stamp import digest_file
from chunkvisor_worker.contract.files import make_folder, remove_folder


@dataclass(frozen=True, slots=True)
class _Upload:
    address: str
    files: tuple[Known, ...]


@dataclass(frozen=True, slots=True)
class _Record:
    """What was uploaded of an output."""

    mark: str
    """Of this workdir, in the names of files under way."""
    uploads: tuple[_Upload, ...] = ()
    """One for each address that there ever was."""

    def known(self, address: str) -> dict[str, Known]:
        """What was put there, by name."""
        return {each.name: each for upload in self.uploads if upload.address == address for each in upload.files}

    def with_files(self, address: str, files: Sequence[Known]) -> "_Record":
        """The same, with these files at the address."""
        others = (upload for upload in self.uploads if upload.address != address)
        return replace(self, uploads=(*others, _Upload(address, tuple(files))))


def refuse_others(
    config: Config, layout: Layout, unfinished: Sequence[str], emit: Emit, on_wait: Callable[[], None]
) -> None:
    """Look, before anything is encoded, whether the finals of these outputs may go where they are to be uploaded.

    Raises Halt (78) where they may not, OSError. What cannot be told now is left to the upload.
    """
    combined = [name for name, parts in config.combine.items() if {*parts} & {*unfinished}]
    outputs = [*map(layout.output, unfinished), *map(layout.combined, combined)]
    if config.upload is None or not outputs:
        return
    try:
        there = _ask(layout, UploadRequest(config.upload, look_for=_names(outputs)), on_wait)
    except Halt as halt:
        if halt.code is not ExitCode.TRY_AGAIN:
            raise
        emit(Note(f"{halt.what} What is made is uploaded at the end."))
        return
    others = list[str]()
    for output in outputs:
        known, state = _read(output).known(config.upload).get(output.manifest.name), there[output.manifest.name]
        unsure = known is not None and len(known.contents) > 1
        if state is not None and not unsure and (known is None or not known.is_as_left(state)):
            others.append(output.manifest.name)
    if others:
        raise refusal(config.upload, others)


def upload_finals(config: Config, layout: Layout, emit: Emit, on_wait: Callable[[], None]) -> None:
    """Upload each complete final, combined ones as well. Raises Halt: 74, 75, 78; OSError."""
    if config.upload is None:
        return
    outputs = [*map(layout.output, config.outputs), *map(layout.combined, config.combine)]
    manifests = [(output, read_done_if_whole(output)) for output in outputs]
    finals = [(output, manifest, _read(output)) for output, manifest in manifests if manifest is not None]
    there = States()
    if sent_before := [output for output, _, record in finals if record.known(config.upload)]:
        there = _ask(layout, UploadRequest(config.upload, look_for=_names(sent_before)), on_wait)
    for output, manifest, record in finals:
        files, known = _files_of(output, manifest), record.known(config.upload)
        wanted = {sent.name: (sent.content,) for sent in files}
        last = known.get(output.manifest.name)
        as_left = last is not None and last.is_as_left(there.get(last.name))
        if as_left and {name: each.contents for name, each in known.items()} == wanted:
            continue
        for sent in files:  # from now on, what is there may be either
            each = known.get(sent.name, Known(sent.name, ()))
            known[sent.name] = replace(each, contents=tuple(dict.fromkeys((*each.contents, sent.content))))
        record = record.with_files(config.upload, list(known.values()))
        write_sealed(output.uploaded, asdict(record))
        emit(Uploading(output.name, config.upload, sum(sent.content.size_bytes for sent in files)))
        request = UploadRequest(config.upload, files, vectors_of(manifest), tuple(known.values()), record.mark)
        states = _ask(layout, request, on_wait, output)
        done = [_known(sent, states) for sent in files]
        write_sealed(output.uploaded, asdict(record.with_files(config.upload, done)))
        emit(Uploaded(output.name, f"{config.upload}/{output.manifest.name}"))


def _files_of(output: OutputLayout, manifest: dict[str, Any]) -> tuple[Sent, ...]:
    """Sides, final or shards, and the manifest at the end."""
    found = [*side_files(output, manifest), *((part.path, digest) for part, digest in recorded_parts(output, manifest))]
    if (listed := manifest.get("quarantined_in")) is not None:
        found.insert(0, (output.quarantined, listed["digest"].removeprefix("sha256:")))
    found.append((output.manifest, digest_file(output.manifest)))
    return tuple(
        Sent(str(path), str(path.relative_to(output.workdir)), Content(digest, path.stat().st_size))
        for path, digest in found
    )


def _read(output: OutputLayout) -> _Record:
    return read_if_whole(_Record, output.uploaded) or _Record(secrets.token_hex(4))


def _names(outputs: Sequence[OutputLayout]) -> tuple[str, ...]:
    """Of their manifests."""
    return tuple(output.manifest.name for output in outputs)


def _known(sent: Sent, states: States) -> Known:
    """What has just been put there."""
    state = states[sent.name]
    if state is None:  # somebody has removed it at once
        return Known(sent.name, (sent.content,))
    return Known(sent.name, (sent.content,), int(state[1]), str(state[2]))


def _ask(
    layout: Layout, request: UploadRequest, on_wait: Callable[[], None], output: OutputLayout | None = None
) -> States:
    """Have a child do it; `output` is what it uploads. Raises Halt, OSError."""
    folder = layout.upload
    remove_folder(folder)
    make_folder(folder, durable=False)
    log = folder / "upload.log"
    answer = ask_child("chunkvisor.assemble.upload", request, folder, log, on_wait)
    if answer.status == 0:
        remove_folder(folder)
        states: States = answer.said
        return states
    why = f"{output.name} is complete in the workdir all the same" if output is not None else ""
    if answer.halt is not None:
        remove_folder(folder)
        answer.halt.why = "; ".join(filter(None, [answer.halt.why, why]))
        raise answer.halt
    raise Halt(
        ExitCode.BUG,
        f"the process that uploads ended with {answer.status}",
        why=why,
        remedy="please report it with the log",
        log=log,
    )
