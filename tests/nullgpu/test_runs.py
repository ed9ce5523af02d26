"""Whole runs on a null GPU: a real supervisor, real workers, torch's own allocator."""

import json
import sys
from pathlib import Path

import pytest

from harness import said_by
from nullgpu import MIB, GpuWorkplace, NullGpu, texts

_ASSERT = "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED"


def tokens_of(workplace: GpuWorkplace, chunk: int) -> list[int | None]:
    """The most padded tokens in a batch, at each try of the chunk; None = as many as come."""
    return [each["tokens"] for each in workplace.named("go") if each["chunk"] == chunk]


@pytest.mark.newer
@pytest.mark.usefixtures("new_interpreters")
def test_a_run_completes(gpu_workplace: GpuWorkplace) -> None:
    """A tiny BERT's vectors come from the null GPU, each chunk from a process of its own that gives
    its memory back.
    """
    gpu_workplace.write_texts(20)
    gpu_workplace.write_model_config()
    gpu_workplace.ends(0)
    assert gpu_workplace.vectors().shape == (20, 64)
    traces = gpu_workplace.gpu.trace().values()
    assert [any("cudaLaunchKernel" in call for call in calls) for calls in traces] == [True, True]
    assert gpu_workplace.gpu.used_bytes() == 0


def test_a_batch_waits_once(gpu_workplace: GpuWorkplace) -> None:
    """The host waits for the vectors of each batch, and not for whether the texts are padded: it
    works ahead.
    """
    waits = []
    for count in (24, 64):
        gpu_workplace.write_source([" ".join(["word1"] * (1 + row)) for row in range(count)])
        limits = {"chunk.size": 64, "encode.batch_size": 4, "encode.batch_tokens": None}
        gpu_workplace.write_model_config(**limits)
        gpu_workplace.ends(0, "--from-scratch", "--yes")
        calls = gpu_workplace.gpu.trace()[gpu_workplace.named("attempt_started")[-1]["pid"]]
        waits.append(sum("Synchronize" in call for call in calls))
    assert waits[1] - waits[0] == (64 - 24) // 4


@pytest.mark.parametrize(
    ("nvml", "smi", "sign"),
    [
        pytest.param(0, "ok", "torch.OutOfMemoryError: CUDA out of memory", id="out-of-memory"),
        pytest.param(999, "ok", _ASSERT, id="nvml"),
        pytest.param(999, "unknown", _ASSERT, id="nvml-and-nvidia-smi"),
    ],
)
def test_a_batch_that_does_not_fit_is_halved_in_a_fresh_process(
    gpu_workplace: GpuWorkplace, nvml: int, smi: str, sign: str, request: pytest.FixtureRequest
) -> None:
    """The second chunk's texts are long: 64 at once do not fit, 32 do; where NVML is broken, torch
    asserts instead.

    That is the crash which this project is about: it is met as a person meets it.
    """
    workplace = gpu_workplace
    if nvml:
        request.getfixturevalue("new_interpreters")
    workplace.gpu.smi(smi)
    workplace.gpu.set(nvml__init=nvml, memory__0=f"{256 + 60}M", bool=1)  # of the mask: all is true
    workplace.write_source(texts(64) + texts(64, words=500))
    limits = {"chunk.size": 64, "encode.batch_size": 64, "encode.batch_tokens": None}
    workplace.write_model_config(**limits, **{"workers.start": "warm"})
    workplace.ends(0, env={"CUDA_VISIBLE_DEVICES": "0"})
    assert tokens_of(workplace, 0) == [None]
    (failed,) = workplace.named("attempt_failed")
    assert failed["outcome"] == "gpu_oom"
    beat = json.loads((workplace.attempts()[0] / "beat.json").read_text())
    assert tokens_of(workplace, 1) == [None, int(beat["batch_tokens"]) // 2]
    assert len({each["pid"] for each in gpu_workplace.named("attempt_started")}) == 3
    assert [each["start"] for each in gpu_workplace.named("attempt_started")] == [
        "warm",
        "warm",
        "fresh",
    ]
    log = (gpu_workplace.attempts()[0] / "worker.log").read_text()
    assert sign in log
    assert gpu_workplace.manifest()["quarantined"] == []
    memory_is_shown(workplace)


def memory_is_shown(workplace: GpuWorkplace) -> None:
    """The run of two sizes of batches says what torch has reserved and allocated, in the report too."""
    (device,) = workplace.status()["devices"].values()
    peaks = device["batch_peaks"]
    assert 0 < device["memory"]["allocated_bytes"] <= device["memory"]["reserved_bytes"] <= 60 * MIB
    assert len(peaks) >= 2
    assert all(int(size).bit_count() == 1 for size in peaks)
    assert max(peaks.values()) == device["memory"]["allocated_bytes"]
    ended = [each["batch_peaks"] for each in workplace.named("worker_ended")]
    assert all(ended), "the attempt that failed has its figures as well"
    page = (workplace.workdir / "report.html").read_text()
    for words in ("GPU 0, reserved", "GPU 0, allocated", "Memory allocated at the peak of a batch"):
        assert words in page


def test_torch_is_asked_before_a_run_says_that_there_is_no_gpu(gpu_workplace: GpuWorkplace) -> None:
    """As under WSL2, nvidia-smi fails, and no device file or variable shows the GPU: CUDA works, and
    the first batches, which do not fit, are halved after the genuine assertion.
    """
    workplace = gpu_workplace
    workplace.gpu.smi("unknown")
    workplace.gpu.set(nvml__init=999, memory__0=f"{256 + 60}M", bool=1)
    for file in (workplace.gpu.folder / "dev").iterdir():
        file.unlink()
    workplace.write_source(texts(100, words=500) + texts(900))
    limits = {"chunk.size": 250, "encode.batch_size": 64, "encode.batch_tokens": None}
    workplace.write_model_config(**limits)
    workplace.ends(0)
    assert workplace.vectors().shape == (1000, 64)
    failed = workplace.named("attempt_failed")
    assert {each["rule"] for each in failed} == {"nvml-assert-allocator"}
    (chunk,) = {each["chunk"] for each in failed}
    assert chunk == 0


def test_what_a_lent_card_is_asked_is_tried_from_end_to_end(gpu: NullGpu, tmp_path: Path) -> None:
    """tools/oncard.sh has benchmarks/gpu.py make a model, measure plain `encode` and a run, and note
    memory by chunk; all is in one file, and times mean nothing.
    """
    gpu.set(bool=1)
    env = {**gpu.environment(), "OUT": str(tmp_path), "ONCARD": "bench", "PYTHON": sys.executable}
    cases = ("decoder-night", "memory-over-time")
    said_by("bash", "tools/oncard.sh", "run", "600", "--small", *cases, env=env, limit_s=600)
    found = json.loads((tmp_path / "oncard.json").read_text())
    assert found["device"].startswith("Null GPU")
    row, memory = found["rows"]
    assert (row["name"], row["device"]) == ("decoder-night", "Null GPU")
    assert 512 <= row["rows"] <= 2000
    assert row["least_cosine"] > 0.9
    assert min(row["ours_rate"], row["plain_s"], row["compute_s"], row["first_batch_s"]) > 0
    assert memory["name"] == "memory-over-time"
    for side in (memory["fresh"], memory["long"]):
        assert len(side) == 4
        assert all(reserved >= allocated > 0 for reserved, allocated in side)


_END_TO_END = """
import sys
from pathlib import Path

import numpy as np
from sentence_transformers.base.modules import Transformer
from transformers import AttentionInterface, DataCollatorWithFlattening

from chunkvisor_worker.contract.messages import Limits, ModelSpec
from chunkvisor_worker.liveness import BeatWriter
from chunkvisor_worker.sentence_transformer import SentenceTransformerEncoder

seen = []


def attend(module, query, key, value, mask, *, cu_seq_lens_q=None, **_):
    if cu_seq_lens_q is not None:
        seen.append((query.shape[2], np.diff(cu_seq_lens_q.cpu().numpy()).tolist(), mask))
    return query.transpose(1, 2), None


def can_flatten(self):
    self.data_collator = DataCollatorWithFlattening(return_seq_idx=True, return_flash_attn_kwargs=True)
    return True


AttentionInterface.register("end_to_end", attend)
Transformer._can_flatten_inputs = can_flatten
model = ModelSpec("m", sys.argv[1], kwargs={"attn_implementation": "end_to_end"})
progress = BeatWriter(Path(sys.argv[2]))
progress.on_batch = lambda indices: None
encoder = SentenceTransformerEncoder(model, "cuda")
encoder.load(progress)
encoder.tokenize([" ".join(["word1"] * count) for count in (1, 5, 2, 3)], progress)
encoder.start(progress)
blocks = list(encoder.encode(Limits(rows=3, tokens=14), progress))
assert [block.shape for _, block in blocks] == [(2, 64), (2, 64)]
assert seen[::2] == seen[1::2]
trial = [(13, [13], None), (191, [13, 178], None)]  # whether vectors depend on the padding
assert seen[::2] == [*trial, (12, [7, 5], None), (7, [4, 3], None)], seen
"""
"""Two layers, texts of 3 to 7 tokens with the model's own two."""


def test_flash_attention_takes_texts_end_to_end(gpu: NullGpu, bert: Path, tmp_path: Path) -> None:
    """What a kernel for unpadded texts is given on a GPU: all tokens in one row, and where each
    text ends.
    """
    gpu.set(bool=1)
    ended = gpu.call(sys.executable, "-c", _END_TO_END, str(bert), str(tmp_path / "beat"))
    assert ended.returncode == 0, ended.stderr
