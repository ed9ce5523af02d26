"""One GPU, the environment in which processes see it, and a Workplace whose runs use it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness import MARK, Ended, Workplace

ENCODERS_ON_GPU = Path(__file__).parent / "encoders"

DESCRIPTION = "CHUNKVISOR_TEST_GPU"
"""Environment variable with the path of a JSON file that describes another GPU than this machine's first.

Its keys, all optional: `python` (the interpreter to run chunkvisor under), `environment` (variables of its processes),
`device` (of the config), `arithmetic` (false = kernels do nothing), `troubles` (see TestGpu).
"""

LIMIT_S = 1160
"""No command may take longer; conftest.py lets a case take 1,200 s, for machines with other work to do."""

TEXTS: list[str] = [
    "How do I sort a list?",
    "",
    "How do I sort a list?",
    "Wie sortiere ich eine Liste?",
    "如何对列表进行排序?",
    "🙂🎉 emoji 🚀",
    "long " * 3000,
    *(
        f"Commit {number}: fix the {number % 7}th bug in module {number % 5}, " * (1 + number % 40)
        for number in range(185)
    ),
]
"""192 texts from none to 256 tokens."""

_VERSIONS = """
import importlib.metadata, json, torch
print(json.dumps({"torch": torch.__version__, "CUDA": torch.version.cuda or "none: a build for the CPU",
                  "sentence-transformers": importlib.metadata.version("sentence-transformers")}))
"""

_PLAIN = """
import json, sys, numpy
from sentence_transformers import SentenceTransformer
model, texts, out, device = sys.argv[1:]
vectors = SentenceTransformer(model, device=device).encode(json.load(open(texts)), show_progress_bar=False)
numpy.save(out, vectors)
"""


@dataclass(frozen=True)
class TestGpu:
    """What the cases run on."""

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    """What its processes have beside this process's own variables."""
    device: str = "cuda:0"
    arithmetic: bool = True
    """Whether kernels compute."""
    troubles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Where they do not: variables of the workers by which those of chunk 1, attempt 1, meet a trouble of on_gpu.py."""
    name: str = ""
    driver: str = ""
    memory_bytes: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of torch and its kind, in the interpreter that runs on it."""

    __test__ = False

    @property
    def torch_device(self) -> str:
        """As torch calls it in a process that sees this GPU alone or first."""
        return self.device.partition(":")[0]

    def variables(self) -> dict[str, str]:
        """The environment of its processes."""
        return {**os.environ, **self.environment}

    def call(self, command: Sequence[str]) -> str:
        """What a command says that has to succeed."""
        ended = subprocess.run(
            command, env=self.variables(), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert ended.returncode == 0, f"{command[0]} ended with {ended.returncode}:\n{ended.stderr[-4000:]}"
        return ended.stdout

    def used_bytes(self) -> int:
        """Memory in use by all processes on the GPU, as nvidia-smi has it."""
        return int(self.smi("memory.used").split()[0]) << 20

    def smi(self, query: str) -> str:
        """nvidia-smi's answer for the first GPU that this environment shows, without units."""
        visible = self.variables().get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
        only = [f"--id={visible}"] if visible else ["--id=0"]
        return self.call(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", *only])

    def plain_encode(self, model: Path, folder: Path) -> Path:
        """TEXTS through the library's own `encode`, in a process of its own."""
        texts, out = folder / "texts.json", folder / "plain.npy"
        texts.write_text(json.dumps(TEXTS))
        self.call([self.python, "-c", _PLAIN, str(model), str(texts), str(out), self.torch_device])
        return out


def find_gpu(environment: Mapping[str, str]) -> TestGpu:
    """The first visible GPU, or the one that the variable describes. Fails where torch cannot use it."""
    given: dict[str, Any] = {}
    if path := environment.get(DESCRIPTION):
        given = json.loads(Path(path).read_text())
    bare = TestGpu(**given)
    versions = json.loads(bare.call([bare.python, "-c", _VERSIONS]))
    if bare.torch_device != "cuda":
        return replace(bare, name=bare.device, versions=versions)
    if versions["CUDA"].startswith("none"):
        pytest.fail(f"nvidia-smi lists a GPU, and the torch of {bare.python} is a build without CUDA", pytrace=False)
    name, driver, memory = (each.strip() for each in bare.smi("name,driver_version,memory.total").split(","))
    return replace(bare, name=name, driver=driver, memory_bytes=int(memory) << 20, versions=versions)


class GpuPlace(Workplace):
    """A Workplace whose commands see the GPU."""

    def __init__(self, folder: Path, gpu: TestGpu) -> None:
        super().__init__(folder)
        self.gpu = gpu
        self.notes = folder / "notes"
        """Where tests/gpu/encoders/on_gpu.py writes what it saw."""
        self.notes.mkdir()

    def command(self, *arguments: str) -> list[str]:
        """As Workplace.command, under the interpreter that knows the GPU."""
        return [self.gpu.python, *super().command(*arguments)[1:]]

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """As Workplace.start, in the GPU's environment."""
        return super().start(*arguments, env={**self.gpu.environment, MARK: os.environ.get(MARK, ""), **(env or {})})

    def call(self, *arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        """As Workplace.call; a model on a GPU may take a while to start."""
        with self.start(*arguments, env=env) as process:
            try:
                stdout, stderr = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise AssertionError(f"no end in sight: {process.communicate()}") from None
        return Ended(process.returncode, stdout, stderr)

    def configure(self, model: Path | None = None, **changes: Any) -> None:
        """A config over TEXTS: the model at the path, or the plug-in `on_gpu` with `model__kwargs`."""
        self.write_source(TEXTS)
        encoder = "sentence-transformers" if model else "on_gpu:make"
        name = {"model__name": str(model)} if model else {}
        path = os.pathsep.join(filter(None, [str(ENCODERS_ON_GPU), self.gpu.variables().get("PYTHONPATH")]))
        env = {"PYTHONPATH": path, **changes.pop("env", {})}
        defaults = {"chunk__size": 96, "recovery__startup_timeout": 600}
        self.write_config(encoder, env=env, **name, **{"device": self.gpu.device, **defaults, **changes})

    def complete(self, *arguments: str) -> None:
        """Run, and expect it to complete."""
        ended = self.run(*arguments)
        assert ended.returncode == 0, ended.stderr

    def failed(self) -> list[tuple[int, str]]:
        """(chunk, outcome) of every failed attempt of the run."""
        return [(each["chunk"], each["outcome"]) for each in self.events() if each["event"] == "attempt_failed"]

    def noted(self) -> dict[tuple[int, int], dict[str, Any]]:
        """What the plug-in wrote down, by chunk and attempt."""
        found = {}
        for path in sorted(self.notes.glob("*.json")):
            chunk, _, attempt = path.stem.partition("-")
            found[int(chunk), int(attempt)] = json.loads(path.read_text())
        return found
