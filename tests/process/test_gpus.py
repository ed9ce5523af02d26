"""Runs on GPUs, which a fake nvidia-smi tells of: health, memory and its holders, several of them,
faulty ones.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from harness import Workplace, finish, local_engine_only, wait_for, write_program
from scripted_workplace import ScriptedWorkplace
from torchwords import oom

TEXTS = [f"text {number}" for number in range(160)]
FEW = [f"t{number}" for number in range(8)]
SMI = """#!/bin/sh
say() { cat "$FAKE_SMI/$1" 2>/dev/null || echo "$2"; }
code() { c=$(say "$1_code" 0); [ "$c" = 0 ] || { echo "Failed to initialize NVML"; exit "$c"; }; }
echo "$*" >> "$FAKE_SMI/asked"
case "$*" in
  *--query-gpu=index*) code index; for i in $(say gpus 0); do
    echo "$i, GPU-0000000$i-aaaa, NVIDIA Fake, 8192, 00000000:0$i:00.0"; done ;;
  *--query-gpu=memory.used,gpu*) code memory; echo "$(say memory 3), $(say action None)" ;;
  *--query-compute-apps*) say apps "" ;;
  *) exit 2 ;;
esac
"""

pytestmark = local_engine_only


class FakeSmi:
    """What nvidia-smi is to say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def say(self, **answers: object) -> None:
        """Memory (MiB), apps (lines), action, gpus, index_code and memory_code (exit codes); None =
        all is well.
        """
        for name, answer in answers.items():
            path = self._folder / name
            if answer is None:
                path.unlink(missing_ok=True)
            else:
                (self._folder / "new").write_text(f"{answer}\n")
                (self._folder / "new").replace(path)

    def asked(self) -> list[str]:
        """Its command lines so far."""
        lines = (self._folder / "asked").read_text().splitlines()
        return [line for line in lines if line.startswith("--query-gpu=memory.used,gpu")]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSmi:
    """A fake nvidia-smi, the first on PATH; it lists one GPU of 8 GiB."""
    folder = tmp_path / "smi"
    write_program(folder / "nvidia-smi", SMI)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("FAKE_SMI", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return FakeSmi(folder)


# --- one GPU between two workers


@pytest.fixture
def place(smi: FakeSmi, tmp_path: Path) -> ScriptedWorkplace:
    """Two chunks on the fake GPU, the first worker of which crashes."""
    made = ScriptedWorkplace.make(tmp_path, FEW, chunk__size=4, device="cuda")
    made.lay("t0", "crash")
    return made


def test_a_healthy_gpu_is_asked_after_faults_only(smi: FakeSmi, place: ScriptedWorkplace) -> None:
    """nvidia-smi is asked at the start and after a worker failed, not between chunks that went
    well.
    """
    place.gives(FEW)
    assert len(smi.asked()) == 2
    assert not place.named("warned")


def test_memory_held_by_a_stranger_is_waited_for(smi: FakeSmi, place: ScriptedWorkplace) -> None:
    """After a fault the GPU is full: the run waits, says who holds it, and goes on when it is free."""
    place.lay("t0", "wait_for_release")
    place.lay("t1", "crash")
    process = place.begin_to(1)
    smi.say(memory=8100, apps="77, /usr/bin/intruder, 8000")
    place.release()
    (busy,) = wait_for(lambda: place.named("warned"))
    assert "/usr/bin/intruder (pid 77)" in busy["text"]
    smi.say(memory=None, apps=None)
    assert finish(process, code=0).stderr.count("waiting,") == 1
    place.has(FEW)


@pytest.mark.parametrize(
    ("answers", "code", "words"),
    [
        ({"memory": 8100, "apps": "77, /usr/bin/intruder, 8000"}, 75, "/usr/bin/intruder (pid 77)"),
        (
            {"action": "Drain and Reset"},
            69,
            "the driver asks for a recovery action: Drain and Reset",
        ),
    ],
    ids=["held", "broken"],
)
def test_a_gpu_that_stays_unfit_ends_the_run(
    smi: FakeSmi, place: ScriptedWorkplace, answers: dict[str, object], code: int, words: str
) -> None:
    """Past recovery.wait_timeout, or at once where the driver asks for a reset; what is done is
    kept.
    """
    place.write_config("scripted:make", chunk__size=4, device="cuda", recovery__wait_timeout=1)
    place.lift("t0")
    place.lay("t4", "wait_for_release")
    place.lay("t5", "crash")
    process = place.begin_to(2)
    smi.say(**answers)
    place.release()
    assert words in finish(process, code=code).stderr
    assert place.progress()["chunks_done"] == 1
    smi.say(**dict.fromkeys(answers))
    place.ends(0)
    assert place.calls()[-1] == FEW[4:]


def test_a_broken_gpu_at_the_start(smi: FakeSmi, place: ScriptedWorkplace) -> None:
    """Nothing is started on a GPU that is known to be broken."""
    smi.say(memory_code=15)
    assert "fallen off the bus" in place.ends(69).stderr
    assert not place.calls()


def test_broken_nvml_is_one_warning(smi: FakeSmi, place: ScriptedWorkplace) -> None:
    """nvidia-smi that fails once the run has begun is told once; CUDA works, and the run is
    completed.
    """
    place.lay("t4", "crash")
    smi.say(memory_code=18)
    ended = place.gives(FEW)
    told = "continues without its readings, since CUDA may work all the same"
    assert ended.stderr.count(told) == 1


# --- out of memory, in torch's words


LARGER = oom("0.50 GiB", "8.00 GiB", "0.10 GiB", "7.90 GiB")
BY_A_NEIGHBOR = oom("0.50 GiB", "8.00 GiB", "0.10 GiB", "1.00 GiB", "6.90 GiB")


@pytest.fixture
def gpus(smi: FakeSmi, workplace: Workplace) -> Workplace:
    """A machine with as many GPUs as `smi` says, and 160 texts."""
    workplace.write_source(TEXTS)
    return workplace


@pytest.mark.parametrize(
    ("said", "tries"),
    [(LARGER, 1), ("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.", 2)],
    ids=["figures", "none"],
)
def test_a_model_larger_than_the_gpu_ends_the_run(gpus: Workplace, said: str, tries: int) -> None:
    """One load says it, or a second where a plug-in's words have no figures: 69, and no waiting for
    others.
    """
    kwargs = {"faulty": "every", "at": "load", "message": said}
    gpus.write_config("gpus:make", device="cuda", model__kwargs=kwargs)
    assert "no other process held much of it" in gpus.ends(69).stderr
    assert gpus.status()["attempts"] == {"gpu_busy": tries}


def test_memory_of_others_is_waited_for_and_teaches_nothing(gpus: Workplace) -> None:
    """Torch names who holds what is missing: no text is blamed for it."""
    gpus.write_source(FEW)
    kwargs = {"faulty": "every", "message": BY_A_NEIGHBOR, "notes": str(gpus.folder)}
    gpus.write_config("gpus:make", device="cuda", chunk__size=4, model__kwargs=kwargs)
    (gpus.folder / "full").touch()
    process = gpus.begin()
    wait_for(lambda: gpus.named("waiting"))
    (gpus.folder / "full").unlink()
    finish(process, code=0)
    assert not gpus.named("chunk_split", "quarantined", "limits_lowered")
    gpus.has(FEW)


def test_a_chunk_that_never_has_memory_ends_the_run_soon(gpus: Workplace, smi: FakeSmi) -> None:
    """The NVML assert on every batch of one chunk: the others are done, and the words are about the
    GPU.
    """
    texts = [f"text number {number}" for number in range(3000)]
    gpus.write_source(texts)
    kwargs = {"plan": {"out/1": "nvml_assert@encode"}, "times": None}
    recovery = {"wait_timeout": 1}  # it waits for others, of whom it can see nothing
    gpus.write_config(
        "misbehaving:make", device="cuda", chunk__size=1000, model__kwargs=kwargs, recovery=recovery
    )
    smi.say(memory_code=255)
    ended = gpus.ends(69)
    assert "If `nvidia-smi` fails, reload the NVIDIA driver or reboot." in ended.stderr
    assert "max_bad_rows" not in ended.stderr
    status = gpus.status()
    output = status["outputs"]["out"]
    assert output["chunks_done"] == 2
    assert output["quarantined"] == 0
    assert sum(status["attempts"].values()) <= 40
    smi.say(memory_code=0)
    gpus.gives(texts, "--set", "env.BEHAVE='1'")


# --- several GPUs


def test_every_visible_gpu_gets_work_and_a_dying_one_is_left_out(
    gpus: Workplace, smi: FakeSmi
) -> None:
    """A GPU with a hardware fault gives its chunk back to the queue, the others finish, and the
    rows stay in order.
    """
    smi.say(gpus="0 1 2 3 4 5 6 7")
    kwargs = {"faulty": "GPU-00000003-aaaa", "wait_s": 0.2}
    gpus.write_config("gpus:make", device="cuda", model__kwargs=kwargs)
    assert "is left out, 7 devices left" in gpus.gives(TEXTS).stderr
    assert {event["device"] for event in gpus.named("attempt_started")} == set(range(8))


def test_a_gpu_on_which_all_fails_is_left_out(gpus: Workplace, smi: FakeSmi) -> None:
    """An error that a text could cause, at every chunk of one GPU: it is the GPU, since the other
    does the same.
    """
    smi.say(gpus="0 1")
    kwargs = {
        "faulty": "GPU-00000001-aaaa",
        "fault": [719, "unspecified launch failure"],
        "wait_s": 0.3,
    }
    gpus.write_config("gpus:make", device="cuda", model__kwargs=kwargs)
    gpus.gives(TEXTS)
    (dropped,) = gpus.named("device_dropped")
    assert "GPU-00000001" in dropped["device"]
    assert re.search(
        "can no longer encode a text that it encoded before|has encoded no text", dropped["why"]
    )
    assert not gpus.named("chunk_split", "chunk_set_aside", "quarantined")
    attempts = gpus.status()["attempts"]
    assert attempts.pop("committed") == 16
    # It takes one failure and two canaries; a first may begin with its shortest text, before
    # another is known.
    assert set(attempts) <= {"device_fault", "interrupted"}
    assert 3 <= sum(attempts.values()) <= 6


@pytest.mark.parametrize(("encoder", "device"), [("make", "cpu"), ("make_on_gpu", "cuda")])
def test_the_next_computes_while_vectors_are_written(
    gpus: Workplace, encoder: str, device: str
) -> None:
    """A worker that needs the device no longer lets the next one have it before it has written and
    ended.
    """
    texts = [f"number {number}" for number in range(5)] + ["the last 5"]
    gpus.write_source(texts)
    changes: dict[str, Any] = {"workers.standby": 1, "chunk.size": 2, "device": device}
    gpus.write_config(
        f"slow_writer:{encoder}", **changes, model__kwargs={"notes": str(gpus.folder)}
    )
    gpus.gives(texts)
    assert (gpus.folder / "released").exists() == (device == "cuda")
    order = [(event["event"], event["chunk"]) for event in gpus.named("go", "worker_ended")]
    assert all(
        order.index(("go", chunk + 1)) < order.index(("worker_ended", chunk)) for chunk in range(2)
    )
