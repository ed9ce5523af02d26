"""The workers of one node: starts, gates, watches and ends them as the local engine does, on orders from afar."""

import contextlib
import errno
import os
import select
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.config.choices import Start
from chunkvisor.decide.outcome import NEARLY_FULL_BYTES
from chunkvisor.devices.gate import SmiSensor, is_watched
from chunkvisor.devices.gpu import Device
from chunkvisor.devices.health import Reading
from chunkvisor.devices.hostmemory import room_for_one_more
from chunkvisor.engine.engine import Worker
from chunkvisor.engine.process import keep_log_end, trim_log
from chunkvisor.engine.ray import wire
from chunkvisor.engine.ray.mailbox import Mailbox
from chunkvisor.engine.starter import Starter, WorkerSettings
from chunkvisor.errors import Halt
from chunkvisor.events.device import TemplateEvent
from chunkvisor.store.disk import free_bytes
from chunkvisor.store.refusal import of_start
from chunkvisor_worker.contract.beatfile import read_beat
from chunkvisor_worker.contract.exits import EXIT_OF_OUTCOME, WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Beat, Cause, Fault, Phase, Spec
from chunkvisor_worker.contract.wire import read_message, write_message

_PAUSE_S = 0.25
_BEAT_S = 1.0
"""Between two beats that travel, unless the worker calls."""
_STATE_S = 1.0
_GRACE_S = 3.0


@dataclass(slots=True)
class _Running:
    number: int
    files: AttemptFiles
    worker: Worker
    beat: Beat | None = None
    looked_s: float = 0.0


@dataclass(slots=True)
class NodeSettings:
    """What the workers of this node have in common."""

    number: str
    """In the cluster."""
    name: str
    devices: Sequence[Device]
    folder: Path
    """The scratch folder."""
    mark: str
    """The run id that they bear; another on each node, though two nodes may be one machine."""
    environment: Mapping[str, str]
    terms: wire.Terms


class NodeWorkers(threading.Thread):
    """A thread that starts all workers, so that they end with it (PR_SET_PDEATHSIG is bound to a thread)."""

    def __init__(self, node: NodeSettings) -> None:
        super().__init__(name="workers", daemon=True)
        self._node = node
        self.mail = Mailbox()
        self._running: dict[int, _Running] = {}
        self._sensors = {number: SmiSensor(each) for number, each in enumerate(node.devices) if is_watched(each)}
        self._looks: dict[int, Future[Reading]] = {}
        self._state: wire.NodeState | None = None
        self._state_s = 0.0
        self._closing = False
        self._demanded = False
        terms = node.terms
        settings = WorkerSettings(
            Start(terms.start),
            node.mark,
            node.environment,
            terms.env,
            node.devices[0],
            terms.template,
            node.folder / "template",
            terms.startup_s,
        )
        self._starter = Starter(settings, self._tell)

    def first_readings(self) -> tuple[Reading, ...]:
        """Of the GPUs that nvidia-smi knows, before the first worker."""
        begun = [sensor.first() for sensor in self._sensors.values()]
        return tuple(reading.result() for reading in begun)

    def run(self) -> None:
        """Work until closed. A bug here ends the process: the node is then lost, and the run knows what to do."""
        try:
            while not self._closing:
                self._turn()
            self._end_all()
            self._starter.close()
        except BaseException:  # noqa: BLE001 - nobody would notice that the thread is gone
            traceback.print_exc()
            os._exit(1)

    def _turn(self) -> None:
        poll = select.poll()
        watched = [fd for each in self._running.values() for fd in each.worker.watched()]
        for fd in (self.mail.waker, *self._starter.watched(), *watched):
            poll.register(fd, select.POLLIN)
        poll.poll(_PAUSE_S * 1000)
        try:
            for order in self.mail.orders():
                self._obey(order)
            self._starter.attend()
            for each in list(self._running.values()):
                self._attend(each)
        except Halt as halt:  # no warm start, and the config wants no other
            self._report(aside=wire.NodeAside(self._node.name, halt.why, halt.remedy, int(halt.code)))
            self._closing = True
        self._tell_looks()
        self._tell_state()

    def _obey(self, order: wire.Order) -> None:
        running = self._running.get(order.worker)
        if order.launch is not None:
            self._launch(order.worker, order.launch)
        elif order.gate is not None and running is not None:
            running.worker.go(order.gate)
        elif order.leave and running is not None:
            running.worker.leave()
        elif order.signal is not None and running is not None:
            running.worker.signal(signal.Signals(order.signal))
        elif order.look is not None and order.look in self._sensors:
            self._looks[order.look] = self._sensors[order.look].ask()
        elif order.demanded is not None:
            self._demanded = True
            self._starter.expect(order.demanded.pending, order.demanded.at_once)
        elif order.discard:
            shutil.rmtree(self._own_folder(order.worker), ignore_errors=True)
        elif order.close:
            self._closing = True

    def _report(self, worker: int = wire.NO_WORKER, **what: Any) -> None:
        self.mail.report(wire.Report(self._node.number, worker, **what))

    def _own_folder(self, worker: int) -> Path:
        return self._node.folder / f"{worker}"

    def _launch(self, number: int, launch: wire.Launch) -> None:
        # In the attempt's own folder if this node sees it.
        files = AttemptFiles(Path(launch.folder) if self._node.terms.shared else self._own_folder(number))
        try:
            spec = read_message(Spec, files.spec)
            if spec is None:
                raise OSError(errno.EIO, f"{files.spec} did not arrive")
            worker = self._starter.start_on(
                self._node.devices[launch.device],
                files,
                spec,
                fresh=launch.fresh,
                blocking_launches=launch.blocking_launches,
            )
        except OSError as error:
            self._not_started(number, files, error)
            return
        self._running[number] = _Running(number, files, worker)
        self._report(number, started=wire.Started(worker.pid, worker.warm))

    def _not_started(self, number: int, files: AttemptFiles, error: OSError) -> None:
        code = EXIT_OF_OUTCOME[of_start(error)[0]]
        cause = Cause(f"builtins.{type(error).__name__}", ("builtins.OSError",), str(error), errno=error.errno)
        with contextlib.suppress(OSError):
            write_message(files.fault, Fault(Phase.START, (cause,), ""), durable=False)
        self._report(number, ended=wire.Ended(code))

    def _attend(self, each: _Running) -> None:
        called, now_s = each.worker.has_called(), time.monotonic()
        returncode = each.worker.poll()
        if called or returncode is not None or now_s - each.looked_s > _BEAT_S:
            each.looked_s = now_s
            trim_log(each.files.log)
            beat = read_beat(each.files.beat)
            if called or (beat is not None and beat != each.beat):
                each.beat = beat
                self._report(each.number, heard=True, beat=beat)
        if returncode is None:
            return
        del self._running[each.number]
        keep_log_end(each.files.log)
        if returncode == WorkerExit.TAINTED_TEMPLATE:
            self._starter.mistrust(each.worker)
        if returncode == -signal.SIGBUS and (free_bytes(each.files.folder) or NEARLY_FULL_BYTES) < NEARLY_FULL_BYTES:
            returncode = WorkerExit.DISK_FULL  # only here it can be seen
        self._report(each.number, ended=wire.Ended(returncode, each.worker.oom_kills()))

    def _tell(self, event: TemplateEvent) -> None:
        # A process number of this machine means nothing on another.
        self._report(told=wire.Told(event.name, {**event.details(), "pid": 0, "node": self._node.name}))

    def _tell_looks(self) -> None:
        for device in [number for number, look in self._looks.items() if look.done()]:
            self._report(looked=wire.Looked(device, self._looks.pop(device).result()))

    def _tell_state(self) -> None:
        if not self._demanded:
            return  # whether a template is of use is not known yet
        now_s = time.monotonic()
        now = (self._starter.loading, self._starter.warm)
        before = self._state and (self._state.holding, self._state.warm)
        if now == before and now_s - self._state_s < _STATE_S:
            return
        self._state_s = now_s
        room = room_for_one_more(each.worker.pid for each in self._running.values())
        state = wire.NodeState(room, *now)
        if state != self._state:
            self._state = state
            self._report(state=state)

    def _end_all(self) -> None:
        deadline_s = time.monotonic() + _GRACE_S
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in self._running.values():
                each.worker.signal(number)
            while time.monotonic() < deadline_s and any(each.worker.poll() is None for each in self._running.values()):
                time.sleep(0.02)
            deadline_s += _GRACE_S
        for sensor in self._sensors.values():
            sensor.close()
