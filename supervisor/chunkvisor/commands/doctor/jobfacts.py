"""Reads what concerns one config: its model's files, its workdir, and a sample of vectors.

It never asks the hub, never downloads, and changes nothing in the workdir.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chunkvisor.assemble.manifest import read_quarantined
from chunkvisor.commands.doctor.children import run_child
from chunkvisor.commands.doctor.host import read_folder
from chunkvisor.commands.doctor.readings import JobReading, SampleReading, Whereabouts
from chunkvisor.commands.doctor.sample import distinct_encodes, encode_sample
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import ModelConfig
from chunkvisor.config.specs import model_spec
from chunkvisor.devices.gpu import Device
from chunkvisor.engine.modelfolder import read_model_folder
from chunkvisor.errors import Halt
from chunkvisor.observe.status import State, read_status
from chunkvisor.store.fixed import read_staged
from chunkvisor.store.layout import Layout
from chunkvisor.store.modelfacts import read_facts
from chunkvisor.store.modelrecord import read_pin
from chunkvisor.store.seal import DamagedError
from chunkvisor_worker.contract.files import AttemptFiles, read_bounded
from chunkvisor_worker.contract.messages import Fault, read_message

_FETCH_TIMEOUT_S = 120.0
_BAD_NAME = "huggingface_hub.errors.HFValidationError"


@dataclass(frozen=True, slots=True)
class _Found:
    whereabouts: Whereabouts
    path: str | None = None
    revision: str | None = None
    problem: str = ""


def read_job(
    loaded: LoadedConfig,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    scratch: Path,
    say: Callable[[str], None],
) -> JobReading:
    """Everything about the config's job; the samples need device and model to be there. Raises OSError."""
    config = loaded.config
    layout = Layout(config.workdir)
    found = _find_model(loaded, layout, scratch)
    rows, dimension = _known_size(layout, list(config.outputs))
    reading = JobReading(
        model=config.model.name,
        whereabouts=found.whereabouts,
        problem=found.problem,
        weights_bytes=read_model_folder(Path(found.path)).weights_bytes if found.path else None,
        workers=max(1, len(devices)) * (config.workers.per_device + config.workers.standby),
        workdir=read_folder(config.workdir),
        rows=rows,
        dimension=dimension,
        busy_pid=_busy_pid(config.workdir),
    )
    if reading.busy_pid is not None or found.whereabouts in (Whereabouts.HUB, Whereabouts.NOWHERE):
        return reading
    return replace(reading, samples=tuple(_samples(loaded, found, devices, environment, scratch, say)))


def _samples(
    loaded: LoadedConfig,
    found: _Found,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    scratch: Path,
    say: Callable[[str], None],
) -> Iterator[SampleReading]:
    """Every way of encoding on the first device, and the first of them on the others."""
    config = loaded.config
    spec = model_spec(config.model, found.path, found.revision)
    encodes = list(distinct_encodes(config).items())
    todo = [(device, *each) for device in devices for each in (encodes if device is devices[0] else encodes[:1])]
    for number, (device, encode, names) in enumerate(todo):
        say(f"encoding a sample of texts on {device}")
        folder = scratch / f"sample{number}"
        folder.mkdir(mode=0o700)
        sample = encode_sample(
            spec,
            encode,
            (str(loaded.folder),),
            device.kind,
            {**environment, "CUDA_VISIBLE_DEVICES": device.uuid},
            config.recovery.startup_timeout,
            folder,
        )
        outputs = f"outputs {', '.join(names)}" if len(encodes) > 1 else ""
        where = ", ".join(filter(None, [outputs, str(device) if len(devices) > 1 else ""]))
        yield replace(sample, where=where)


def _find_model(loaded: LoadedConfig, layout: Layout, scratch: Path) -> _Found:
    model = loaded.config.model
    if model.is_plugin:
        return _Found(Whereabouts.PLUGIN, revision=model.revision)
    folder = Path(model.name)
    if os.path.isdir(model.name):  # noqa: PTH112 - Path.is_dir raises for long names
        if any((folder / name).exists() for name in ("config.json", "modules.json")):
            return _Found(Whereabouts.FOLDER, str(folder))
        problem = f"{folder} holds no model: it has neither config.json nor modules.json"
        return _Found(Whereabouts.NOWHERE, problem=problem)
    if model.name.startswith(("/", "./", "../", "~")):
        return _Found(Whereabouts.NOWHERE, problem=f"there is no model folder {model.name}")
    if (pinned := _pinned(layout, model)) is not None:
        return pinned
    files = AttemptFiles(scratch / "fetch")
    files.folder.mkdir(mode=0o700)
    command = [
        sys.executable,
        "-P",
        "-m",
        "chunkvisor_worker.fetch",
        str(files.folder),
        model.name,
        model.revision or "",
    ]
    run_child(command, {**os.environ, "HF_HUB_OFFLINE": "1"}, files.log, _FETCH_TIMEOUT_S)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        content = json.loads(read_bounded(files.result) or b"")
        return _Found(Whereabouts.CACHED, str(content["path"]), str(content["revision"]))
    fault = read_message(Fault, files.fault)
    bad = next((cause for cause in fault.chain if cause.name == _BAD_NAME), None) if fault is not None else None
    if bad is not None:
        return _Found(Whereabouts.NOWHERE, problem=f"{model.name!r} is neither a folder nor a hub id: {bad.message}")
    return _Found(Whereabouts.HUB)


def _pinned(layout: Layout, model: ModelConfig) -> _Found | None:
    """The snapshot that the workdir is bound to, which a run takes without asking the hub."""
    with contextlib.suppress(OSError):
        pin = read_pin(layout.model, model.name, model.revision)
        if pin is not None and Path(pin.path).is_dir():
            return _Found(Whereabouts.CACHED, pin.path, pin.revision)
    return None


def _known_size(layout: Layout, names: list[str]) -> tuple[int | None, int]:
    """(rows of the outputs that are not complete, dimension) from earlier runs; None, 0 = unknown."""
    rows: int | None = 0
    dimension = 0
    for name in names:
        output = layout.output(name)
        try:
            if read_quarantined(output) is not None:
                continue
            record, facts = read_staged(output), read_facts(output)
        except (DamagedError, OSError):
            return None, dimension
        if facts is not None:
            dimension = max(dimension, facts.dimension)
        rows = None if record is None or rows is None else rows + record.staged.rows
    return rows, dimension


def _busy_pid(workdir: Path) -> int | None:
    try:
        status = read_status(workdir)
    except (Halt, OSError):
        return None
    return status.pid if status.state is State.RUNNING else None
