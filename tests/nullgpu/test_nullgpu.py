"""The null GPU agrees with itself: torch, the driver's tools and several processes see the same machine."""

import importlib.metadata
import sys
from collections.abc import Callable

import pytest
from asking import ask, ask_each

from nullgpu import GIB, MIB, NullGpu

ASSERTS_NVML = tuple(map(int, importlib.metadata.version("torch").split(".")[:2])) < (2, 14)
"""Later allocators warn."""


@pytest.mark.newer
def test_torch_and_nvidia_smi_see_the_same_gpus(make_gpu: Callable[..., NullGpu]) -> None:
    """Count, names, sizes and UUIDs agree, and so does memory that neighbours hold and torch takes."""
    gpu = make_gpu([8 * GIB, 16 * GIB], name__1="Null GPU 16")
    gpu.neighbour(1, 3 * GIB, pid=4711, name="trainer")
    said = ask(
        gpu,
        """
import subprocess
csv = "--format=csv,noheader,nounits"
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
gpus = ["nvidia-smi", "--query-gpu=uuid,memory.total,memory.used", csv]
say("smi", subprocess.check_output(gpus, text=True))
apps = ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", csv, "-i", "1"]
say("apps", subprocess.check_output(apps, text=True))
say("open", sorted(os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2))
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
    # /dev/nvidiactl twice: device_count() asks NVML, which stays open.
    nodes = [each for each in said["open"] if each.startswith("/dev/nvidia")]
    assert sorted(set(nodes)) == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"]


def test_processes_share_the_memory_of_a_gpu(gpu: NullGpu) -> None:
    """What one process holds, another cannot have; the dead give theirs back, after the time they are given."""
    gpu.set(giveback_s=3600)
    take = "torch.empty({} << 30, dtype=torch.uint8, device='cuda')"
    hold = f"import sys, torch; kept = {take.format(6)}; print('held', flush=True); sys.stdin.read()"
    holder = gpu.start([sys.executable, "-c", hold])
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert gpu.used_bytes() == 6 * GIB + 256 * MIB
    said = ask(gpu, f'error("refused", lambda: {take.format(2)})')
    assert said["refused"][0] == "OutOfMemoryError"
    assert "GPU 0 has a total capacity of 8.00 GiB of which 1.50 GiB is free" in said["refused"][1]
    assert f"Process {holder.pid} has 6.25 GiB memory in use" in said["refused"][1]
    holder.kill()
    holder.communicate()
    assert gpu.used_bytes() > 6 * GIB
    gpu.set(giveback_s=0)
    assert gpu.used_bytes() == 0


_OOM = "lambda: torch.empty(9 << 30, dtype=torch.uint8, device='cuda')"


@pytest.mark.newer
def test_a_broken_nvml_gives_the_genuine_assertions(gpu: NullGpu) -> None:
    """The allocator of 2.13 asks NVML for its out-of-memory message, and asserts that it works; newer ones do not."""
    said = ask(
        gpu,
        f"""
turn("nvml.init=999")
error("init", {_OOM})
turn("nvml.init=0\\nnvml.handle=999")
error("handle", {_OOM})
turn("nvml.handle=0\\nnvml.processes=999")
error("processes", {_OOM})
turn("nvml.processes=0")
error("none", {_OOM})
""",
    )
    assert said["none"][0] == "OutOfMemoryError"
    if ASSERTS_NVML:
        lines = {"init": 1377, "handle": 1392, "processes": 1407}
        for place, line in lines.items():
            name, text, _ = said[place]
            assert name == "RuntimeError"
            assert "NVML_SUCCESS == " in text
            assert f'CUDACachingAllocator.cpp":{line}, please report a bug' in text
    else:
        assert {said[place][0] for place in ("init", "handle", "processes")} == {"OutOfMemoryError"}


@pytest.mark.newer
def test_a_fault_of_a_kernel_stays_for_its_process(gpu: NullGpu) -> None:
    """700 is noticed by the next call that waits, or at once where launches block, and by every call after it."""
    code = """
torch.zeros(1, device="cuda")
error("launch", lambda: torch.ones(4, device="cuda"))
error("wait", torch.cuda.synchronize)
error("later", lambda: torch.zeros(4, device="cuda"))
"""
    fault = {"NULLGPU_SET": "fault=700@launch:2"}
    late, blocking = ask_each(gpu, code, fault, {**fault, "CUDA_LAUNCH_BLOCKING": "1"})
    assert late["launch"] is None
    assert blocking["launch"][0] == "AcceleratorError"
    for said in (late, blocking):
        for place in ("wait", "later"):
            name, text, code_ = said[place]
            assert name == "AcceleratorError"
            assert "CUDA error: an illegal memory access was encountered" in text
            assert code_ == 700
    assert ask(gpu, code) == {"launch": None, "wait": None, "later": None}
