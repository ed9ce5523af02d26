"""Gathers all readings: asks the driver, the machine and, in child processes, torch and a worker.

A fault of the machine is a reading, too, and raises nothing. The doctor itself never imports torch.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from chunkvisor.commands.doctor.host import read_host, read_hub
from chunkvisor.commands.doctor.job import read_job
from chunkvisor.commands.doctor.readings import Readings, Wanted
from chunkvisor.commands.doctor.smi import read_driver, read_smi
from chunkvisor.commands.doctor.variables import READ
from chunkvisor.config.choices import EngineKind
from chunkvisor.config.load import LoadedConfig, load
from chunkvisor.devices.gpu import Device, find_devices
from chunkvisor.devices.torchprobe import ask_torch
from chunkvisor.engine.ray.survey import survey
from chunkvisor.engine.trial import environment_of
from chunkvisor.errors import Halt
from chunkvisor.supervise.extras import require_extras


def gather(config_path: Path | None, say: Callable[[str], None]) -> Readings:
    """Read everything; with a config, its job, too. `say` is told of the steps that take a while.

    Raises OSError where not even a temporary folder or a child process is to be had.
    """
    loaded: LoadedConfig | None = None
    config_problem = no_device = cluster = None
    devices: tuple[Device, ...] = ()
    if config_path is not None:
        try:
            loaded = load(config_path)
            require_extras(loaded.config)
        except Halt as halt:
            config_problem = (halt.what, halt.remedy)
    if loaded is not None:
        if loaded.config.engine.kind is EngineKind.RAY:
            say("asking the cluster")
            cluster = survey(loaded.config.engine.address)
        try:
            devices = find_devices(loaded.config.device)
        except Halt as halt:
            # The workers of a cluster need none here.
            no_device = (f"{halt.what}: {halt.why}", halt.remedy) if cluster is None else None
    extra = loaded.config.env if loaded is not None else {}
    environment = environment_of(os.environ, devices, extra)
    # Before the children: the memory of a process that has just ended is not free at once.
    smi, driver = read_smi(), read_driver()
    with tempfile.TemporaryDirectory(prefix="chunkvisor-doctor-") as scratch:
        say("asking torch")
        probe = ask_torch(environment)
        job = read_job(loaded, devices, environment, Path(scratch), say) if loaded is not None else None
    wanted = Wanted.ANYTHING
    if loaded is not None and (devices or cluster is None):
        wanted = Wanted.CPU if "cpu" in loaded.config.device else Wanted.CUDA
    return Readings(
        wanted=wanted,
        chosen=tuple(device.uuid for device in devices if device.uuid),
        no_device=no_device,
        config_problem=config_problem,
        own={name: os.environ[name] for name in READ if name in os.environ},
        workers={name: environment[name] for name in READ if name in environment},
        from_config=frozenset(extra),
        smi=smi,
        driver=driver,
        probe=probe,
        host=read_host(),
        hub=read_hub(os.environ),
        job=job,
        cluster=cluster,
    )
