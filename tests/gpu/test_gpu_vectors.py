"""What comes out of a real GPU, how fast the next chunk begins, and what drill and doctor say of it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gpuplace import TEXTS, GpuPlace

Figure = Callable[[str], None]


def cosines(found: np.ndarray, plain: Path) -> np.ndarray:
    """Row by row, to the plain vectors."""
    other = np.load(plain)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(other, axis=1)
    cosine: np.ndarray = (found * other).sum(axis=1) / lengths
    return cosine


@pytest.mark.usefixtures("kernels_that_compute")
def test_vectors_equal_those_of_plain_encode(place: GpuPlace, minilm_path: Path, plain: Path, figure: Figure) -> None:
    """MiniLM's vectors are those of `SentenceTransformer.encode` on the same GPU, within 1e-5."""
    place.configure(minilm_path)

    place.complete()

    difference = np.abs(place.vectors() - np.load(plain)).max()
    np.testing.assert_allclose(place.vectors(), np.load(plain), rtol=0, atol=1e-5)
    figure(f"largest difference {difference:.1e} of {len(TEXTS)} texts")


@pytest.mark.usefixtures("kernels_that_compute")
@pytest.mark.parametrize(("dtype", "least"), [("bfloat16", 0.99), ("float16", 0.999)])
def test_half_precision_is_close_to_float32(
    dtype: str, least: float, place: GpuPlace, minilm_path: Path, plain: Path, figure: Figure
) -> None:
    """Vectors in half precision point where those in float32 do."""
    place.configure(minilm_path, model__dtype=dtype)

    place.complete()

    cosine = cosines(place.vectors(), plain)
    assert cosine.min() > least
    figure(f"cosine to float32: mean {cosine.mean():.6f}, least {cosine.min():.6f}")


@pytest.mark.usefixtures("new_interpreters")
def test_warm_and_fresh_starts_do_the_same(place: GpuPlace, minilm_path: Path, figure: Figure) -> None:
    """With warm starts every first attempt is forked, and the vectors are those of fresh starts."""
    place.configure(minilm_path, workers={"start": "fresh"})
    place.complete()
    fresh, fresh_s = np.array(place.vectors()), startup_s(place)
    place.configure(minilm_path, workers={"start": "warm"}, workdir="warm")
    place.workdir = place.folder / "warm"
    place.complete()

    starts = [each["start"] for each in place.events() if each["event"] == "attempt_started"]
    assert set(starts) == {"warm"}
    assert place.failed() == []
    same = "kernels do nothing"
    if place.gpu.arithmetic:
        np.testing.assert_allclose(place.vectors(), fresh, rtol=0, atol=1e-5)
        same = "same bytes" if place.vectors().tobytes() == fresh.tobytes() else "within 1e-5"
    figure(f"{same}; a worker gets ready in {startup_s(place):.2f} s, a fresh one in {fresh_s:.2f} s")


def startup_s(place: GpuPlace) -> float:
    """Seconds from a worker's start to its place at the gate, the median."""
    results = [each["phase_s"] for each in place.events() if each["event"] == "chunk_committed"]
    waits = ("ready", "cuda_init", "weights_copy", "forward", "write")
    return float(np.median([sum(s for phase, s in each.items() if phase not in waits) for each in results]))


def test_the_gpu_is_hardly_idle_between_chunks(place: GpuPlace, minilm_path: Path, figure: Figure) -> None:
    """With a standby the next worker is ready when the one before ends; how long the GPU waited is measured."""
    place.configure(minilm_path, chunk__size=300, workers={"standby": 1})
    place.write_source([f"{number}: " + TEXTS[7 + number % 185] for number in range(2400)])

    place.complete()

    ended = [each for each in place.events() if each["event"] == "worker_ended"]
    assert len(ended) == 8
    total_s = sum(each["busy_s"] + each["idle_s"] for each in ended)
    between_s = sum(each["idle_s"] - each.get("opening_s", 0.0) for each in ended)
    opening_s, forward_s = phases_s(place, "cuda_init", "weights_copy"), phases_s(place, "forward")
    figure(
        f"between chunks {between_s:.1f} s of {total_s:.1f} s ({100 * between_s / total_s:.0f} %); of the "
        f"rest, {opening_s:.1f} s were contexts and weights, {forward_s:.1f} s batches"
    )


def phases_s(place: GpuPlace, *phases: str) -> float:
    """Seconds that the workers of all chunks spent in the phases."""
    committed = [each["phase_s"] for each in place.events() if each["event"] == "chunk_committed"]
    return sum(each.get(phase, 0.0) for each in committed for phase in phases)


def test_the_drill_recovers(place: GpuPlace, minilm_path: Path, figure: Figure) -> None:
    """The fire drill with MiniLM: out of memory, a crash and a device-side assert, all for real.

    Where kernels do nothing, the vectors of MiniLM are noise, so that no run of it is like another: there it is the
    plug-in that is drilled, whose vectors are right, and there is no kernel that could have an assert.
    """
    share = (2 << 30) / (place.gpu.memory_bytes or 1)
    limit = {"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{min(1.0, share):.6f}"}
    place.configure(minilm_path if place.gpu.arithmetic else None, env=limit)
    names = ["oom", "segfault", *(["device-assert"] if place.gpu.arithmetic else [])]

    ended = place.call("drill", str(place.config_path), "--json", *(f"--fault={name}" for name in names))

    findings = json.loads(ended.stdout) if ended.stdout else []
    assert len(findings) == len(names), ended.stderr
    assert [f"{each['fault']}: {each['problem']}" for each in findings if not each["recovered"]] == []
    figure(", ".join(f"{each['fault']} {each['provoked']}" for each in findings))


def test_the_doctor_finds_nothing_in_the_way(place: GpuPlace, minilm_path: Path, figure: Figure) -> None:
    """The doctor, with the config, finds no fault on a machine on which all of this runs."""
    place.configure(minilm_path)

    ended = place.call("doctor", str(place.config_path), "--json")

    findings = json.loads(ended.stdout)["findings"]
    faults = [f"{each['check']}: {each['meaning']}" for each in findings if each["state"] == "fault"]
    # On a null GPU a product may be anything, and so may vectors.
    assert faults == [] or not place.gpu.arithmetic, faults
    warnings = sorted({each["check"] for each in findings if each["state"] == "warning"})
    figure(f"{len(findings)} checks, warnings: {', '.join(warnings) or 'none'}")
