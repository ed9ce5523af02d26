"""Where a model in int8 is kept, what tells it apart, and when it is made anew."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chunkvisor.engine import conversion
from chunkvisor.engine.conversion import ensure_converted, with_place
from chunkvisor.engine.quantization import Sample, adopt, ensure_quantized, is_whole, read_quantized
from chunkvisor.errors import Halt
from chunkvisor.store.seal import digest_of
from chunkvisor_worker.contract.arithmetic import Quantized
from chunkvisor_worker.contract.converted import Converted, ConvertedFiles, ConvertRequest
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import EncodeSpec, ModelSpec
from chunkvisor_worker.contract.wire import read_message, write_message

MODEL = ModelSpec("m", "/models/m", revision="sha256:1", dtype="int8", backend="openvino")
KNOWN = Converted(
    "", {}, ("input_ids",), 8, 0, 0, False, False, None, None, None, {}, None, True, 0.0, {}, quantized=Quantized(2, 2)
)
SAMPLES = [Sample(EncodeSpec(), ["a", "bb"]), Sample(EncodeSpec(prompt="q: "), ["ccc"])]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that a child was given, which quantises at once: its weights are those texts."""
    texts: list[str] = []

    def convert(command: Sequence[str], log: Path, on_wait: Callable[[], None], environment: object) -> int:
        request = read_message(ConvertRequest, AttemptFiles(Path(command[-1])).spec)
        assert request is not None
        assert [sample.count for sample in request.samples] == [2, 1]
        texts.append(Path(request.texts).read_text())
        files = ConvertedFiles(Path(request.target))
        for path in files.content:
            path.write_text(texts[-1])
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files.content}
        np.save(files.compared, np.array([[[1.0, 0.0], [0.0, 2.0]], [[0.6, 0.8], [0.0, 9.0]]], dtype=np.float32))
        known = replace(KNOWN, made_from=request.made_from, digests=digests)
        write_message(files.record, known)
        return 0

    monkeypatch.setattr(conversion, "version", lambda name: "1.0")
    monkeypatch.setattr(conversion, "run_child", convert)
    return texts


def test_it_is_made_once_of_the_same_texts(tmp_path: Path, made: list[str]) -> None:
    """Other texts or prompts are another making; the same files have the same digest, which names the place."""
    digest = ensure_quantized(MODEL, tmp_path, SAMPLES, {})
    assert ensure_quantized(MODEL, tmp_path, SAMPLES, {}) == digest
    assert made == ['"a"\n"bb"\n"ccc"\n']
    assert [path.name for path in tmp_path.iterdir()] == [digest]
    other_prompt = [Sample(EncodeSpec(), ["a", "bb"]), Sample(EncodeSpec(), ["ccc"])]
    assert ensure_quantized(MODEL, tmp_path, other_prompt, {}) == digest  # made again, and the same came of it
    assert len(made) == 2
    other = ensure_quantized(MODEL, tmp_path, [SAMPLES[0], Sample(EncodeSpec(), ["d"])], {})
    assert other != digest
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([digest, other])


def test_its_place_is_known_once_it_is_made(tmp_path: Path, made: list[str]) -> None:
    """By its digest; without one it has none."""
    digest = ensure_quantized(MODEL, tmp_path, SAMPLES, {})
    assert with_place(MODEL, tmp_path).converted is None
    assert with_place(MODEL, tmp_path, digest).converted == str(tmp_path / digest)


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
def test_it_is_made_of_what_is_converted_already(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """Where the folder has the model in float32, the child is told so, if that is whole."""
    told: list[str] = []
    quantize: Callable[..., int] = conversion.run_child  # type: ignore[attr-defined]  # as `made` has left it

    def child(command: Sequence[str], log: Path, on_wait: Callable[[], None], environment: dict[str, str]) -> int:
        request = read_message(ConvertRequest, AttemptFiles(Path(command[-1])).spec)
        assert request is not None
        told.append(request.plain)
        if request.samples:
            return quantize(command, log, on_wait, environment)
        files = ConvertedFiles(Path(request.target))
        for path in files.content:
            path.write_text("float32")
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files.content}
        write_message(files.record, replace(KNOWN, made_from=request.made_from, digests=digests, quantized=None))
        return 0

    monkeypatch.setattr(conversion, "run_child", child)
    plain = with_place(replace(MODEL, dtype="float32"), tmp_path)
    assert plain.converted is not None
    ensure_converted(plain, {})
    if damaged:
        (Path(plain.converted) / "model.bin").write_text("?")
    ensure_quantized(MODEL, tmp_path, SAMPLES, {})
    assert told == ["", "" if damaged else plain.converted]


def test_what_a_worker_is_told_beside_the_files_tells_models_apart(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same network, cut at another length: neither takes the place of the other."""
    one = ensure_quantized(MODEL, tmp_path, SAMPLES, {})
    monkeypatch.setitem(globals(), "KNOWN", replace(KNOWN, max_length=512))
    two = ensure_quantized(replace(MODEL, revision="sha256:2"), tmp_path, SAMPLES, {})
    assert one != two
    records = [read_message(Converted, ConvertedFiles(tmp_path / each).record) for each in (one, two)]
    assert [record.max_length for record in records if record is not None] == [None, 512]


def test_a_folder_with_the_name_of_an_earlier_version_serves(tmp_path: Path, made: list[str]) -> None:
    """That was the digest of its files alone; made again, it has the name that is wanted."""
    digest = ensure_quantized(MODEL, tmp_path, SAMPLES, {})
    known = read_message(Converted, ConvertedFiles(tmp_path / digest).record)
    assert known is not None
    before = digest_of(known.digests)[:32]
    (tmp_path / digest).rename(tmp_path / before)
    assert is_whole(tmp_path, before)
    assert ensure_quantized(MODEL, tmp_path, SAMPLES, {}, wanted=before) == before
    assert len(made) == 1
    ConvertedFiles(tmp_path / before).weights.write_text("?")
    assert ensure_quantized(MODEL, tmp_path, SAMPLES, {}, wanted=before) == before
    assert (len(made), is_whole(tmp_path, before)) == (2, True)


def test_how_near_it_is(tmp_path: Path, made: list[str]) -> None:
    """The record has the cosines of the vectors that the child has left, which are then gone."""
    digest = ensure_quantized(MODEL, tmp_path, SAMPLES, {})
    told = read_quantized(tmp_path, digest)
    assert told is not None
    assert (told.mean_cosine, told.least_cosine, told.neighbours) == pytest.approx((0.8, 0.6, 1.0))
    assert not ConvertedFiles(tmp_path / digest).compared.exists()
    assert read_quantized(tmp_path, "0" * 32) is None


def test_a_damaged_one_is_not_whole(tmp_path: Path, made: list[str]) -> None:
    """Be it its weights, its record, or another model under its name; it is made anew in its place."""
    digest = ensure_quantized(MODEL, tmp_path, SAMPLES, {})
    files = ConvertedFiles(tmp_path / digest)
    for path in (files.weights, files.record):
        path.write_text("?")
        assert not is_whole(tmp_path, digest)
        assert ensure_quantized(MODEL, tmp_path, SAMPLES, {}) == digest
        assert is_whole(tmp_path, digest)
    assert len(made) == 3
    files.folder.rename(tmp_path / ("0" * 32))
    assert not is_whole(tmp_path, "0" * 32)


def test_it_is_taken_over_from_another_workdir(tmp_path: Path, made: list[str]) -> None:
    """As a copy, if it is whole there."""
    (tmp_path / "theirs").mkdir()
    digest = ensure_quantized(MODEL, tmp_path / "theirs", SAMPLES, {})
    assert adopt(tmp_path / "theirs", tmp_path / "ours", digest, lambda: None)
    assert is_whole(tmp_path / "ours", digest)
    assert ensure_quantized(MODEL, tmp_path / "ours", SAMPLES, {}) == digest
    assert len(made) == 1
    ConvertedFiles(tmp_path / "theirs" / digest).weights.write_text("?")
    assert not adopt(tmp_path / "theirs", tmp_path / "third", digest, lambda: None)


def test_a_child_that_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with what was to be done, and with float32 as the way out."""
    monkeypatch.setattr(conversion, "run_child", lambda *_: 1)
    with pytest.raises(Halt, match="m cannot be quantised to int8") as caught:
        ensure_quantized(MODEL, tmp_path / "openvino", SAMPLES, {})
    assert "set model.dtype to float32" in caught.value.remedy
    assert [path.name for path in (tmp_path / "openvino").iterdir()] == ["converting"]
