"""Runs the workers of one node, as a Ray actor that does not use CUDA itself.

Ray ends it with its driver, the bridge.
"""

import asyncio
import os
import shutil
import signal
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chunkvisor.devices.gpu import find_devices
from chunkvisor.devices.handles import DeviceHandle, Site
from chunkvisor.engine.engine import Worker
from chunkvisor.engine.local import LocalEngine, WorkerSettings
from chunkvisor.engine.modelfolder import Repository, repository_of
from chunkvisor.engine.modelsource import ModelSource, fetch_model, resolve_local, resolve_outside
from chunkvisor.engine.process import end_orphans, thread_count
from chunkvisor.engine.ray.wire import VERSION, NodeOrder, NodeReport, Terms
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import TemplateEvent
from chunkvisor.store.attempt import trim_log
from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Cause, Fault, ModelSpec, Phase, Spec
from chunkvisor_worker.contract.wire import (
    from_json,
    read_beat,
    read_message,
    to_json,
    write_message,
)

_NEWS_S = 5.0  # after this, a call of `news` returns without any
_TURN_S = 0.02  # between two looks at the workers
_BEAT_S = 1.0  # between two beats that are sent, unless the worker calls


def find_model(model: ModelSpec, scratch: Path) -> ModelSource:
    """Find the model's files on this node, or download them. Raises OSError, Halt if it cannot."""
    if not model.path:
        return ModelSource(None, model.revision)

    def download(wanted: Repository, what: str) -> ModelSource:
        commit = model.outside.get(wanted.name, model.revision)
        found = fetch_model(replace(wanted, asked=commit), scratch / "fetch", lambda: None)
        if isinstance(found, ModelSource):
            return found
        raise _unfit(f"it cannot get {what.rstrip(',')}: {found.reason}", found.remedy)

    def resolve(folder: Path) -> ModelSource:
        return resolve_local(folder, scratch / "model.json")

    source = ModelSource(model.name, None)
    if Path(model.name).is_dir():
        source = resolve(Path(model.name))
    elif not (model.revision or "").startswith("sha256:"):
        source = download(repository_of(model), f"the model {model.name}")
    resolve_outside(source, model, download, scratch / "hub", resolve)
    if (source.revision, source.revisions) != (model.revision, model.outside):
        raise _unfit(
            f"it has no model folder {model.name} with the same files as the parent's",
            "Copy the parent's model folder there, or name the model by its hub id.",
        )
    return source


def _unfit(why: str, remedy: str) -> Halt:
    return Halt(ExitCode.MACHINE, "the node cannot do this job", remedy, why=why)


@dataclass(slots=True)
class _Running:
    files: AttemptFiles
    worker: Worker
    looked_s: float = 0.0


class Agent:
    """The actor. Its methods are called from the bridge, with plain values.

    They are coroutines, so that Ray runs them in one thread: workers end with the thread that has
    started them (PR_SET_PDEATHSIG).
    """

    def __init__(self, terms: bytes, node: str, cores: float) -> None:
        """`node` is Ray's id of the node, `cores` as it was registered with Ray (0 = not)."""
        self._terms = from_json(Terms, terms)
        self._node = node
        self._cores = cores
        self._name = f"{socket.gethostname()} ({node[:6]})"
        # The run id of its workers; two nodes may be one machine.
        self._mark = f"{self._terms.run_id if self._terms else ''}.{node[:12]}"
        self._scratch = Path(tempfile.mkdtemp(prefix="chunkvisor-"))
        self._reports: list[NodeReport] = []
        self._running: dict[int, _Running] = {}
        self._handles: list[DeviceHandle] = []
        self._engine: LocalEngine | None = None
        # Whether a template loads, and whether a worker can be forked, as reported last.
        self._state = (True, False)
        # Ray has its processes killed first if memory runs out (oom_score_adj 1000); a worker is to
        # be killed before this one.
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("0")

    async def hello(self) -> bytes:
        """Prepare the node, download the model, and return a NodeReport with `up` or `aside`."""
        try:
            report = await asyncio.to_thread(self._get_ready)
        except Halt as halt:
            report = self._aside(halt)
        except OSError as error:
            report = self._aside(
                _unfit(str(error), "Check the node's disk and its folder for temporary files.")
            )
        return to_json(report)

    def _get_ready(self) -> NodeReport:
        terms = self._terms
        if not terms or terms.version != VERSION:
            theirs = terms.version if terms else "another version"
            raise _unfit(
                f"it has {VERSION}, the parent has {theirs}",
                "Install the same versions on all nodes.",
            )
        devices = find_devices(terms.device)
        found = find_model(terms.template.model, self._scratch)
        # Ray sets OMP_NUM_THREADS to the processors that an actor has reserved.
        others = {
            name: value
            for name, value in os.environ.items()
            if name != "OMP_NUM_THREADS" and name[:4] != "RAY_"
        }
        folder = self._scratch / "template"
        model = replace(terms.template.model, path=found.path, hub=found.hub)
        template = replace(terms.template, model=model)
        settings = WorkerSettings(
            terms.start, self._mark, others, terms.env, template, folder, terms.startup_s
        )
        self._engine = LocalEngine(devices, settings, self._report_event)
        self._handles = [
            DeviceHandle(number, device, Site(self._node)) for number, device in enumerate(devices)
        ]
        cores = min(len(os.sched_getaffinity(0)), int(self._cores) or 1 << 20) // terms.per_device
        threads = thread_count(terms.env.get("OMP_NUM_THREADS"), devices[0].kind, cores)
        site = Site(self._node, self._name, threads, found.path, found.hub)
        return NodeReport(self._node, up=site, devices=devices)

    async def order(self, order: bytes, files: dict[str, bytes]) -> None:
        """Obey a NodeOrder; `files` has the files for the folder of a worker to be started."""
        told = from_json(NodeOrder, order)
        assert told
        if told.folder:
            self._launch(told, files)
            return
        running = self._running.get(told.worker)
        if not running:
            return  # it has ended meanwhile
        if told.gate:
            running.worker.open_gate(told.gate)
        elif told.leave:
            running.worker.ask_to_stop()
        elif told.signal:
            running.worker.signal(signal.Signals(told.signal))

    async def news(self) -> list[bytes]:
        """Wait for reports, and return them, the oldest first."""
        deadline_s = time.monotonic() + _NEWS_S
        while not self._reports and time.monotonic() < deadline_s:
            await asyncio.sleep(_TURN_S)
            self._turn()
        reports = [to_json(report) for report in self._reports]
        self._reports.clear()
        return reports

    async def collect(self, worker: int, names: list[str]) -> dict[str, bytes]:
        """Return the files of an ended worker that exist, and remove its folder. Raises OSError."""
        paths = [self._scratch / f"{worker}" / name for name in names]
        # A pipe that a worker has left would be read for ever.
        found = {path.name: path.read_bytes() for path in paths if path.is_file()}
        shutil.rmtree(self._scratch / f"{worker}", ignore_errors=True)
        return found

    async def close(self) -> None:
        """End all workers, and remove all files."""
        for each in self._running.values():
            each.worker.signal(signal.SIGKILL)
        if self._engine:
            self._engine.close()
        end_orphans(self._scratch, self._mark)
        shutil.rmtree(self._scratch, ignore_errors=True)

    # --- its workers

    def _report(self, worker: int = -1, **what: Any) -> None:
        self._reports.append(NodeReport(self._node, worker, **what))

    def _aside(self, halt: Halt) -> NodeReport:
        return NodeReport(
            self._node,
            gone=halt.why or halt.what,
            aside=self._name,
            remedy=halt.remedy,
            code=int(halt.code),
        )

    def _report_event(self, event: TemplateEvent) -> None:
        # A pid of this machine means nothing on another.
        self._report(event=event.name, details={**event.details(), "pid": 0, "node": self._name})

    def _launch(self, told: NodeOrder, contents: dict[str, bytes]) -> None:
        files = AttemptFiles(self._scratch / f"{told.worker}")
        engine = self._engine
        assert engine
        try:
            files.folder.mkdir(mode=0o700)
            for name, content in contents.items():
                (files.folder / name).write_bytes(content)
            spec = read_message(Spec, files.spec)
            handle = self._handles[told.device]
            if not spec:
                raise OSError(f"{files.spec} did not arrive")
            worker = engine.start(handle, files, spec)
        except OSError as error:
            what = f"no worker can be started on {self._name}: {error}"
            cause = Cause("builtins.OSError", (), what, errno=error.errno)
            with suppress(OSError):
                write_message(files.fault, Fault(Phase.START, (cause,), ""))
            self._report(told.worker, returncode=WorkerExit.FAULT)
        except Halt as halt:
            self._reports.append(self._aside(halt))
        else:
            self._running[told.worker] = _Running(files, worker)
            self._report(told.worker, pid=worker.pid, warm=worker.warm)

    def _turn(self) -> None:
        """Look at the template and every worker once, and note what there is to report."""
        if not self._engine:
            return
        try:
            self._engine.start_template(1)
            self._engine.poll()
        except Halt as halt:  # no warm start, and the config wants no other
            self._reports.append(self._aside(halt))
        for number, each in list(self._running.items()):
            now_s = time.monotonic()
            called = each.worker.has_called()
            returncode = each.worker.poll()
            if called or returncode is not None or now_s - each.looked_s > _BEAT_S:
                each.looked_s = now_s
                trim_log(each.files.log)
                self._report(number, beat=read_beat(each.files.beat))
            if returncode is not None:
                del self._running[number]
                self._report(number, returncode=returncode, oom_kills=each.worker.oom_kills)
        state = (self._engine.loading, self._engine.warm)
        if state != self._state:
            self._state = state
            self._report(preparing=state[0], warm=state[1])
