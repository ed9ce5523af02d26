"""Makes the Ray engine of a run out of its config; it connects once there is work."""

from chunkvisor.config.model import Config
from chunkvisor.devices.gpu import Device
from chunkvisor.engine.ray.engine import RayEngine
from chunkvisor.engine.ray.readiness import this_machine, this_version
from chunkvisor.engine.ray.wire import Begin, Model, Terms
from chunkvisor.events.event import Emit
from chunkvisor.store.attempt import Job
from chunkvisor.store.layout import Layout
from chunkvisor_worker.contract.files import make_folder
from chunkvisor_worker.contract.messages import ModelSpec
from chunkvisor_worker.contract.template import TemplateSpec


def cluster_devices(config: Config) -> tuple[Device, ...]:
    """What stands for the devices of a cluster until its nodes have told theirs."""
    kind = "cpu" if "cpu" in config.device else "cuda"
    return (Device(kind, name="the Ray cluster"),)


def ray_engine(config: Config, layout: Layout, job: Job | None, run_id: str, emit: Emit) -> RayEngine:
    """The engine, not connected yet; `job` is any of the run's: all have the same model. None: nothing is to be done.

    Raises OSError where the engine's folder cannot be made.
    """
    make_folder(layout.ray, durable=False)
    model = job.model if job else ModelSpec(config.model.name)
    (device,) = cluster_devices(config)
    terms = Terms(
        run_id=run_id,
        version=this_version(),
        machine=this_machine(),
        workdir=str(layout.workdir),
        shared=config.engine.shared,
        device=tuple(config.device),
        per_device=config.workers.per_device,
        env=dict(config.env),
        start=str(config.workers.start),
        startup_s=config.recovery.startup_timeout,
        model=Model(model.name, model.path, model.revision, str(model.kwargs.get("backend", "torch"))),
        template=TemplateSpec(model, device.kind, job.import_path if job else ()),
    )
    begin = Begin(config.engine.address, terms)
    return RayEngine(begin, layout.ray / "bridge.log", config.recovery.wait_timeout, emit)
