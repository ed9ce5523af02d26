"""`python -m chunkvisor_worker.template FOLDER`: loads a model once, then forks a worker for each chunk that asks.

It starts neither CUDA nor NVML nor a second thread: none of them survives a fork. Standard input is the socket to the
parent; its end is the parent's.

The standard library's forkserver does not fit: it loads no weights, runs the parent's `__main__` again in every child,
gives a child no standard input, log or process group, and reaps at once, so that the number of a group that is still to
be killed can be given away.
"""

import contextlib
import faulthandler
import gc
import os
import select
import signal
import socket
import time
import traceback

from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import (
    MESSAGE_LIMIT_BYTES,
    EncodeSpec,
    Ended,
    Fork,
    Order,
    Report,
    TemplateSpec,
)
from chunkvisor_worker.contract.taxonomy import diagnose
from chunkvisor_worker.contract.wire import from_json, read_message, to_json, write_message
from chunkvisor_worker.encoder import Encoder
from chunkvisor_worker.faults import fault_of
from chunkvisor_worker.forked import be_worker, find_pools
from chunkvisor_worker.job import make_encoder
from chunkvisor_worker.liveness import be_first_victim, die_with_parent, leave, only_argument, outlive_parent
from chunkvisor_worker.progress import BeatWriter
from chunkvisor_worker.taint import GpuQuestions, find_taint

# The rule for code that uses a GPU without asking, and is shown none.
_HIDDEN_GPU = "no-gpu-visible"

# How long workers may outlive their parent before they are killed.
_GRACE_S = 5.0


class Template:
    """Forks workers and reports how they end."""

    def __init__(self, orders: socket.socket, encoder: Encoder) -> None:
        self._orders = orders
        self._encoder = encoder
        self._alive: dict[int, int] = {}  # pid of each worker that has not ended, by its pidfd

    def serve(self) -> None:
        """Obey until the parent is gone."""
        poll = select.poll()
        poll.register(self._orders, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd != self._orders.fileno():
                    poll.unregister(fd)
                    self._tell_end(fd)
                    continue
                data, fds, _, _ = socket.recv_fds(self._orders, MESSAGE_LIMIT_BYTES, 2)
                if not data:
                    return
                order = from_json(Order, data)
                if order is not None and order.reap is not None:
                    os.waitpid(order.reap, 0)
                    gc.collect()  # a few objects, all others being frozen; so that a chunk leaves nothing behind
                elif order is not None and order.fork is not None and len(fds) == 2:
                    pidfd = self._fork(order.fork, fds)
                    if pidfd is not None:
                        poll.register(pidfd, select.POLLIN)
                for received in fds:
                    os.close(received)

    def end_stragglers(self) -> None:
        """Give the workers time to see that the parent is gone, then kill their groups."""
        deadline_s = time.monotonic() + _GRACE_S
        while self._alive and (left_s := deadline_s - time.monotonic()) > 0:
            for pidfd in select.select(list(self._alive), [], [], left_s)[0]:
                del self._alive[pidfd]
        for pid in self._alive.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _fork(self, fork: Fork, fds: list[int]) -> int | None:
        """Start a worker, and report it; returns its pidfd, None if there is none."""
        try:
            pid = os.fork()
        except OSError as error:
            self._orders.send(to_json(Report(not_forked=str(error))))
            return None
        if pid == 0:
            be_worker(fork, fds[0], fds[1], [self._orders.fileno(), *fds, *self._alive], self._encoder)
        pidfd = os.pidfd_open(pid)
        self._alive[pidfd] = pid
        socket.send_fds(self._orders, [to_json(Report(forked=pid))], [pidfd])
        return pidfd

    def _tell_end(self, pidfd: int) -> None:
        pid = self._alive.pop(pidfd)
        os.close(pidfd)
        # Not reaped: the parent kills its group first, by a number that no other group can have meanwhile.
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert status is not None
        returncode = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        self._orders.send(to_json(Report(ended=Ended(pid, returncode))))


def load(files: AttemptFiles) -> tuple[Encoder | None, str]:
    """Return (the loaded encoder, "") or (None, why no worker can be forked from this process)."""
    spec = read_message(TemplateSpec, files.spec)
    if spec is None:
        return None, f"{files.spec} is missing or is no spec"
    progress = BeatWriter(files.beat)
    questions = GpuQuestions()
    try:
        encoder = make_encoder(spec.model, EncodeSpec(), spec.device, spec.import_path)
        # On the CPU a fresh worker is shown no GPU either.
        with contextlib.nullcontext() if spec.device == "cpu" else questions:
            encoder.load(progress)
    except BaseException as error:  # noqa: BLE001 - a Rust panic is no Exception, and needs its record, too
        traceback.print_exc()
        fault = fault_of(error, progress.beat.phase)
        first = fault.chain[0]
        words = first.message if first.name.startswith("chunkvisor_worker.") else f"{first.name}: {first.message}"
        if spec.device != "cpu" and diagnose(fault).rule.name == _HIDDEN_GPU:
            return None, _asks(words)  # not a fault of the machine, so there is no record of it
        write_message(files.fault, fault, durable=False)
        return None, f"it cannot be loaded: {words}" + (f"; {_asks(questions.asked)}" if questions.asked else "")
    find_pools()
    # What has begun to use a GPU has asked for one as well.
    unfit = find_taint() or (_asks(questions.asked) if questions.asked else "")
    return (None, unfit) if unfit else (encoder, "")


def _asks(how: str) -> str:
    return f"while it loads, it asks for a GPU, and a template shows it none ({how})"


def main() -> None:
    """Parse the one argument, load, serve."""
    folder = only_argument("python -m chunkvisor_worker.template FOLDER")
    faulthandler.enable()
    # While it loads it cannot see the end of the socket.
    die_with_parent()
    be_first_victim()
    orders = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    started_s = time.monotonic()
    encoder, unfit = load(AttemptFiles(folder))
    if encoder is None:
        orders.send(to_json(Report(unfit=unfit[: MESSAGE_LIMIT_BYTES // 16])))
        os._exit(WorkerExit.SETUP)
    # What is here now stays: the collector must not write to its pages, which all workers share.
    gc.collect()
    gc.freeze()
    # From now on it is the second line for its workers: it must outlive the parent for a moment to end them.
    outlive_parent()
    template = Template(orders, encoder)
    with contextlib.suppress(ConnectionError):  # the parent is gone
        orders.send(to_json(Report(loaded_s=round(time.monotonic() - started_s, 3))))
        template.serve()
    template.end_stragglers()
    leave(WorkerExit.DONE)


if __name__ == "__main__":
    main()
