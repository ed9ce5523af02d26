"""A null GPU as a Python object: a folder with a control file, and the environment that makes torch
meet it.

The knobs may be turned while processes run on it. README.md beside this file tells what each of
them does.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build import Built

from harness import Ended, Env, Process, Workplace, finish

LIMIT_S = 800
"""No command may take longer, however many others compute beside it; conftest.py gives a test a
little more."""

_TORCH_ALONE = Path(__file__).parent / "encoders" / "torch_alone.py"

MIB = 1 << 20
GIB = 1 << 30

_SMI = {
    "ok": "ok",
    "hang": "hang",
    "mismatch": "fail:18:Failed to initialize NVML: Driver/library version mismatch",
    "unknown": "fail:255:Failed to initialize NVML: Unknown Error",
    "lost": "fail:15:Unable to determine the device handle for GPU0000:1A:00.0: GPU is lost.  "
    "Reboot the system to recover this GPU",
}


@dataclass(slots=True)
class NullGpu:
    """One machine with null GPUs."""

    folder: Path
    built: Built
    gpus: Sequence[int] = (8 * GIB,)
    """Memory of each GPU, in bytes."""
    _settings: dict[str, str] = field(default_factory=dict)
    _neighbours: list[str] = field(default_factory=list)
    _faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the folder: its own nvidia-smi, and the first control file."""
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "bin" / "nvidia-smi").symlink_to(self.built.smi)
        for name in (
            "nvidiactl",
            "nvidia-uvm",
            *(f"nvidia{index}" for index in range(len(self.gpus))),
        ):
            node = self.folder / "dev" / name
            node.parent.mkdir(exist_ok=True)
            node.touch()
        module = self.folder / "proc" / "driver" / "nvidia" / "version"
        module.parent.mkdir(parents=True)
        module.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Null GPU\n")
        self._write()

    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to run on these GPUs, over that of this process."""
        return {
            "NULLGPU_DIR": str(self.folder),
            "LD_PRELOAD": str(self.built.preload),
            "LD_LIBRARY_PATH": os.pathsep.join(
                [str(self.built.libraries), *_listed("LD_LIBRARY_PATH")]
            ),
            "PATH": os.pathsep.join([str(self.folder / "bin"), *_listed("PATH")]),
        }

    def set(self, **settings: Any) -> None:
        """Set keys of the control file by name; `__` stands for the dot, as in memory__1="16G".
        None takes one out.
        """
        for key, value in settings.items():
            self._settings[key.replace("__", ".")] = str(value)
            if value is None:
                del self._settings[key.replace("__", ".")]
        self._write()

    def neighbour(self, gpu: int, size_bytes: int) -> None:
        """Memory that somebody else holds from now on."""
        self._neighbours.append(f"{gpu}:{size_bytes}:999999:python3")
        self._write()

    def neighbours_leave(self) -> None:
        """All neighbours give their memory back."""
        self._neighbours = []
        self._write()

    def fault(self, what: str, place: str, *, gpu: int | None = None, argv: str = "") -> None:
        """Add a fault at a place such as "launch:35": a CUDA error code, "hang", "hold", "kill",
        "kill:6", "slow:2.5".

        A process that is held goes on when the fault is taken out (`release`).

        Places: init, context, call, launch, memcpy, malloc, wait, "kernel:part of its name", any
        function's name; with ":N" the Nth, ":N+" from it on, ":N-M".
        """
        words = [f"{what}@{place}"]
        words += [f"gpu={gpu}"] if gpu is not None else []
        words += [f"argv={argv}"] if argv else []
        self._faults.append(",".join(words))
        self._write()

    def release(self, place: str = "") -> None:
        """Let go what is held, at this place or anywhere: take the faults "hold" out, and no
        others.
        """
        self._faults = [each for each in self._faults if not each.startswith(f"hold@{place}")]
        self._write()

    def smi(self, mode: str) -> None:
        """How nvidia-smi behaves: ok, absent, broken, mismatch, unknown, lost, hang,
        "slow:SECONDS".
        """
        link = self.folder / "bin" / "nvidia-smi"
        link.unlink(missing_ok=True)
        if mode != "absent":
            link.symlink_to(self.built.smi)
            self.set(smi=_SMI.get(mode, mode))

    def trace(self) -> dict[int, list[str]]:
        """The calls of each process by its pid, where trace=1 is set; a launch has its kernel's
        name behind it.
        """
        return {
            int(path.name): path.read_text().splitlines()
            for path in (self.folder / "trace").glob("*")
        }

    def used_bytes(self) -> int:
        """Memory of the first GPU in use, as nvidia-smi tells it (whole MiB)."""
        asked = ("--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0")
        answer = self.call("nvidia-smi", *asked)
        return int(answer.stdout) * MIB

    def call(self, *command: str) -> Ended:
        """Run a command on these GPUs, to its end."""
        environment = {**os.environ, **self.environment()}
        program = shutil.which(command[0], path=environment["PATH"]) or command[0]
        pipe = subprocess.PIPE
        started = subprocess.Popen(
            [program, *command[1:]],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment,
        )
        return finish(started, LIMIT_S)

    def _write(self) -> None:
        lines = [
            f"gpus={len(self.gpus)}",
            *(f"memory.{index}={size}" for index, size in enumerate(self.gpus)),
        ]
        lines += [f"{key}={value}" for key, value in self._settings.items()]
        lines += [f"neighbour={line}" for line in self._neighbours]
        lines += [f"fault={line}" for line in self._faults]
        temporary = self.folder / ".control"
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(self.folder / "control")


class GpuWorkplace(Workplace):
    """A Workplace whose runs compute a tiny BERT on null GPUs."""

    def __init__(self, folder: Path, gpu: NullGpu, model: Path) -> None:
        super().__init__(folder)
        self.gpu = gpu
        self.model = model

    def write_model_config(self, **changes: Any) -> None:
        """As `write_config`: fresh workers without standby, on every GPU; dotted keys (`__`)
        override.
        """
        ours = {"model.name": str(self.model), "device": "cuda", "env": {}}
        self.write_config("sentence-transformers", **ours | changes)

    def write_torch_config(self, **changes: Any) -> None:
        """As `write_model_config`, with an encoder of torch alone: for faults of torch's own,
        whatever computes.
        """
        shutil.copy(_TORCH_ALONE, self.folder)
        self.write_model_config(**{"model.encoder": "torch_alone:make"} | changes)

    def write_texts(self, count: int, words: int = 8) -> None:
        """A source of `texts`."""
        self.write_source(texts(count, words))

    def start(self, *arguments: str, env: Env = None) -> Process:
        """See Workplace; on the null GPUs."""
        return super().start(*arguments, env={**self.gpu.environment(), **(env or {})})

    def execute(self, arguments: Sequence[str], env: Mapping[str, str]) -> Ended:
        """See Workplace; a process that sees null GPUs begins with their libraries."""
        return finish(self.start(*arguments, env=env), LIMIT_S)

    def attempts(self) -> list[Path]:
        """Folders of the attempts that were kept, in their order."""
        return sorted((self.hidden / "outputs/out/0001/attempts").glob("*/*"))


def texts(count: int, words: int = 8) -> list[str]:
    """Texts of so many tokens (two more with the model's own), no two of the first 9,409 alike."""
    return [
        " ".join(f"word{(row + i * (1 + row // 97)) % 97}" for i in range(words))
        for row in range(count)
    ]


def _listed(name: str) -> list[str]:
    return [entry for entry in os.environ.get(name, "").split(os.pathsep) if entry]
