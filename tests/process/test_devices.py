"""Several GPUs, simulated by a fake nvidia-smi and a plug-in encoder."""

import re
from typing import Any

import numpy as np
import pytest

from harness import Workplace, expected, local_engine_only
from soaked import wide

TEXTS = [f"text {number}" for number in range(160)]
SMI = """#!/bin/sh
case "$*" in
  *--query-gpu=index*) for i in 0 1 2 3 4 5 6 7; do
    echo "$i, GPU-0000000$i-aaaa, NVIDIA Fake, 81920, 00000000:0$i:00.0"; done ;;
  *--query-gpu=memory.used*) echo 3 ;;
  *--query-compute-apps*) ;;
  *) echo "<nvidia_smi_log></nvidia_smi_log>" ;;
esac
"""


@pytest.fixture
def gpus(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    """A machine with eight GPUs, as far as nvidia-smi can tell."""
    folder = workplace.folder / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    workplace.write_source(TEXTS)
    return workplace


def devices_used(place: Workplace) -> set[int]:
    """Numbers of the devices on which attempts were started."""
    return {event["device"] for event in place.events() if event["event"] == "attempt_started"}


@local_engine_only
def test_every_visible_gpu_gets_work(gpus: Workplace) -> None:
    """`device: cuda` spreads the chunks over all GPUs, and the rows stay in order."""
    gpus.write_config("gpus:make", device="cuda", model__kwargs={"wait_s": 0.2})

    ended = gpus.run()

    assert ended.returncode == 0, ended.stderr
    assert devices_used(gpus) == set(range(8))
    np.testing.assert_array_equal(gpus.vectors(), expected(TEXTS))


@local_engine_only
def test_a_dying_gpu_is_left_out(gpus: Workplace) -> None:
    """A GPU with a hardware fault gives its chunk back to the queue, and the others finish the job."""
    gpus.write_config("gpus:make", device="cuda", model__kwargs={"faulty": "GPU-00000003-aaaa", "wait_s": 0.05})

    ended = gpus.run()

    assert ended.returncode == 0, ended.stderr
    assert "is left out, 7 devices left" in ended.stderr
    np.testing.assert_array_equal(gpus.vectors(), expected(TEXTS))


@pytest.mark.soak
@local_engine_only
@pytest.mark.parametrize("fault", [[719, "unspecified launch failure"], *wide([716, "misaligned address"])])
def test_a_gpu_on_which_all_fails_is_left_out(gpus: Workplace, fault: list[int | str]) -> None:
    """Of two GPUs one fails at every chunk, with an error that a text could cause: it is the GPU, since the other does
    the same chunks; nothing is taken apart and no text is lost.
    """
    kwargs = {"faulty": "GPU-00000001-aaaa", "fault": fault, "wait_s": 0.3}
    gpus.write_config("gpus:make", device=["cuda:0", "cuda:1"], model__kwargs=kwargs)

    ended = gpus.run()

    assert ended.returncode == 0, ended.stderr
    events = gpus.events()
    (dropped,) = [event for event in events if event["event"] == "device_dropped"]
    assert "GPU-00000001" in dropped["device"]
    assert re.search("cannot encode a text any more that was encoded before|has encoded no text", dropped["why"])
    assert not [event for event in events if event["event"] in ("chunk_split", "chunk_set_aside", "quarantined")]
    attempts = gpus.status()["attempts"]
    assert attempts.pop("committed") == 16
    # It takes one failure and two canaries; a first may begin with its shortest text, before another is known.
    assert set(attempts) <= {"device_fault", "interrupted"}
    assert 3 <= sum(attempts.values()) <= 6
    np.testing.assert_array_equal(gpus.vectors(), expected(TEXTS))


@local_engine_only
@pytest.mark.parametrize(
    ("fault", "most"),
    [([304, "OS call failed"], 3), ([46, "CUDA-capable device(s) is/are busy or unavailable"], 100)],
    ids=["broken", "busy"],
)
def test_a_gpu_that_cannot_start_is_left_out(gpus: Workplace, fault: list[int | str], most: int) -> None:
    """A GPU where a CUDA error comes back before the first batch, or that stays busy, costs no chunk a try."""
    kwargs: dict[str, Any] = {"faulty": "GPU-00000001-aaaa", "fault": fault, "at": "load", "wait_s": 0.2}
    gpus.write_config("gpus:make", device=["cuda:0", "cuda:1"], model__kwargs=kwargs, recovery__wait_timeout=0.5)

    ended = gpus.run()

    assert ended.returncode == 0, ended.stderr
    attempts = gpus.status()["attempts"]
    assert sum(attempts.values()) - attempts["committed"] <= most
    np.testing.assert_array_equal(gpus.vectors(), expected(TEXTS))


@local_engine_only
def test_last_words_name_the_gpus_that_were_left_out_before(gpus: Workplace) -> None:
    """Where every GPU is lost, the end of the last one names the others."""
    kwargs = {"faulty": "every", "fault": [304, "OS call failed"], "at": "load"}
    gpus.write_config("gpus:make", device=["cuda:0", "cuda:1"], model__kwargs=kwargs)

    ended = gpus.run()

    assert ended.returncode == 69, ended.stderr
    assert ended.stderr.count("before the first batch: no text is the cause") >= 2
    assert "left out before: NVIDIA Fake" in ended.stderr
    assert not (gpus.workdir / "out.npy").exists()


@local_engine_only
def test_a_list_of_gpus_is_kept_to(gpus: Workplace) -> None:
    """A list names the GPUs, and CUDA_VISIBLE_DEVICES is what their numbers count."""
    gpus.write_config("gpus:make", device=["cuda:1", "cuda:0"])

    ended = gpus.run(env={"CUDA_VISIBLE_DEVICES": "5,3,4"})

    assert ended.returncode == 0, ended.stderr
    assert "GPU-00000005" in ended.stderr
    assert "GPU-00000003" in ended.stderr
    assert "GPU-00000004" not in ended.stderr


@local_engine_only
def test_a_plugin_can_give_its_gpu_back(gpus: Workplace) -> None:
    """With a method `release`, a plug-in's GPU goes to the next worker before the one before has written."""
    texts = [f"number {number}" for number in range(5)] + ["the last 5"]
    gpus.write_source(texts)
    kwargs = {"notes": str(gpus.folder)}
    gpus.write_config("slow_writer:make_on_gpu", device="cuda:0", model__kwargs=kwargs, chunk__size=2)

    ended = gpus.run()

    assert ended.returncode == 0, ended.stderr
    assert (gpus.folder / "released").exists()
    np.testing.assert_array_equal(gpus.vectors(), expected(texts))
    order = [(event["event"], event["chunk"]) for event in gpus.events() if event["event"] in ("go", "worker_ended")]
    assert all(order.index(("go", chunk + 1)) < order.index(("worker_ended", chunk)) for chunk in range(2))


def test_several_workers_share_the_cpu(gpus: Workplace) -> None:
    """`workers.per_device` lets several workers compute at a time, and the rows stay in order."""
    gpus.write_config("good:make", workers={"per_device": 3, "standby": 1, "start": "fresh"})

    ended = gpus.run()

    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(gpus.vectors(), expected(TEXTS))
