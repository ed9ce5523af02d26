"""Warm starts with torch's CUDA build: the template loads a model and touches no GPU; its workers
compute on one.
"""

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from harness import finish, wait_for
from nullgpu import LIMIT_S, GpuWorkplace

CHUNKS = 20


def starts(workplace: GpuWorkplace) -> list[str]:
    """How each attempt's worker was started."""
    return [each["start"] for each in workplace.named("attempt_started")]


def test_all_chunks_are_forked_from_one_template_that_calls_nothing_of_a_gpu(
    gpu_workplace: GpuWorkplace,
) -> None:
    """A real model is loaded once; each worker, and no other process, makes a context and computes
    on the device.

    While it lives the template has one thread and no file of the driver open; the driver's library
    is mapped all the same, since libcublasLt opens it.
    """
    workplace = gpu_workplace
    workplace.write_texts(4 * CHUNKS)
    workplace.write_model_config(**{"chunk.size": 4, "workers.start": "warm"})
    run = workplace.begin(env={"CHUNKVISOR_TEST_FORKS": "no"})
    wait_for(lambda: workplace.named("template_ready"), LIMIT_S)
    (ready,) = workplace.named("template_ready")
    template, threads, files = Path(f"/proc/{ready['pid']}"), set[str](), set[str]()
    while run.poll() is None:
        with contextlib.suppress(
            OSError
        ):  # a descriptor was closed meanwhile, or the template has ended
            threads.add((template / "status").read_text().partition("Threads:")[2].split()[0])
            files |= {str(fd.readlink()) for fd in (template / "fd").iterdir()}
    finish(run, LIMIT_S, code=0)
    assert workplace.vectors().shape == (4 * CHUNKS, 64)
    assert starts(workplace) == ["warm"] * CHUNKS
    assert len(workplace.named("template_started")) == 1
    assert workplace.gpu.used_bytes() == 0
    assert threads <= {"1", "0"}  # none is left when it ends
    assert not [name for name in files if "/dev/nvidia" in name]
    trace = workplace.gpu.trace()
    assert set(trace) == {each["pid"] for each in workplace.named("attempt_started")}
    for calls in trace.values():
        names = [call.split()[0] for call in calls]
        asked, held, copied = (
            names.index(name) for name in ("cudaGetDeviceCount", "cudaMalloc", "cudaMemcpyAsync")
        )
        assert asked < held < copied
        assert "cudaLaunchKernel" in names


_INITIALISES = {
    "torch": (
        "torch.zeros(1, device='cuda')",
        "a template shows it none (RuntimeError: No CUDA GPUs",
    ),
    "device-of-its-own": (
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0'; torch.zeros(1, device='cuda')",
        "/dev/nvidia",
    ),
    "nvml": (
        "assert ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2() == 0",
        "it has /dev/nvidiactl open",
    ),
}
"""What begins to use a GPU -> (code that does it while a plug-in is imported, a part of what `warm`
says of it)."""


@pytest.mark.parametrize("how", _INITIALISES)
def test_a_plug_in_that_starts_cuda_at_import_is_not_forked(
    gpu_workplace: GpuWorkplace, how: str
) -> None:
    """`warm` ends with 78 and says why, before any worker."""
    code, words = _INITIALISES[how]
    program = f"import ctypes, os, torch\nfrom torch_alone import make\n{code}\n"
    (gpu_workplace.folder / "theirs.py").write_text(program)
    gpu_workplace.write_texts(4)
    gpu_workplace.write_torch_config(**{"model.encoder": "theirs:make", "workers.start": "warm"})
    ended = gpu_workplace.ends(78)
    assert "no worker can be started warm" in ended.stderr
    assert words in ended.stderr
    assert "workers.start: auto" in ended.stderr
    assert starts(gpu_workplace) == []


_REMOTE = """
import os

import torch
from transformers import BertModel


class ToldModel(BertModel):
    def __init__(self, *args, **kwargs):
        with open(os.environ["LOADS"], "a") as loads:
            loads.write(f"{os.getpid()}\\n")
        if os.environ["ASKS"]:
            self.on_gpu = torch.cuda.is_available()
        super().__init__(*args, **kwargs)
"""
"""A model's own code, which tells of every load."""


def test_auto_loads_the_weights_once(gpu_workplace: GpuWorkplace) -> None:
    """By the template, for all workers, though the model's code asks for a GPU while it loads."""
    own = shutil.copytree(gpu_workplace.model, gpu_workplace.folder / "own")
    (own / "modeling_told.py").write_text(_REMOTE)
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(
        json.dumps(config | {"auto_map": {"AutoModel": "modeling_told.ToldModel"}})
    )
    loads = gpu_workplace.folder / "loads"
    gpu_workplace.model = own
    gpu_workplace.write_texts(6)
    gpu_workplace.write_model_config(
        **{
            "model.trust_remote_code": True,
            "workers.start": "auto",
            "chunk.size": 3,
            "env": {
                "LOADS": str(loads),
                "ASKS": "1",
                "HF_MODULES_CACHE": str(gpu_workplace.folder),
            },
        }
    )
    gpu_workplace.ends(0)
    (template,) = gpu_workplace.named("template_started")
    loaders = [int(line) for line in loads.read_text().split()]
    names = [each["event"] for each in gpu_workplace.events()]
    assert starts(gpu_workplace) == ["warm"] * 2
    assert loaders == [template["pid"]]
    assert names.index("template_ready") < names.index("attempt_started")
