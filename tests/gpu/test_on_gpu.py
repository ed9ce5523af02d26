"""What only a real GPU can show: vectors, faults that end their own process and cost no row, drill and doctor.

Nothing here imports torch: it is what runs on the GPU, in processes of its own.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkvisor.devices.gpu import find_devices
from harness import Ended, Workplace, finish, path_with, said_by, write_program

pytestmark = pytest.mark.timeout(1200)  # models are started again and again

LIMIT_S = 1160
MIB = 1 << 20
TEXTS: list[str] = [
    "How do I sort a list?",
    "",
    "How do I sort a list?",
    "Wie sortiere ich eine Liste?",
    "如何对列表进行排序?",
    "🙂🎉 emoji 🚀",
    "long " * 3000,
    *(f"Commit {n}: fix the {n % 7}th bug in module {n % 5}, " * (1 + n % 40) for n in range(185)),
]
"""192 texts from none to 256 tokens."""

_PLAIN = """
import json, sys, numpy
from sentence_transformers import SentenceTransformer
model, texts, out = sys.argv[1:]
vectors = SentenceTransformer(model, device="cuda").encode(json.load(open(texts)), show_progress_bar=False)
numpy.save(out, vectors)
"""


def smi(query: str) -> int:
    """nvidia-smi's number for the first GPU that this shell shows."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
    options = ("--format=csv,noheader,nounits", f"--id={visible}")
    return int(said_by("nvidia-smi", f"--query-gpu={query}", *options).split()[0])


class GpuPlace(Workplace):
    """A Workplace for the first GPU."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.notes = folder / "notes"
        """Where tests/gpu/encoders/on_gpu.py writes what it saw."""
        self.notes.mkdir()

    def execute(self, arguments: Sequence[str], env: Mapping[str, str]) -> Ended:
        """As of a Workplace; a model on a GPU may take a while to start."""
        return finish(self.start(*arguments, env=env), LIMIT_S)

    def configure(self, model: Path | None = None, **changes: Any) -> None:
        """A config over TEXTS: the model at the path, or the plug-in `on_gpu` with
        `model__kwargs`.
        """
        self.write_source(TEXTS)
        encoder = "sentence-transformers" if model else "on_gpu:make"
        name = {"model__name": str(model)} if model else {}
        path = path_with(Path(__file__).parent / "encoders")
        env = {"PYTHONPATH": path, **changes.pop("env", {})}
        defaults = {"device": "cuda:0", "chunk__size": 96, "recovery__startup_timeout": 600}
        # Seconds of imports pass side by side: time on a card is short.
        defaults["workers__standby"] = 2
        self.write_config(encoder, env=env, **name, **{**defaults, **changes})

    def complete(self) -> list[tuple[int, str]]:
        """Run, and expect it to complete; (chunk, outcome) of every failed attempt."""
        self.ends(0)
        return [(each["chunk"], each["outcome"]) for each in self.named("attempt_failed")]

    def noted(self) -> dict[tuple[int, int], dict[str, Any]]:
        """What the plug-in wrote down, by chunk and attempt."""
        found = {}
        for path in sorted(self.notes.glob("*.json")):
            chunk, _, attempt = path.stem.partition("-")
            found[int(chunk), int(attempt)] = json.loads(path.read_text())
        return found

    def check_rows(self) -> None:
        """Every row is there, in its place: the vectors went through the memory of the GPU and
        back.
        """
        self.has(TEXTS)


@pytest.fixture
def place(tmp_path: Path, new_interpreters: None) -> GpuPlace:
    """A folder with a config for this GPU."""
    return GpuPlace(tmp_path)


@pytest.fixture(scope="session")
def plain(minilm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of TEXTS from a plain `SentenceTransformer.encode` on this GPU in float32, as a
    .npy.
    """
    folder = tmp_path_factory.mktemp("plain")
    (folder / "texts.json").write_text(json.dumps(TEXTS))
    arguments = [str(minilm_path), str(folder / "texts.json"), str(folder / "plain.npy")]
    said_by(sys.executable, "-c", _PLAIN, *arguments, limit_s=LIMIT_S)
    return folder / "plain.npy"


# --- faults


@pytest.mark.parametrize(
    ("trouble", "code"), [("assert_async", 710), ("illegal_address", 700), ("launch_failure", 719)]
)
def test_a_fault_in_one_chunk_is_not_felt_in_the_next(
    place: GpuPlace, trouble: str, code: int
) -> None:
    """A genuine CUDA fault breaks its process for every later call; the next process computes as if
    nothing was.
    """
    place.configure(model__kwargs={"trouble": {"1": trouble}}, chunk__size=64)
    assert place.complete() == [(1, "device_fault")]
    place.check_rows()
    noted = place.noted()
    assert sorted(noted) == [(0, 1), (1, 1), (1, 2), (2, 1)]
    assert len({each["pid"] for each in noted.values()}) == len(noted)
    assert all(each["product"] == 64**3 for each in noted.values())
    assert not any(
        each["initialised_before"] or each["allocated_at_start"] for each in noted.values()
    )
    assert noted[1, 1]["code"] == code
    assert noted[1, 1]["afterwards"], "the context was not broken"
    assert "afterwards" not in noted[1, 2]


NVML = [
    "Init_v2",
    "Shutdown",
    "DeviceGetHandleByPciBusId_v2",
    "DeviceGetNvLinkRemoteDeviceType",
    "DeviceGetNvLinkRemotePciInfo_v2",
    "DeviceGetComputeRunningProcesses",
    "SystemGetCudaDriverVersion_v2",
    "DeviceGetGpuFabricInfoV",
]
"""Functions of NVML that torch looks up."""


def without_nvml(folder: Path) -> dict[str, str]:
    """Build a library in the place of NVML whose functions all fail, as after an update of the
    driver; return the variable by which processes find it. CUDA does not use NVML.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is needed"
    source = "".join(f"int nvml{name}(void) {{ return 999; }}\n" for name in NVML)
    (folder / "nvml.c").write_text(source)
    library = folder / "libnvidia-ml.so.1"
    said_by(compiler, "-shared", "-fPIC", "-o", library, folder / "nvml.c")
    found = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": f"{folder}:{found}" if found else str(folder)}


@pytest.mark.parametrize("nvml", ["works", "broken"])
def test_a_model_out_of_memory_is_halved(place: GpuPlace, minilm_path: Path, nvml: str) -> None:
    """MiniLM bounded by the allocator's own setting runs out of memory in a forward pass, and
    finishes with the vectors of an unbounded run; where NVML is broken, torch asserts instead.
    """
    share = 400 * MIB / (smi("memory.total") << 20)
    setting = {"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{share:.6f}"}
    batches = {"batch_size": 256, "batch_tokens": None}
    place.configure(minilm_path, env=setting, encode=batches, chunk__size=192)
    place.write_source(["word " * 400 + str(number) for number in range(192)])
    place.ends(0, env=without_nvml(place.folder) if nvml == "broken" else None)
    failed = place.named("attempt_failed")
    assert {each["outcome"] for each in failed} == {"gpu_oom"}
    # torch 2.14 does without NVML's words on who holds the memory.
    asserts = nvml == "broken" and tuple(map(int, version("torch").split(".")[:2])) < (2, 14)
    rule = "nvml-assert-allocator" if asserts else "gpu-out-of-memory"
    assert {each["rule"] for each in failed} == {rule}
    assert place.named("limits_lowered")
    halved = place.vectors()
    assert halved.shape == (192, 384)
    place.configure(minilm_path, chunk__size=192, workdir="unbounded")
    place.write_source(["word " * 400 + str(number) for number in range(192)])
    place.workdir = place.folder / "unbounded"
    assert place.complete() == []
    np.testing.assert_allclose(halved, place.vectors(), rtol=0, atol=1e-5)


def test_cublas_without_memory_counts_as_out_of_memory(place: GpuPlace) -> None:
    """A GPU that is full when cuBLAS wants its workspace: CUBLAS_STATUS_ALLOC_FAILED, and a smaller
    batch.
    """
    env = {
        "CUBLAS_WORKSPACE_CONFIG": ":0:0"
    }  # no workspace, which torch's allocator would be asked for
    place.configure(model__kwargs={"trouble": {"1": "no_room_for_cublas"}}, env=env)
    assert place.complete() == [(1, "gpu_oom")]
    place.check_rows()
    assert "CUBLAS_STATUS" in place.noted()[1, 1]["raised"]


def test_as_many_starts_may_fail_as_there_are_attempts(place: GpuPlace) -> None:
    """Two CUDA faults before the first batch, one after the other, do not end the run."""
    place.configure(model__kwargs={"failed_starts": 2}, chunk__size=192, recovery__attempts=3)
    assert place.complete() == [(0, "device_fault")] * 2
    place.check_rows()


def test_what_counts_is_that_cuda_works(place: GpuPlace) -> None:
    """A run completes though nvidia-smi fails, as in containers whose NVML is broken."""
    write_program(place.folder / "bin" / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    place.configure()
    ended = place.ends(0, env={"PATH": f"{place.folder / 'bin'}:{os.environ['PATH']}"})
    assert "nvidia-smi does not list the GPUs" in ended.stderr
    place.check_rows()


def test_a_kernel_that_never_ends_is_ended(place: GpuPlace) -> None:
    """A spinning kernel counts as hung after stall_timeout; its process can be ended, and the next
    one computes.
    """
    place.configure(model__kwargs={"trouble": {"1": "spin"}}, recovery__stall_timeout=15)
    assert place.complete() == [(1, "hung")]
    place.check_rows()


# --- vectors


def test_vectors_are_those_of_plain_encode(place: GpuPlace, minilm_path: Path, plain: Path) -> None:
    """MiniLM's are those of `SentenceTransformer.encode` within 1e-5, forked or not; in half
    precision nearly so.
    """
    other = np.load(plain)
    for number, (start, dtype, least) in enumerate(
        [
            ("fresh", "float32", None),
            ("warm", "float32", None),
            ("auto", "bfloat16", 0.99),
            ("auto", "float16", 0.999),
        ]
    ):
        place.configure(
            minilm_path, model__dtype=dtype, workers={"start": start}, workdir=f"work{number}"
        )
        place.workdir = place.folder / f"work{number}"
        assert place.complete() == []
        found = place.vectors()
        if least is None:
            assert {each["start"] for each in place.named("attempt_started")} == {start}
            np.testing.assert_allclose(found, other, rtol=0, atol=1e-5)
        else:
            lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(other, axis=1)
            assert ((found * other).sum(axis=1) / lengths).min() > least


def test_the_drill_recovers(place: GpuPlace, minilm_path: Path) -> None:
    """The fire drill with MiniLM: out of memory and a device-side assert, both for real."""
    share = min(1.0, 2048 * MIB / (smi("memory.total") << 20))
    place.configure(
        minilm_path, env={"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{share:.6f}"}
    )
    names = ["oom", "device-assert"]
    ended = place.call("drill", place.config_path, "--json", *(f"--fault={name}" for name in names))
    findings = json.loads(ended.stdout) if ended.stdout else []
    assert len(findings) == len(names), ended.stderr
    assert [
        f"{each['fault']}: {each['problem']}" for each in findings if not each["recovered"]
    ] == []


def test_tune_tries_what_the_card_can(place: GpuPlace, minilm_path: Path) -> None:
    """Dtypes, kinds of attention, budgets and a second worker; half precision as the capability of
    the card allows.
    """
    place.configure(minilm_path)
    # Enough for some seconds: of fewer, tune cannot tell which settings are faster.
    place.write_source([f"text number {number}" for number in range(50_000)])
    ended = place.does("tune", "--json")
    tried = [each["settings"] for each in json.loads(ended.stdout)["candidates"]]
    assert {"sdpa", "eager"} <= {each["attn_implementation"] for each in tried}
    assert {1, 2} == {each["workers.per_device"] for each in tried}
    has_bfloat16 = (find_devices(["cuda:0"])[0].capability or (0, 0)) >= (8, 0)
    assert ("bfloat16" in {each["model.dtype"] for each in tried}) == has_bfloat16


def test_the_doctor_finds_nothing_in_the_way(place: GpuPlace, minilm_path: Path) -> None:
    """The doctor, with the config, finds no fault on a machine on which all of this runs."""
    place.configure(minilm_path)
    ended = place.call("doctor", place.config_path, "--json")
    findings = json.loads(ended.stdout)["findings"]
    assert [
        f"{each['check']}: {each['meaning']}" for each in findings if each["state"] == "fault"
    ] == []
