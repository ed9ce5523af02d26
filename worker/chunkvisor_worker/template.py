"""`python -m chunkvisor_worker.template FOLDER` loads a model once, and forks workers from it.

It starts neither CUDA nor NVML nor a second thread: none of them survives a fork. Standard input is
the socket to the parent; when it closes, the template ends. (The standard library's forkserver
gives a child no standard input, log or process group.)
"""

import faulthandler
import gc
import importlib.abc
import os
import re
import select
import signal
import socket
import sys
import traceback
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import (
    MESSAGE_LIMIT_BYTES,
    Phase,
    TemplateNews,
    TemplateOrder,
    TemplateSpec,
)
from chunkvisor_worker.contract.secrets import mask_standard_streams
from chunkvisor_worker.contract.taxonomy import diagnose
from chunkvisor_worker.contract.wire import from_json, read_message, to_json, write_message
from chunkvisor_worker.faults import fault_of
from chunkvisor_worker.job import Encoder, make_encoder, run_and_exit
from chunkvisor_worker.liveness import (
    BeatWriter,
    be_first_victim,
    die_with_parent,
    exit_now,
    kill_group_with_parent,
)

# Threads that a fork may leave behind: jemalloc, which pyarrow brings, does without in the child.
_FORK_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})
# Files of GPU drivers: nvidia0, nvidiactl, nvidia-uvm; a Jetson's; WSL's; AMD's.
_GPU_FILE = re.compile(r"/dev/(?:nvidia|nvhost|nvmap|dxg|kfd)")


class Template:
    """Forks workers and reports how they end."""

    def __init__(self, orders: socket.socket, encoder: Encoder) -> None:
        self._orders = orders
        self._encoder = encoder
        self._alive: dict[int, int] = {}  # pid of each worker that has not ended, by its pidfd

    def serve(self) -> None:
        """Obey the parent's orders until it is gone."""
        poll = select.poll()
        poll.register(self._orders, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd != self._orders.fileno():
                    poll.unregister(fd)
                    self._report_end(fd)
                    continue
                data, fds, _, _ = socket.recv_fds(self._orders, MESSAGE_LIMIT_BYTES, 2)
                if not data:
                    return
                order = from_json(TemplateOrder, data)
                if order and len(fds) == 2:
                    self._fork(order, fds, poll)
                for received in fds:
                    os.close(received)

    def _fork(self, order: TemplateOrder, fds: list[int], poll: select.poll) -> None:
        """Start a worker, report it, and wait for its end with `poll`."""
        try:
            pid = os.fork()
        except OSError:
            self._orders.send(to_json(TemplateNews(forked=0)))
            return
        if pid == 0:
            self._be_worker(order, fds)
        pidfd = os.pidfd_open(pid)
        self._alive[pidfd] = pid
        poll.register(pidfd, select.POLLIN)
        socket.send_fds(self._orders, [to_json(TemplateNews(forked=pid))], [pidfd])

    def _be_worker(self, order: TemplateOrder, fds: list[int]) -> NoReturn:
        """Make the attempt with the loaded encoder, and end the process whatever happens.

        `fds` are the worker's standard input and its log. The template's own descriptors are
        closed; what an import has opened stays open. Without PR_SET_PDEATHSIG, which would end the
        worker with the template.
        """
        try:
            os.setsid()
            stdin, log = fds
            for number, fd in enumerate((stdin, log, log)):
                os.dup2(fd, number)
            for fd in (self._orders.fileno(), *fds, *self._alive):
                os.close(fd)
            faulthandler.enable()
            for name in order.removed:
                os.environ.pop(name, None)
            os.environ.update(order.environment)
            kill_group_with_parent()
            sys.argv[1:] = [order.folder]
            use = find_gpu_use()
            if use:
                exit_now(
                    WorkerExit.TAINTED_TEMPLATE, f"refuses to run from a tainted template: {use}"
                )
            run_and_exit(Path(order.folder), self._encoder)
        except BaseException:  # noqa: BLE001 - nothing may return to the template's loop
            traceback.print_exc()
        exit_now(WorkerExit.FAULT)

    def _report_end(self, pidfd: int) -> None:
        pid = self._alive.pop(pidfd)
        os.close(pidfd)
        # Before it is reaped: until then no other group can get its number.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        returncode = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._orders.send(to_json(TemplateNews(ended=pid, returncode=returncode)))
        gc.collect()  # fast, since what was loaded is frozen


def find_gpu_use() -> str:
    """Say what shows that this process has begun to use a GPU; empty if nothing does.

    No CUDA context survives a fork. CUDA and NVML are not asked, since that would start them; once
    started, by whatever framework, they hold a file of the driver open.
    """
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this listing itself
            target = str(entry.readlink())
            if _GPU_FILE.search(target):
                return f"it has {target} open"
    # torch knows in a forked process whether it had asked the driver before the fork.
    torch: Any = sys.modules.get("torch")
    bad_fork = hasattr(torch, "cuda") and torch.cuda._is_in_bad_fork()
    return "torch had asked CUDA before the fork" if bad_fork else ""


def find_taint() -> str:
    """Say why no worker may be forked from this process; empty if one may."""
    use = find_gpu_use()
    if use:
        return f"loading the model, or importing the plug-in, has begun to use the GPU ({use})"
    # A fork copies no other thread, and yet the locks that they hold.
    threads = list[str]()
    own = Path("/proc/thread-self").readlink().name
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            name = (task / "comm").read_text().strip() or "?"
            if task.name != own and name not in _FORK_SAFE_THREADS:
                threads.append(name)
    if threads:
        return (
            "loading the model, or importing the plug-in, has started threads "
            f"({', '.join(threads[:5])})"
        )
    return ""


class ShownGpu(importlib.abc.MetaPathFinder):
    """A context in which torch says that there is one GPU, as it will in a worker.

    Code that is loaded relies on that answer, and transformers caches it; torch itself would ask
    the driver.
    """

    def __init__(self) -> None:
        self._replaced: dict[str, Any] = {}

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)
        self.find_spec("")

    def __exit__(self, *error: object) -> None:
        sys.meta_path.remove(self)
        for name, original in self._replaced.items():
            setattr(sys.modules["torch.cuda"], name, original)

    def find_spec(self, _fullname: str, _path: Any = None, _target: Any = None) -> None:
        """Find nothing, but replace torch.cuda's answers at the first import after torch.cuda."""
        cuda: Any = sys.modules.get("torch.cuda")
        answers = {"is_available": lambda: True, "device_count": lambda: 1}
        if not self._replaced and all(hasattr(cuda, name) for name in answers):
            for name, answer in answers.items():
                self._replaced[name] = getattr(cuda, name)
                setattr(cuda, name, answer)


def _load(files: AttemptFiles, progress: BeatWriter) -> tuple[Encoder | None, str]:
    """Return (the loaded encoder, "") or (None, why no worker can be forked from this process)."""
    spec = read_message(TemplateSpec, files.spec)
    if not spec:
        return None, f"{files.spec} is missing or is not a spec"
    try:
        progress.phase(Phase.IMPORT)
        encoder = make_encoder(spec.model, spec.device, spec.import_path)
        # On the CPU a fresh worker is shown no GPU either.
        with nullcontext() if spec.device == "cpu" else ShownGpu():
            encoder.load(progress)
    except BaseException as error:  # noqa: BLE001 - a panic in Rust is not an Exception
        traceback.print_exc()
        fault = fault_of(error, progress.beat.phase)
        found = diagnose(fault)
        # That is no fault: no record of one is written.
        if spec.device != "cpu" and found.rule.name == "no-gpu-visible":
            why = "while it loads, it uses a GPU, and a template shows it none"
            return None, f"{why} ({found.headline})"
        write_message(files.fault, fault)
        return None, f"it cannot be loaded: {found.headline}"
    unfit = find_taint()
    return (None, unfit) if unfit else (encoder, "")


def main() -> None:
    """Parse the one argument, load, serve."""
    faulthandler.enable()
    mask_standard_streams()
    die_with_parent()
    be_first_victim()
    orders = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    files = AttemptFiles(Path(sys.argv[1]))
    progress = BeatWriter(files.beat)
    encoder, unfit = _load(files, progress)
    if not encoder:
        orders.send(to_json(TemplateNews(unfit=unfit[: MESSAGE_LIMIT_BYTES // 16])))
        os._exit(WorkerExit.FAULT)
    progress.phase(Phase.READY)
    # The collector must not write to what was loaded: all workers share those pages.
    gc.collect()
    gc.freeze()
    template = Template(orders, encoder)
    with suppress(ConnectionError):  # the parent is gone
        orders.send(to_json(TemplateNews(phase_s=progress.phase_s)))
        template.serve()
    exit_now(WorkerExit.DONE)


if __name__ == "__main__":
    main()
