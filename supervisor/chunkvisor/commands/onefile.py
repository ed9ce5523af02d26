"""`chunkvisor encode`: one source, one final file at the place that was asked for.

It makes a config of its options, whose workdir is a folder next to the file, and runs that.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from chunkvisor.config.load import LoadedConfig, from_values
from chunkvisor.config.model import Config
from chunkvisor.engine.modelfolder import outside_of
from chunkvisor.errors import ExitCode, Halt, config_error, how_to_verify
from chunkvisor.outputs.forms import FORM_KEYS
from chunkvisor.outputs.state import is_manifest
from chunkvisor.show.lines import Observer, how_to_read
from chunkvisor.sources.resolve import resolve, signature
from chunkvisor.store.disk import check_target
from chunkvisor.store.identity import (
    UNREAD,
    Identity,
    arithmetic_variables,
    differences,
    identity_of,
)
from chunkvisor.store.layout import Layout, hold_lock
from chunkvisor.store.records import DamagedError, digest_file, digest_of, read_sealed
from chunkvisor.supervise.resources import Request
from chunkvisor.supervise.session import run
from chunkvisor.units import counted
from chunkvisor_worker.contract.files import make_folders, remove_at_once, remove_folder
from chunkvisor_worker.contract.wire import from_plain

# Name of the one output in the state folder.
OUTPUT = "embeddings"
# Key of the manifest, with the identity of the call: by it a later call knows the file again.
_MADE_FROM = "made_from"


def config_of_call(values: Mapping[str, Any], overrides: tuple[str, ...]) -> LoadedConfig:
    """Return the config of a call in the current folder. Raises Halt (78)."""
    folder = Path.cwd()
    config = from_values(values, folder, overrides)
    output = config.outputs[OUTPUT]
    for key in (*FORM_KEYS, "where"):
        if getattr(output, key) != type(output).model_fields[key].default:
            raise config_error(
                f"outputs.{OUTPUT}.{key} is only for `chunkvisor run`",
                "Write a config (`chunkvisor init`): `encode` makes one .npy of float32.",
            )
    return LoadedConfig(config, folder / "(command line)", folder, overrides, by_options=True)


def encode_file(request: Request, out: Path, observer: Observer, *, keep: bool) -> ExitCode:
    """Make the file `out`, an absolute path. Raises Halt if it does not end well; OSError.

    `keep`: the state stays once the file is complete.
    """
    config = request.loaded.config
    manifest_file = out.with_suffix(".json")
    check_target(out, "-o", lambda _: True)  # `_bad_rows_of` sees what kind of file it is
    check_target(manifest_file, "-o", is_manifest)
    made_from = _identity_of_call(config)
    bad = None
    if out.exists():
        bad = _bad_rows_of(out, config.workdir, made_from, anew=request.from_scratch)
    if bad is not None:
        without = f", {counted(bad, 'row')} without a vector" if bad else ""
        observer.say(f"{out}: complete already{without}")
        if not keep:
            remove_state(config.workdir)
        return ExitCode.QUARANTINED if bad else ExitCode.COMPLETE
    make_folders(out.parent)
    make_folders(config.workdir, mode=0o755)
    # On another disk, no rename puts the file in its place.
    if config.workdir.stat().st_dev != out.parent.stat().st_dev:
        raise config_error(
            f"{config.workdir} is not on the disk of {out.parent}",
            "Choose a folder on that disk by --workdir, or leave the option out.",
        )
    try:
        run(replace(request, place=out, more={_MADE_FROM: made_from.values}), observer)
    except Halt as halt:
        if halt.code is not ExitCode.QUARANTINED:
            raise
        # The state stays: `retry` has only the bad texts computed again.
        halt.remedy = (
            f"{out.with_suffix('.quarantined.jsonl')} lists such rows. To try them again: "
            f"chunkvisor retry {config.workdir}, then the same command. If you correct the source: "
            "the same command with --from-scratch"
        )
        raise
    if not keep:
        remove_state(config.workdir)
    for line in (
        f"{out}: complete, described in {manifest_file.name}",
        how_to_read(out),
        how_to_verify(out),
    ):
        observer.say(line)
    return ExitCode.COMPLETE


def _identity_of_call(config: Config) -> Identity:
    """Return what shapes the vectors, as far as it is known without reading source or model."""
    source = digest_of(signature(resolve(config.outputs[OUTPUT].source)))
    revision = config.model.revision or ""
    if config.model.is_folder:
        outside = outside_of(Path(config.model.name), config.model)
        files = list[tuple[str, int, int]]()
        for folder in (config.model.name, *(each.name for each in outside)):
            for path in filter(Path.is_file, Path(folder).rglob("*")):
                found = path.stat()
                files.append((str(path), found.st_size, found.st_mtime_ns))
        revision = digest_of(sorted(files))
    variables = arithmetic_variables(os.environ, config.env)
    return identity_of(config, OUTPUT, revision, source, UNREAD, variables)


def _bad_rows_of(out: Path, workdir: Path, made_from: Identity, *, anew: bool) -> int | None:
    """Return how many rows of the file have no vector; None if it is to be made again.

    `anew`: it is replaced, if `encode` has made it. Raises Halt (78) if it is not the file that
    this call would make.
    """
    state = Layout(workdir).output(OUTPUT)
    if state.publishing.exists():  # a kill came before its manifest
        return None
    manifest = None
    with suppress(DamagedError, OSError):
        manifest = read_sealed(out.with_suffix(".json"))
    before = from_plain(Identity, {"values": (manifest or {}).get(_MADE_FROM)})
    if manifest is None or before is None:
        raise config_error(
            f"{out} already exists, and `chunkvisor encode` did not make it",
            "Choose another name by -o, or move it away.",
        )
    # `retry` may have been called since.
    if anew or (manifest["quarantined"] and state.generation):
        return None
    remedy = "Choose another name by -o, or replace it by adding --from-scratch."
    changes = differences(before, made_from)
    if changes:
        what = (
            f"{out} already exists, with {counted(manifest['rows'], 'row')}, but it was made "
            f"differently:"
        )
        raise config_error("\n  ".join([what, *changes]), remedy)
    if f"sha256:{digest_file(out)}" != manifest["digest"]:
        raise config_error(f"{out} has changed since it was made", remedy)
    return int(manifest["quarantined_rows"])


def remove_state(workdir: Path) -> None:
    """Remove the state of a finished file, and the folder if nothing else is in it.

    If a kill comes in between, the state is whole or gone.
    """
    layout = Layout(workdir)
    if layout.hidden.is_dir():
        with hold_lock(layout.lock):
            if any(folder.name != OUTPUT for folder in layout.outputs.glob("*/")):
                output = layout.output(OUTPUT)
                output.done.unlink(missing_ok=True)
                remove_at_once(output.state)
                remove_folder(output.home)
                return  # other jobs use this workdir
            layout.report.unlink(missing_ok=True)
            remove_at_once(layout.hidden)
    else:
        remove_at_once(layout.hidden)  # what a kill has left of it
    with suppress(OSError):
        layout.workdir.rmdir()
