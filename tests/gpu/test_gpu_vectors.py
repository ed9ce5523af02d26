"""What comes out of a real GPU, and what drill and doctor say of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from gpuplace import GpuPlace


def cosines(found: np.ndarray, plain: Path) -> np.ndarray:
    """Row by row, to the plain vectors."""
    other = np.load(plain)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(other, axis=1)
    cosine: np.ndarray = (found * other).sum(axis=1) / lengths
    return cosine


@pytest.mark.usefixtures("kernels_that_compute")
def test_vectors_equal_those_of_plain_encode(place: GpuPlace, minilm_path: Path, plain: Path) -> None:
    """MiniLM's vectors are those of `SentenceTransformer.encode` on the same GPU, within 1e-5."""
    place.configure(minilm_path)

    place.complete()

    np.testing.assert_allclose(place.vectors(), np.load(plain), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("kernels_that_compute")
@pytest.mark.parametrize(("dtype", "least"), [("bfloat16", 0.99), ("float16", 0.999)])
def test_half_precision_is_close_to_float32(
    dtype: str, least: float, place: GpuPlace, minilm_path: Path, plain: Path
) -> None:
    """Vectors in half precision point where those in float32 do."""
    place.configure(minilm_path, model__dtype=dtype)

    place.complete()

    cosine = cosines(place.vectors(), plain)
    assert cosine.min() > least


@pytest.mark.usefixtures("new_interpreters")
def test_warm_and_fresh_starts_do_the_same(place: GpuPlace, minilm_path: Path) -> None:
    """With warm starts every first attempt is forked, and the vectors are those of fresh starts."""
    place.configure(minilm_path, workers={"start": "fresh"})
    place.complete()
    fresh = np.array(place.vectors())
    place.configure(minilm_path, workers={"start": "warm"}, workdir="warm")
    place.workdir = place.folder / "warm"
    place.complete()

    starts = [each["start"] for each in place.events() if each["event"] == "attempt_started"]
    assert set(starts) == {"warm"}
    assert place.failed() == []
    if place.gpu.arithmetic:
        np.testing.assert_allclose(place.vectors(), fresh, rtol=0, atol=1e-5)


def test_the_drill_recovers(place: GpuPlace, minilm_path: Path) -> None:
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


def test_the_doctor_finds_nothing_in_the_way(place: GpuPlace, minilm_path: Path) -> None:
    """The doctor, with the config, finds no fault on a machine on which all of this runs."""
    place.configure(minilm_path)

    ended = place.call("doctor", str(place.config_path), "--json")

    findings = json.loads(ended.stdout)["findings"]
    faults = [f"{each['check']}: {each['meaning']}" for each in findings if each["state"] == "fault"]
    # On a null GPU a product may be anything, and so may vectors.
    assert faults == [] or not place.gpu.arithmetic, faults
