"""`chunkvisor encode`: one source, one final file where the person wants it, the state in a folder of its own.

`session` does the work, as for any config.
"""

from dataclasses import replace
from pathlib import Path

from chunkvisor.assemble import badrows
from chunkvisor.assemble.form import FORM_KEYS, Form
from chunkvisor.assemble.manifest import is_manifest
from chunkvisor.commands.fileinplace import (
    OUTPUT,
    OneFile,
    ingredients,
    made_before,
    publish,
    refuse_foreign,
    remove_state,
)
from chunkvisor.config.load import Given, LoadedConfig, from_values
from chunkvisor.errors import ExitCode, Halt, config_error, to_check
from chunkvisor.events.event import Event
from chunkvisor.events.output import OutputComplete
from chunkvisor.events.state import RunState
from chunkvisor.show.lines import how_to_read
from chunkvisor.show.observer import Observer, Observers
from chunkvisor.store.target import check_target
from chunkvisor.supervise.request import Request
from chunkvisor.supervise.session import run
from chunkvisor.units import counted
from chunkvisor_worker.contract.files import make_folders


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
