"""The null GPU agrees with itself: torch, the driver's tools and several processes see the same machine."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nullgpu import GIB, MIB, NullGpu

_ASK = """
import json, sys, torch
out = {}
def say(name, value): out[name] = value
def error(name, function):
    try:
        function()
        out[name] = None
    except Exception as fault:
        out[name] = [type(fault).__name__, str(fault), getattr(fault, "error_code", None)]
%s
print("ANSWER" + json.dumps(out))
"""


def ask(gpu: NullGpu, code: str, **environment: str) -> dict[str, Any]:
    """What the lines of `code` said, in a process on the null GPU: say(name, value), error(name, function)."""
    ended = gpu.python(_ASK % code, env=environment)
    answers = [line for line in ended.stdout.splitlines() if line.startswith("ANSWER")]
    assert answers, ended
    return json.loads(answers[0].removeprefix("ANSWER"))


@pytest.mark.newer
def test_torch_and_nvidia_smi_see_the_same_gpus(make_gpu: Callable[..., NullGpu]) -> None:
    """Count, names, sizes and UUIDs agree, and so does memory that neighbours hold and torch takes."""
    gpu = make_gpu([8 * GIB, 16 * GIB], name__1="Null GPU 16", trace=1)
    gpu.neighbour(1, 3 * GIB, pid=4711, name="trainer")
    said = ask(
        gpu,
        """
import subprocess
say("count", torch.cuda.device_count())
say("names", [torch.cuda.get_device_name(i) for i in range(2)])
say("uuids", ["GPU-" + str(torch.cuda.get_device_properties(i).uuid) for i in range(2)])
say("capability", torch.cuda.get_device_capability())
say("before", torch.cuda.mem_get_info(1))
kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:1")
say("after", torch.cuda.mem_get_info(1))
ones = torch.ones((64, 64), device="cuda")
say("product", (ones @ ones).sum().item())
say("there and back", torch.arange(6.0).cuda().cpu().tolist())
say("smi", subprocess.check_output(["nvidia-smi", "--query-gpu=uuid,memory.total,memory.used", "--format=csv,noheader,nounits"], text=True))
say("apps", subprocess.check_output(["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits", "-i", "1"], text=True))
""",
    )
    assert said["count"] == 2
    assert said["names"] == ["Null GPU", "Null GPU 16"]
    assert said["capability"] == [8, 0]
    assert said["before"] == [12.75 * GIB, 16 * GIB]
    assert said["after"] == [11.75 * GIB, 16 * GIB]
    assert said["product"] == 64**3
    assert said["there and back"] == [0, 1, 2, 3, 4, 5]
    first, second = (line.split(", ") for line in said["smi"].splitlines())
    assert [first[0], second[0]] == said["uuids"]
    assert [first[1], second[1]] == ["8192", "16384"]
    assert second[2] == str(int(4.25 * 1024))
    apps = [line.split(", ") for line in said["apps"].splitlines()]
    assert [app[2] for app in apps] == ["1280", "3072"]
    assert apps[1][:2] == ["4711", "trainer"]


def test_processes_share_the_memory_of_a_gpu(gpu: NullGpu) -> None:
    """What one process holds, another cannot have; the dead give theirs back, after the time they are given."""
    gpu.set(giveback_s=3600)
    hold = "import sys, torch; kept = torch.empty(6 << 30, dtype=torch.uint8, device='cuda'); print('held', flush=True); sys.stdin.read()"
    holder = gpu.start([sys.executable, "-c", hold])
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert gpu.used_bytes() == 6 * GIB + 256 * MIB
    refused = 'error("held", lambda: torch.empty(2 << 30, dtype=torch.uint8, device="cuda"))'
    said = ask(gpu, refused)
    assert said["held"][0] == "OutOfMemoryError"
    assert "GPU 0 has a total capacity of 8.00 GiB of which 1.50 GiB is free" in said["held"][1]
    assert f"Process {holder.pid} has 6.25 GiB memory in use" in said["held"][1]
    holder.kill()
    holder.communicate()
    assert gpu.used_bytes() > 6 * GIB
    gpu.set(giveback_s=0)
    assert gpu.used_bytes() == 0
    assert ask(gpu, refused)["held"] is None


_OOM = 'error("oom", lambda: torch.empty(9 << 30, dtype=torch.uint8, device="cuda"))'


@pytest.mark.parametrize(
    ("where", "line"), [({"init": 999}, 1377), ({"handle": 999}, 1392), ({"processes": 999}, 1407)], ids=str
)
def test_a_broken_nvml_gives_the_genuine_assertion(gpu: NullGpu, where: dict[str, int], line: int) -> None:
    """torch 2.13's allocator asks NVML while it composes the out-of-memory message, and asserts that it works."""
    gpu.nvml(**where)
    name, text, _ = ask(gpu, _OOM)["oom"]
    assert name == "RuntimeError"
    assert "NVML_SUCCESS == " in text
    assert f'CUDACachingAllocator.cpp":{line}, please report a bug' in text
