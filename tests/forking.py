"""Workers and commands of the tests that are forked, not started: a tenth of the price, and real
processes nonetheless.

They come from a zygote (drivers/zygote.py), which has imported already what they import. What a new
interpreter would be different in goes the usual way: another command line, another `numpy` on
PYTHONPATH, variables of Python or of the loader, limits. So does what a test starts by itself, and
all of the soak; CHUNKVISOR_TEST_FORKS says otherwise. At its end a forked command joins its
threads, runs what is registered with `atexit` and flushes, but leaves out the teardown of modules.

Workers and templates of a real model on the CPU come from a zygote that has imported torch and
sentence-transformers as well, which takes each of them seconds; those that a forked command starts
are new interpreters. On a null GPU, where the import takes longer still, there is one zygote for
all, which has called neither CUDA nor NVML.
"""

import array
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from chunkvisor import child
from chunkvisor.engine import process
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Spec, TemplateSpec
from chunkvisor_worker.contract.wire import read_message
from drivers import zygote
from drivers.zygote import COMMAND, MARK, ROOM, ROOM_FILLED, as_shown, umask

KILL_AT = "drivers.kill_at"
_WORKER = "chunkvisor_worker"
_MODULES = (_WORKER, f"{_WORKER}.template", f"{_WORKER}.probe", "chunkvisor.sources.stage", KILL_AT)
COMMAND_LINE = (sys.executable, "-m", "chunkvisor")
"""Of `chunkvisor`, under this interpreter. Not by `-c`: in a folder that was deleted, Python 3.13.0
raises SystemError instead of AttributeError then, and pydantic cannot be imported."""
_SHADOWS = [
    "chunkvisor_worker",
    "chunkvisor",
    "numpy",
    "numpy.py",
    "xxhash",
    "xxhash.py",
    "sitecustomize.py",
    "usercustomize.py",
]
_FIXED = ("PYTHONFAULTHANDLER", "PYTHONUNBUFFERED", "PYTHONPATH")
"""Of Python's variables, those that every worker has and the zygote heeds."""
_READ_BEFORE = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "NOTIFY_SOCKET")
"""Beginnings of the names of variables that are read before a program begins, or say that no child
may have them."""
_READ_BY_IMPORTS = ("HF_", "TRANSFORMERS_")
"""The same, of variables that the libraries of models read while they are imported."""
_MODEL_SHADOWS = ("torch", "torch.py", "transformers", "sentence_transformers")
"""What would be another library of models on PYTHONPATH."""
_FOR_IMPORTS = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Those of them that every worker has (engine/environment.py)."""
_ON_CPU = {"OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
"""The same, of a worker on the CPU."""
_READ_LATER = ("HF_DEACTIVATE_ASYNC_LOAD", *_FOR_IMPORTS)
"""Those that may be there or not: what was imported has heeded them, or heeds them later."""
_HAVE_MODELS = ("gpu", "model")
"""Kinds of zygotes that have imported them."""
_NULL_GPU = "libnullgpu.so"
"""What is preloaded where there is one."""
_LIMITS = [
    getattr(resource, f"RLIMIT_{name}") for name in ("AS", "CORE", "FSIZE", "NOFILE", "NPROC")
]


def wanted() -> bool:
    """Whether anything is to be forked."""
    usual = "no" if os.environ.get("CHUNKVISOR_SOAK_SEED") else "yes"
    never = os.environ.get("CHUNKVISOR_TEST_FORKS", usual) == "no"
    never = never or os.environ.get("CHUNKVISOR_TEST_ENGINE") == "ray"
    return not never and "coverage" not in sys.modules and zygote.can_fork()


def fork_children_of_this_process() -> None:
    """Have the children of this process, which has imported what they import, forked from a fork of
    it.
    """
    if not wanted():
        return
    made = Zygote(kind_for(os.environ), of_this_process=True)
    Forked.zygotes[made.kind] = made
    Forked.forks_models = False
    child.subprocess = process.subprocess = FORKING  # type: ignore[assignment,attr-defined]  # it has what is used


def kind_for(
    environment: Mapping[str, str], module: str = COMMAND, attempt: Path | None = None
) -> str:
    """Of the zygote for commands with this environment, or for the attempt in that folder; "" = a
    new interpreter.
    """
    if environment.get("LD_PRELOAD", "").endswith(_NULL_GPU):
        return "gpu"
    if attempt is None:
        return "command"
    # The parent of workers is the thread that has the zygote: a worker dies with the thread that
    # started it.
    encoder = encoder_of(attempt) if threading.current_thread() is threading.main_thread() else ""
    if (
        encoder == "sentence-transformers"
        and Forked.forks_models
        and not environment.get("CUDA_VISIBLE_DEVICES")
    ):
        path = environment.get("PYTHONPATH", "").split(os.pathsep)
        return "" if any(_has_shadows(folder, "model") for folder in path if folder) else "model"
    if encoder in ("", "sentence-transformers") or module != _WORKER:
        return ""
    return "worker" if Forked.forks_models else "command"


def encoder_of(attempt: Path) -> str:
    """Of the model that a worker or a template in that folder is to load; "" where its spec does
    not say.

    Nor of one with a cache of its own, which must be known before the libraries are imported.
    """
    path = AttemptFiles(attempt).spec
    spec = read_message(Spec, path) or read_message(TemplateSpec, path)
    return spec.model.encoder if spec and not Path(spec.model.hub or "/none").is_dir() else ""


class Zygote:
    """The process that forks, and the socket that it takes orders from."""

    def __init__(
        self, kind: str, loader: Mapping[str, str] | None = None, *, of_this_process: bool = False
    ) -> None:
        """A new interpreter, with variables for the loader; or a fork of this process, which has no
        threads yet.
        """
        self.kind = kind
        self._ours, theirs = socket.socketpair()
        # It answers the first order when it has imported all it needs, of which torch may come from
        # a cold disk.
        self._ours.settimeout(600 if kind in _HAVE_MODELS else 60)
        self._base = {name: value for name, value in os.environ.items() if name not in (MARK, ROOM)}
        self._base |= loader or {}
        self._base |= _ON_CPU if kind == "model" else {}
        self._limits = _limits()
        self._lock = threading.Lock()
        with theirs:
            self.pid = self._fork(theirs) if of_this_process else self._start(theirs)

    def _start(self, theirs: socket.socket) -> int:
        # as PYTHONUNBUFFERED has it
        unbuffered = ["-u"] if self.kind in ("worker", "model") else []
        program = [
            sys.executable,
            *unbuffered,
            "-P",
            zygote.__file__,
            self.kind,
            str(theirs.fileno()),
        ]
        path = os.pathsep.join(
            filter(None, [self._base.get("PYTHONPATH"), str(Path(__file__).parent)])
        )
        environment = {**self._base, "PYTHONPATH": path, ROOM: ROOM_FILLED}
        environment |= _FOR_IMPORTS if self.kind in _HAVE_MODELS else {}
        # a child has none of its threads, and would wait for them at its end
        environment["OPENBLAS_NUM_THREADS"] = "1"
        fds = [theirs.fileno()]
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(
            program,
            env=environment,
            pass_fds=fds,
            stdin=nothing,
            stdout=nothing,
            start_new_session=True,
        )
        process.returncode = 0  # it is waited for by its pid
        return process.pid

    def _fork(self, theirs: socket.socket) -> int:
        pid = os.fork()
        if not pid:
            os.setsid()
            self._ours.close()
            zygote.main(theirs)
        return pid

    def takes(self, environment: Mapping[str, str]) -> bool:
        """Whether its child would be what a new interpreter with this environment is."""
        names = {*self._base, *environment}
        if any(
            self._read_before(self._base, name) != self._read_before(environment, name)
            for name in names
        ):
            return False
        known = self._base.get("PYTHONPATH", "").split(os.pathsep)
        added = [
            each
            for each in environment.get("PYTHONPATH", "").split(os.pathsep)
            if each not in ("", *known)
        ]
        if any(_has_shadows(folder, self.kind) for folder in added):
            return False
        return len(as_shown(dict(environment))) < len(ROOM_FILLED) and _limits() == self._limits

    def _read_before(self, environment: Mapping[str, str], name: str) -> str | None:
        """The value of what is read before a program begins, or by what has been imported; None of
        all else.
        """
        read = _READ_BEFORE + (_READ_BY_IMPORTS if self.kind in _HAVE_MODELS else ())
        value = (
            environment.get(name)
            if name.startswith(read) and name not in (*_FIXED, *_READ_LATER)
            else None
        )
        # Without a locale, Python takes this one (PEP 538).
        return None if value == "C.UTF-8" else value

    def fork(
        self,
        module: str,
        arguments: Sequence[str],
        fds: Sequence[int],
        environment: Mapping[str, str],
    ) -> int:
        """The pid of a new child of this process, which is that module; `fds` become 0, 1 and 2."""
        order = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(Path.cwd()),
            "umask": umask(),
        }
        text = json.dumps(order).encode()
        with self._lock:
            socket.send_fds(self._ours, [array.array("i", [len(text)]).tobytes()], list(fds))
            self._ours.sendall(text)
            answer = self._ours.recv(8)
        if not answer:
            raise OSError(f"the zygote {self.pid} of the tests has ended")
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        """It ends when it hears the socket close."""
        self._ours.close()
        os.waitpid(self.pid, 0)


def _has_shadows(folder: str, kind: str) -> bool:
    """Whether a folder on PYTHONPATH has another library in the place of one that a zygote has
    imported.
    """
    return any(
        Path(folder, name).exists()
        for name in (*_SHADOWS, *(_MODEL_SHADOWS if kind == "model" else ()))
    )


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(limit) for limit in _LIMITS]


class Forked(subprocess.Popen[Any]):
    """A command of `chunkvisor`, or the child that reads sources, as Popen starts it."""

    zygotes: ClassVar[dict[str, Zygote]] = {}
    """Of all commands of this session, by kind."""
    forks_models = True
    """Not by a command that is forked itself: what its workers import serves no other test."""
    _making = threading.Lock()
    """Commands are started by threads, too, and need no zygote each."""

    def _execute_child(self, args: Sequence[str], *others: Any) -> None:
        """In the place of fork and exec; private, and the one way to have all else of Popen
        (subprocess.py).
        """
        environment = os.environ if others[5] is None else others[5]
        module, arguments = program_of(args)
        folder = Path(arguments[0]) if module in (_WORKER, f"{_WORKER}.template") else None
        kind = kind_for(environment, module, folder) if module and wanted() else ""
        if not kind or not (made := self.zygote(kind, environment)).takes(environment):
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        fds = others[9:15]
        streams = [ours if fd == -1 else fd for ours, fd in enumerate((fds[0], fds[3], fds[5]))]
        self.pid = made.fork(module, arguments, streams, environment)
        self._child_created = True
        self._close_pipe_fds(*fds)  # type: ignore[attr-defined]

    @classmethod
    def zygote(cls, kind: str, environment: Mapping[str, str]) -> Zygote:
        """That of this kind; it is made for the first command or worker, whose environment has what
        to preload.
        """
        with cls._making:
            if kind not in cls.zygotes:
                preloaded = {
                    name: value for name, value in environment.items() if name.startswith("LD_")
                }
                cls.zygotes[kind] = Zygote(kind, preloaded if kind == "gpu" else None)
            return cls.zygotes[kind]


def program_of(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """(module, arguments) of what can be forked; "" of all else."""
    if tuple(command[:3]) == COMMAND_LINE:
        return COMMAND, command[3:]
    if tuple(command[:3]) == (sys.executable, "-P", "-m") and command[3] in _MODULES:
        return command[3], command[4:]
    return "", ()


FORKING = SimpleNamespace(**{**vars(subprocess), "Popen": Forked})
"""In the place of `subprocess`, where a module of the product starts a child of ours."""
