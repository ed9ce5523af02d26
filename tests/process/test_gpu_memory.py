"""What a run does when the memory of a GPU runs out: whose it was decides; nvidia-smi is a fake, the words torch's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkvisor.devices.health import View, company_of, in_company
from chunkvisor.judge import Company, Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import read_oom
from harness import Workplace, expected, finish, local_engine_only, wait_for

GIB = 1 << 30
TEXTS = [f"text {number}" for number in range(400)]
SMI = """#!/bin/sh
case "$*" in
  *--query-gpu=index*) echo "0, GPU-00000000-aaaa, NVIDIA Fake, 8192, 00000000:01:00.0" ;;
  *) [ -e "$FAKE_SMI_BROKEN" ] && { echo "Failed to initialize NVML: Unknown Error"; exit 255; }
     case "$*" in
       *--query-gpu=memory.used*) echo 3 ;;
       *--query-compute-apps*) ;;
       *) echo "<nvidia_smi_log></nvidia_smi_log>" ;;
     esac ;;
esac
"""


def message(ours_gib: float, *others_gib: float, free_gib: float = 0.1, wanted_gib: float = 0.5) -> str:
    """What torch says on a GPU of 8 GiB."""
    others = "".join(f"Process {77 + n} has {gib:.2f} GiB memory in use. " for n, gib in enumerate(others_gib))
    return (
        f"CUDA out of memory. Tried to allocate {wanted_gib:.2f} GiB. GPU 0 has a total capacity of 8.00 GiB of which "
        f"{free_gib:.2f} GiB is free. {others}Including non-PyTorch memory, this process has {ours_gib:.2f} GiB memory "
        f"in use. Of the allocated memory {ours_gib / 2:.2f} GiB is allocated by PyTorch, and 0.01 GiB is reserved by "
        "PyTorch but unallocated."
    )


LARGER = message(7.9)
BY_A_NEIGHBOUR = message(1.0, 6.9)
NVML_BROKEN = (
    'NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/'
    'CUDACachingAllocator.cpp":1131, please report a bug to PyTorch. '
)
BEFORE = View()
COMPANY = {
    "no GPU": (LARGER, None, set(), Company.UNTOLD),
    "a model larger than the GPU": (LARGER, BEFORE, set(), Company.UNTOLD),
    "a neighbour came": (BY_A_NEIGHBOUR, BEFORE, set(), Company.CAME),
    "a neighbour was there before": (BY_A_NEIGHBOUR, View(before_bytes=7 * GIB), set(), Company.UNTOLD),
    "a neighbour that holds less than what is missing": (
        message(5.0, 2.0, free_gib=1.0, wanted_gib=4.0),
        BEFORE,
        set(),
        Company.UNTOLD,
    ),
    "another worker of ours": (BY_A_NEIGHBOUR, BEFORE, {77}, Company.OURS),
    "NVML is broken": (NVML_BROKEN, View(blind=True), set(), Company.BLIND),
    "no figures, and nobody else on it": (NVML_BROKEN, View(alone=True), set(), Company.ALONE),
    "no figures, and nobody has looked": (NVML_BROKEN, BEFORE, set(), Company.UNTOLD),
}


@pytest.mark.parametrize(("words", "view", "siblings", "company"), COMPANY.values(), ids=COMPANY)
def test_whose_memory_it_was(words: str, view: View | None, siblings: set[int], company: Company) -> None:
    """Torch's figures say it, else what nvidia-smi showed last; who was there before the run is part of the GPU."""
    assert company_of(read_oom(words), view, frozenset(siblings)) is company


def test_another_worker_of_ours_is_named() -> None:
    """Where the memory was held by a worker of the same run, the words do not send a person after somebody else."""
    verdict = Verdict(Outcome.GPU_BUSY, "other processes hold its memory", rule="gpu-full-before-work")
    assert "another worker of this run (pid 5, 7)" in in_company(verdict, Company.OURS, frozenset({7, 5})).reason
    assert in_company(verdict, Company.CAME, frozenset()) == verdict


@pytest.fixture
def place(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    """A machine with one GPU of 8 GiB, whose nvidia-smi breaks once the file `broken` is there."""
    folder = workplace.folder / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("FAKE_SMI_BROKEN", str(workplace.folder / "broken"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    workplace.write_source(TEXTS[:8])
    return workplace


def configure(place: Workplace, **kwargs: Any) -> None:
    """Chunks of four on the GPU."""
    place.write_config("memory:make", device="cuda", chunk__size=4, model__kwargs=kwargs)


def names_of(place: Workplace) -> list[str]:
    """The events so far."""
    try:
        return [event["event"] for event in place.events()]
    except (OSError, ValueError):
        return []


@local_engine_only
def test_a_model_larger_than_the_gpu_ends_the_run_at_once(place: Workplace) -> None:
    """One load says it: 69, with what the worker held against the memory, and no waiting for others."""
    configure(place, at="load", message=LARGER)

    ended = place.run()

    assert ended.returncode == 69, ended.stderr
    assert "the model is larger than the GPU's memory" in ended.stderr
    assert "held 7.9 GiB of the GPU's 8.0 GiB" in ended.stderr
    assert place.status()["attempts"] == {"gpu_busy": 1}


@local_engine_only
def test_without_figures_nvidia_smi_tells_a_large_model_from_a_busy_gpu(place: Workplace) -> None:
    """A plug-in's words have no figures: the second load ends the run, once nvidia-smi has shown nobody else."""
    configure(place, at="load", message="RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")

    ended = place.run()

    assert ended.returncode == 69, ended.stderr
    assert "nvidia-smi shows no other process on it" in ended.stderr
    assert place.status()["attempts"] == {"gpu_busy": 2}


def run_until_free(place: Workplace) -> None:
    """Start a run with a full GPU, empty it once the run waits, and see it complete."""
    (place.folder / "full").touch()
    process = place.start("run", str(place.config_path))
    wait_for(lambda: "waiting" in names_of(place))
    (place.folder / "full").unlink()
    ended = finish(process)
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS[:8]))


@local_engine_only
def test_a_neighbours_memory_is_waited_for_and_teaches_nothing(place: Workplace) -> None:
    """Torch names another process that holds what is missing: the batch is as large after it as before."""
    configure(place, at="encode", message=BY_A_NEIGHBOUR, notes=str(place.folder))

    run_until_free(place)

    assert "limits_lowered" not in names_of(place)


@local_engine_only
def test_a_blind_run_waits_at_its_smallest_batch(place: Workplace) -> None:
    """With NVML broken nobody can be asked: the batches shrink, but a text is not blamed for what others may hold."""
    (place.folder / "broken").touch()
    configure(place, at="encode", message=NVML_BROKEN, notes=str(place.folder))

    run_until_free(place)

    assert not {"chunk_split", "quarantined"}.intersection(names_of(place))


def test_a_lesson_is_paid_for_once(workplace: Workplace) -> None:
    """The verdict comes before the next worker's `go`: three halvings teach it all, whoever is ready meanwhile."""
    workplace.write_source(TEXTS)
    workplace.write_config(
        "memory:make",
        chunk__size=50,
        workers={"standby": 1, "start": "fresh"},
        model__kwargs={"at": "encode", "fits": 6, "message": "CUDA out of memory. Tried to allocate 1.00 GiB."},
    )

    ended = workplace.run()

    assert ended.returncode == 0, ended.stderr
    assert workplace.status()["attempts"] == {"gpu_oom": 3, "committed": 8}


def test_one_text_is_not_lost_to_a_plugin_that_dies(workplace: Workplace, tmp_path: Path) -> None:
    """A factory that dies of SIGSEGV leaves no record; the phase tells that no text was touched."""
    workplace.write_source(TEXTS[:1])
    (workplace.folder / "dying.py").write_text(
        "import os, signal\ndef make(model, device): os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    workplace.write_config("dying:make")

    ended = workplace.run()

    assert ended.returncode == 78, ended.stderr
    assert "no text is the cause" in ended.stderr
    assert workplace.status()["attempts"] == {"crashed": 3}
    assert "quarantined" not in names_of(workplace)


@local_engine_only
@pytest.mark.parametrize(("chunks", "broken"), [(3, False), (3, True), (1, False)])
def test_a_chunk_that_never_has_memory_ends_the_run_soon(place: Workplace, chunks: int, broken: bool) -> None:
    """The NVML assert on every batch of one chunk of 1,000: the others are done, and the words are about the GPU."""
    texts = [f"text number {number}" for number in range(1000 * chunks)]
    place.write_source(texts)
    kwargs = {"plan": {f"out/{chunks // 2}": "nvml_assert@encode"}, "times": None}
    changes = {"recovery__wait_timeout": 1} if broken else {}  # else it waits for others, of whom it can see nothing
    place.write_config("misbehaving:make", device="cuda", chunk__size=1000, model__kwargs=kwargs, **changes)
    if broken:
        (place.folder / "broken").touch()

    ended = place.run()

    assert ended.returncode == 69, ended.stderr
    last_words = ended.stderr[ended.stderr.index("chunkvisor: ") :]
    assert "If it fails, reload the NVIDIA driver or reboot." in last_words
    assert "max_bad_rows" not in last_words
    status = place.status()
    output = status["outputs"]["out"]
    assert (output["chunks_done"], output["quarantined"]) == (chunks - 1, 0)
    print(f"| {chunks} chunks, broken {broken} | {status['attempts']} |\n{last_words}")
    assert sum(status["attempts"].values()) <= 40
    assert place.run("--set", "env.BEHAVE='1'").returncode == 0
    np.testing.assert_array_equal(place.vectors(), expected(texts))
