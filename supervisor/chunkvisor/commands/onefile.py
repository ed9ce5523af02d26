"""`chunkvisor encode`: one source, one final file where the person wants it, the state in a folder of its own.

`session` does the work, as for any config.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chunkvisor.assemble import badrows
from chunkvisor.assemble.forms import FORM_KEYS, Form
from chunkvisor.assemble.manifest import is_manifest, note_move
from chunkvisor.config.load import Given, LoadedConfig, from_values
from chunkvisor.config.model import Config
from chunkvisor.errors import ExitCode, Halt, config_error, to_check
from chunkvisor.events.event import Event, OutputComplete
from chunkvisor.events.state import RunState
from chunkvisor.show.lines import how_to_read
from chunkvisor.show.observer import Observer, Observers
from chunkvisor.sources.resolve import resolve, signature
from chunkvisor.store.disk import DISK_ERRNOS, check_target, disk_halt
from chunkvisor.store.identity import UNREAD, Identity, arithmetic_variables, differences, identity_of
from chunkvisor.store.layout import Layout
from chunkvisor.store.records import DamagedError, digest_file, digest_of, read_sealed, write_sealed
from chunkvisor.store.workdir import hold
from chunkvisor.supervise.means import Request
from chunkvisor.supervise.opening import GROWING
from chunkvisor.supervise.session import run
from chunkvisor.units import counted
from chunkvisor_worker.contract.files import (
    copy_atomic,
    make_folders,
    remove_folder,
    sync_folder,
)
from chunkvisor_worker.contract.wire import from_json

OUTPUT = "embeddings"
"""Name of the one output in the state folder."""

_MADE_FROM = "made_from"
"""Key of the manifest by which a later call knows that the file beside it is what it would make."""

_FILE = "file"
"""Key of the manifest: size in bytes and mtime in nanoseconds of the file, which spares reading it."""


@dataclass(frozen=True, slots=True)
class OneFile:
    """What is asked for."""

    values: Mapping[str, Any]
    """Config but for `workdir`; `outputs` has the one output OUTPUT."""
    out: Path
    """Absolute; ends in .npy."""
    workdir: Path
    """Absolute; all state."""
    folder: Path
    """Relative paths in `values` start here."""
    overrides: tuple[str, ...] = ()
    keep: bool = False
    """Keep the state, chunks included, once the file is complete."""
    from_scratch: bool = False
    """Discard earlier state, and replace the file if it is there."""
    stop_after_s: float | None = None
    """So long it may take, at most."""
    typed: str = ""
    """The command, to be typed again."""

    @property
    def manifest(self) -> Path:
        """Beside the final file."""
        return self.out.with_suffix(".json")


def state_beside(out: Path) -> Path:
    """Where the state of a file is kept unless the person says otherwise."""
    return out.with_name(f"{out.name}.chunkvisor")


def ingredients(config: Config) -> dict[str, Any]:
    """What shapes the vectors, as far as it is known without reading source or model."""
    output = config.outputs[OUTPUT]
    source = digest_of(signature(resolve(output.source)))
    model = Path(config.model.name)
    revision = config.model.revision or ""
    if config.model.is_folder:
        files = sorted(path for path in model.rglob("*") if path.is_file())
        stats = [(str(path), stat.st_size, stat.st_mtime_ns) for path in files for stat in [path.stat()]]
        revision = digest_of(stats)
    return identity_of(config, OUTPUT, revision, source, UNREAD, arithmetic_variables(os.environ, config.env)).values


def refuse_foreign(wanted: OneFile) -> None:
    """Raise Halt (78) if the file is there and `chunkvisor encode` has not made it: nothing replaces such a file."""
    if wanted.out.exists():
        _own_manifest(wanted)


def _own_manifest(wanted: OneFile) -> tuple[dict[str, Any], Identity]:
    """The manifest beside the file, and what it was made from. Raises Halt (78)."""
    try:
        manifest = read_sealed(wanted.manifest)
    except (DamagedError, OSError):
        manifest = None
    before = from_json(Identity, json.dumps({"values": (manifest or {}).get(_MADE_FROM)}))
    if manifest is None or before is None:
        what = f"{wanted.out} is there already, and `chunkvisor encode` has not made it"
        raise config_error(what, remedy="choose another name by -o, or move it away")
    return manifest, before


def made_before(wanted: OneFile, made_from: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of the file if it is there and is what this call would make; None where there is work to do.

    Raises Halt (78) where another file is in its place.
    """
    if not wanted.out.exists():
        return None
    remedy = "choose another name by -o, or replace it by adding --from-scratch"
    manifest, before = _own_manifest(wanted)
    if changes := differences(before, Identity(dict(made_from))):
        what = f"{wanted.out} is there already, with {counted(manifest['rows'], 'row')}, but it was made differently:\n"
        what += "\n".join(f"  {change}" for change in changes)
        raise config_error(what, remedy=f"{remedy}; {GROWING}")
    state = Layout(wanted.workdir).output(OUTPUT)
    if state.final.exists() or (manifest["quarantined"] and state.state.exists()):
        return None  # a kill came between the two renames; or `retry` may have been called since
    untouched = manifest[_FILE] == _size_and_time(wanted.out)
    if not untouched and f"sha256:{digest_file(wanted.out)}" != manifest["digest"]:
        raise config_error(f"{wanted.out} has changed since it was made", remedy=remedy)
    return manifest


def publish(wanted: OneFile, made_from: Mapping[str, Any]) -> None:
    """Put manifest and file in their places, one rename each; the file last, for it says that all is done."""
    layout = Layout(wanted.workdir)
    output = layout.output(OUTPUT)
    try:
        with hold(layout.lock, ""):
            more: dict[str, Any] = {_MADE_FROM: dict(made_from), _FILE: _size_and_time(output.final)}
            if (manifest := read_sealed(output.manifest)) is None:
                raise FileNotFoundError(output.manifest)
            if (listed := manifest.get("quarantined_in")) is not None:
                rows = wanted.out.with_suffix(".quarantined.jsonl")
                copy_atomic(output.quarantined, rows)
                more["quarantined_in"] = {**listed, "file": rows.name}
            if "file" in (cut := manifest.get("truncated") or {}):
                rows = wanted.out.with_suffix(".truncated.jsonl")
                copy_atomic(output.truncated, rows)
                more["truncated"] = {**cut, "file": rows.name}
            write_sealed(wanted.manifest, manifest | more)
            with _disk_in_words(wanted.out.parent, output.final):
                note_move(output, wanted.out)
                _move(output.final, wanted.out)
    except (FileNotFoundError, DamagedError):
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"{output.final} is gone: another run of the same command has finished at the same time",
            remedy="run the same command again to see that all is well",
        ) from None


@contextlib.contextmanager
def _disk_in_words(folder: Path, source: Path) -> Iterator[None]:
    """Raises Halt (74) where the disk of the folder is too full for a copy of the file, or fails."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRNOS:
            raise
        raise disk_halt(error, folder, source.stat().st_size) from error


def _move(source: Path, target: Path) -> None:
    """By a rename, or onto another disk by a copy; each name is durable before the next is taken away."""
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        partial = target.with_name(f".{target.name}.partial")
        partial.unlink(missing_ok=True)
        with open(source, "rb") as file, open(partial, "xb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
        shutil.copystat(source, partial)
        partial.replace(target)
    sync_folder(target.parent)
    source.unlink(missing_ok=True)  # of two disks, each keeps its own order
    # The old name, too: as long as it is there, a later call takes the work for unfinished.
    sync_folder(source.parent)


def remove_state(wanted: OneFile) -> None:
    """Remove what we have put into the state folder, by name, and the folder if nothing else is in it."""
    layout = Layout(wanted.workdir)
    output = layout.output(OUTPUT)
    if wanted.keep or not layout.hidden.is_dir():
        return
    with hold(layout.lock, ""):
        for path in (output.manifest, output.final, output.quarantined, output.truncated):
            path.unlink(missing_ok=True)
        if any(folder.name != OUTPUT for folder in layout.outputs.glob("*/")):
            remove_folder(output.state)
            return  # it is the workdir of other jobs, too
        layout.report.unlink(missing_ok=True)
        remove_folder(layout.hidden)
    with contextlib.suppress(OSError):
        layout.workdir.rmdir()


def _size_and_time(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


class _Published(Observers):
    """Shows where the final file will be: when the run tells of it, it has its name in the state folder still."""

    def __init__(self, shown: Observer, out: Path) -> None:
        super().__init__(shown)
        self._out = out

    def event(self, event: Event, state: RunState) -> None:
        """Pass it on."""
        if isinstance(event, OutputComplete):
            event = replace(event, path=str(self._out))
        super().event(event, state)


def encode(wanted: OneFile, observer: Observer) -> ExitCode:
    """Make the file. Raises Halt where it does not end well; OSError."""
    chunk = {**wanted.values.get("chunk", {}), **({"keep": True} if wanted.keep else {})}
    values = {**wanted.values, "workdir": str(wanted.workdir), "chunk": chunk}
    config = from_values(values, wanted.folder, wanted.overrides)
    for key in (*FORM_KEYS, "where"):
        output = config.outputs[OUTPUT]
        if getattr(output, key) != type(output).model_fields[key].default:
            why = "`encode` makes the one .npy of -o, of float32"
            raise config_error(f"outputs.{OUTPUT}.{key} is for `chunkvisor run` alone", why=why)
    check_target(wanted.out, "-o", lambda _: True)  # what a file there is, is seen below
    check_target(wanted.manifest, "-o", is_manifest)
    made_from = ingredients(config)
    if wanted.from_scratch:
        refuse_foreign(wanted)
    elif (manifest := made_before(wanted, made_from)) is not None:
        bad = badrows.count_of(manifest)
        observer.say(f"{wanted.out}: complete already" + (f", {counted(bad, 'row')} without a vector" if bad else ""))
        remove_state(wanted)
        return ExitCode.QUARANTINED if bad else ExitCode.COMPLETE
    try:
        make_folders(wanted.out.parent)
        make_folders(wanted.workdir, mode=0o755)
    except FileNotFoundError as error:  # a file system that takes no files, such as /proc
        what = f"{error.filename} cannot be made: {error.strerror}"
        raise config_error(what, remedy="choose another place by -o") from error
    loaded = LoadedConfig(config, wanted.folder / "(command line)", wanted.folder, wanted.overrides, Given.OPTIONS)
    quarantined = None
    try:
        request = Request(
            loaded, from_scratch=wanted.from_scratch, stop_after_s=wanted.stop_after_s, typed=wanted.typed
        )
        run(request, _Published(observer, wanted.out))
    except Halt as halt:
        if halt.code is not ExitCode.QUARANTINED:
            raise
        quarantined = halt
    publish(wanted, made_from)
    if quarantined is not None:  # the state stays: `retry` has only the bad texts computed again
        rows = wanted.out.with_suffix(".quarantined.jsonl")
        where = rows if rows.exists() else wanted.manifest
        remedy = f"{where} lists every such row. To try them again: chunkvisor retry {wanted.workdir}, then the "
        remedy += "same command. If you correct the source: the same command with --from-scratch"
        log, see = quarantined.log, quarantined.see
        raise Halt(quarantined.code, quarantined.what, why=quarantined.why, remedy=remedy, log=log, see=see)
    remove_state(wanted)
    observer.say(f"{wanted.out}: complete, described in {wanted.manifest.name}")
    observer.say(how_to_read(wanted.out, Form()))
    observer.say(to_check(wanted.out))
    return ExitCode.COMPLETE
