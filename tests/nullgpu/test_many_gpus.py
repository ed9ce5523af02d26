"""Several GPUs in a run, and GPUs in trouble: neighbors, lost ones, MIG, nvidia-smi's moods;
dtypes, and the doctor.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Process, finish, wait_for
from nullgpu import GIB, LIMIT_S, MIB, GpuWorkplace, NullGpu, texts

CONTEXT_BYTES = 256 * MIB
MakeGpu = Callable[..., NullGpu]


def used_devices(workplace: GpuWorkplace) -> Counter[int]:
    """How many attempts each device had, by its place among those of the run."""
    return Counter(each["device"] for each in workplace.named("attempt_started"))


def device_of(workplace: GpuWorkplace) -> dict[tuple[int, int], int]:
    """(chunk, attempt) -> device."""
    return {
        (each["chunk"], each["attempt"]): each["device"]
        for each in workplace.named("attempt_started")
    }


def batches_by_device(workplace: GpuWorkplace) -> dict[int, set[int]]:
    """Device -> how many rows a batch of the longest texts had in each attempt that has begun
    there.
    """
    device = device_of(workplace)
    rows: dict[int, set[int]] = {}
    for each in workplace.named("go"):
        rows.setdefault(device[each["chunk"], each["attempt"]], set()).add(each["rows"])
    return rows


def begin(workplace: GpuWorkplace, commits: int) -> Process:
    """Start the run; it has committed so many chunks now."""
    run = workplace.begin()
    wait_for(lambda: len(workplace.named("chunk_committed")) >= commits, LIMIT_S)
    return run


def test_each_kind_of_gpu_learns_and_one_may_be_lost(
    make_gpu: MakeGpu, tmp_path: Path, bert: Path
) -> None:
    """Of eight GPUs, a batch is halved on the small ones alone; the run ends well without the one
    that falls off.
    """
    small = CONTEXT_BYTES + 48 * MIB
    sizes = [8 * GIB, small, 8 * GIB, small, 16 * GIB, 16 * GIB, 24 * GIB, 8 * GIB]
    gpus = make_gpu(sizes, name__1="Small", name__3="Small", name__4="Null B", name__5="Null B")
    workplace = GpuWorkplace(tmp_path, gpus, bert)
    workplace.write_source(texts(64 * 16, words=1000))
    limits = {"chunk.size": 64, "encode.batch_size": 64, "encode.batch_tokens": None}
    workplace.write_torch_config(**limits, **{"workers.start": "warm"})
    for number in (0, 2, 4, 5, 6, 7):
        # in its first batch; the small ones go on
        workplace.gpu.fault("hold", "kernel:layer_norm", gpu=number)
    run = begin(workplace, commits=0)
    wait_for(
        lambda: (
            set(range(8)) <= {*(tried := batches_by_device(workplace))}
            and 32 in tried[1] | tried[3]
        ),
        LIMIT_S,
    )
    workplace.gpu.set(lost__4=999)
    workplace.gpu.release("kernel:layer_norm,gpu=4")
    # The others go on once it is found lost: they might be done with all before nvidia-smi has been
    # asked.
    wait_for(lambda: workplace.named("device_dropped") or run.poll() is not None, LIMIT_S)
    workplace.gpu.release()
    ended = finish(run, LIMIT_S, code=0)
    assert workplace.vectors().shape == (64 * 16, 64)
    assert workplace.manifest()["quarantined"] == []
    assert set(used_devices(workplace)) == set(range(8))
    (dropped,) = workplace.named("device_dropped")
    assert dropped["device"] == "Null B (GPU-41f00000)"
    assert (
        "Null B (GPU-41f00000) is left out, 7 devices left: the GPU has fallen off the bus"
        in ended.stderr
    )

    tried = batches_by_device(workplace)
    assert set().union(*(tried[number] for number in range(8) if sizes[number] != small)) == {64}
    assert tried[1] | tried[3] == {64, 32}
    device = device_of(workplace)
    failed = [
        (each["outcome"], device[each["chunk"], each["attempt"]])
        for each in workplace.named("attempt_failed")
    ]
    assert {outcome for outcome, number in failed if number in (1, 3)} == {"gpu_oom"}
    assert {number for _, number in failed} <= {1, 3, 4}


def test_a_run_on_visible_gpus_and_a_slice(make_gpu: MakeGpu, tmp_path: Path, bert: Path) -> None:
    """A prefix of a UUID, an index and a MIG slice: each gets workers, and no other GPU has any."""
    gpus = make_gpu([8 * GIB] * 4, mig__3=2, mode__1="prohibited")
    workplace = GpuWorkplace(tmp_path, gpus, bert)
    slices = [
        line
        for line in workplace.gpu.call("nvidia-smi", "-L").stdout.splitlines()
        if "MIG-" in line
    ]
    slice_id = slices[0].split("UUID: ")[1].rstrip(")")
    workplace.write_texts(4 * 9)
    workplace.write_torch_config(**{"chunk.size": 4, "workers.start": "warm"})
    ended = workplace.ends(0, env={"CUDA_VISIBLE_DEVICES": f"GPU-21f,0,{slice_id}"})
    assert "Null GPU (GPU-21f00000), Null GPU (GPU-01f00000) and 1 more" in ended.stderr
    assert set(used_devices(workplace)) == {0, 1, 2}
    assert workplace.named("attempt_failed") == []


_WITHOUT_TORCH = """
import ctypes
import numpy as np


class Encoder:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        assert self.cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 20)) == 0

    def encode(self, texts, batch_size):
        if self.cuda.cudaDeviceSynchronize() != 0:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return np.ones((len(texts), 4), dtype=np.float32)


def make(model, device):
    return Encoder()
"""
"""Takes memory of its GPU, and starts in a fraction of a second."""

_IMPATIENT = (
    "import chunkvisor.devices.gpu as gpu; gpu._SMI_TIMEOUT_S = 1.0; from chunkvisor.cli import "
    "main; main()"
)
"""chunkvisor, with a second for nvidia-smi instead of twenty."""


@pytest.mark.parametrize("mode", ["absent", "mismatch", "slow:0.5", "hang"])
def test_a_run_needs_no_nvidia_smi(
    make_gpu: MakeGpu, tmp_path: Path, bert: Path, mode: str
) -> None:
    """Whatever nvidia-smi does, CUDA works: all GPUs get work, and it is said where nvidia-smi told
    of none.
    """
    workplace = GpuWorkplace(tmp_path, make_gpu([8 * GIB] * 2), bert)
    (workplace.folder / "theirs.py").write_text(_WITHOUT_TORCH)
    workplace.write_texts(8)
    workplace.write_model_config(**{"model.encoder": "theirs:make", "chunk.size": 2})
    workplace.gpu.smi(mode)
    run = ("run", str(workplace.config_path))
    ended = workplace.gpu.call(sys.executable, "-c", _IMPATIENT, *run)
    assert ended.returncode == 0, ended.stderr
    assert set(used_devices(workplace)) == {0, 1}
    assert workplace.named("attempt_failed") == []
    told = [each["text"] for each in workplace.named("warned") if "does not list" in each["text"]]
    assert len(told) == (not mode.startswith("slow"))


@pytest.mark.parametrize(
    ("fault", "state", "exit_code", "words"),
    [
        pytest.param("", "warning", 0, "CUDA may work all the same", id="nvml-is-broken"),
        pytest.param("719@context", "fault", 69, "unspecified launch failure", id="no-context"),
    ],
)
def test_the_doctor_says_what_a_run_would_meet(
    gpu_workplace: GpuWorkplace, fault: str, state: str, exit_code: int, words: str
) -> None:
    """NVML alone is worth a warning; where no context can be made, its fault is one, in torch's
    words.
    """
    if fault:
        gpu_workplace.gpu.fault(*fault.split("@"))
    else:
        gpu_workplace.gpu.set(nvml__init=999)
    gpu_workplace.write_texts(4)
    gpu_workplace.write_torch_config(device="cuda:0")
    ended = gpu_workplace.call("doctor", str(gpu_workplace.config_path), "--json")
    findings = json.loads(ended.stdout)["findings"]
    assert ended.returncode == exit_code, findings
    assert any(words in each["meaning"] for each in findings if each["state"] == state), findings


_LACKS = "Null GPU (compute capability 7.5) does not have"


def test_bfloat16_is_a_warning_where_the_card_lacks_it(gpu_workplace: GpuWorkplace) -> None:
    """Doctor, plan and run say so, and which dtype to take."""
    gpu_workplace.gpu.set(capability="7.5")
    gpu_workplace.write_texts(4, words=500)
    gpu_workplace.write_model_config(model__dtype="bfloat16")
    planned = gpu_workplace.does("plan", "--json")
    assert any(_LACKS in note for note in json.loads(planned.stdout)["notes"]), planned.stdout
    doctor = gpu_workplace.call("doctor", str(gpu_workplace.config_path), "--json")
    (found,) = [each for each in json.loads(doctor.stdout)["findings"] if each["check"] == "dtype"]
    assert (found["state"], _LACKS in found["meaning"]) == ("warning", True), found
    assert "set model.dtype to float16" in found["mend"]
    ended = gpu_workplace.run()
    assert (ended.returncode, _LACKS in ended.stderr) == (0, True), ended.stderr
    assert "set model.dtype to float16" in ended.stderr
