"""`model.dtype: int8`: which quantised model makes which vectors, through resumes, updates, reuse and damage.

Where nncf is not installed, a child stands in for the one that quantises: what it makes computes in float32, but is of
another digest for other texts. The real one is tried where nncf is there.
"""

import importlib.util
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkvisor.engine import conversion, quantization
from chunkvisor.observe import extras
from chunkvisor.store.seal import digest_of
from chunkvisor.store.stamp import digest_file
from chunkvisor_worker.contract.arithmetic import Quantized
from chunkvisor_worker.contract.converted import Converted, ConvertedFiles, ConvertRequest
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import EncodeSpec, ModelSpec
from chunkvisor_worker.contract.wire import read_message, write_message
from harness import Workplace, finish, lives, wait_for
from smallbert import save_small_bert

HAS_NNCF = importlib.util.find_spec("nncf") is not None
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="extra openvino is not installed"),
]
needs_nncf = pytest.mark.skipif(not HAS_NNCF, reason="nncf is not installed (extra: openvino-int8)")

TEXTS = [f"commit {number}: " + "refactor the parser, again " * (number % 7) for number in range(40)]
MORE = ["fix a leak", TEXTS[3], "close the file before it is renamed"]
CONFIG: dict[str, Any] = {"model__backend": "openvino", "model__dtype": "int8", "chunk__size": 20}


@pytest.fixture(scope="module")
def tiny(minilm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with a mean pooling and one prompt; reads 64 tokens."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    return save_small_bert(tmp_path_factory.mktemp("tiny"), minilm_path, Pooling(32, "mean"))


@pytest.fixture(scope="module")
def converted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for OpenVINO, in float32."""
    from chunkvisor_worker.convert import convert

    folder = tmp_path_factory.mktemp("converted")
    model = ModelSpec("tiny", str(tiny), backend="openvino", converted=str(folder))
    convert(ConvertRequest(model, "test", str(folder)), ConvertedFiles(folder))
    return folder


class StandIn:
    """Takes the place of the child that quantises."""

    def __init__(self, plain: Path) -> None:
        self.plain = plain
        self.made: list[ConvertRequest] = []
        self.mood = ""
        """Another one makes another model of the same texts, as another machine may."""

    def __call__(
        self, command: Sequence[str], log: Path, on_wait: Callable[[], None], environment: Mapping[str, str]
    ) -> int:
        """Make the files, as the child does."""
        request = read_message(ConvertRequest, AttemptFiles(Path(command[-1])).spec)
        assert request is not None
        self.made.append(request)
        files = ConvertedFiles(Path(request.target))
        shutil.copytree(self.plain, files.folder, dirs_exist_ok=True)
        with files.network.open("a") as network:
            network.write(f"<!-- {digest_of([Path(request.texts).read_text(), self.mood])} -->\n")
        known = read_message(Converted, files.record)
        assert known is not None
        digests = {path.name: digest_file(path) for path in files.content}
        count = sum(sample.count for sample in request.samples)
        np.save(files.compared, np.array([[[1.0, 0.0]], [[0.6, 0.8]]], dtype=np.float32))
        quantized = Quantized(count, 1)
        write_message(files.record, replace(known, made_from=request.made_from, digests=digests, quantized=quantized))
        return 0


@pytest.fixture
def child(converted: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Stands in for the one that quantises."""
    stand_in = StandIn(converted)
    monkeypatch.setattr(conversion, "run_child", stand_in)
    monkeypatch.setattr(quantization, "nncf_version", lambda: "3.4")
    monkeypatch.setattr(extras, "find_spec", lambda name: name)
    return stand_in


@pytest.fixture
def place(workplace: Workplace, tiny: Path, child: StandIn) -> Workplace:
    """A config in int8 over TEXTS, in two chunks."""
    workplace.write_source(TEXTS)
    configure(workplace, tiny)
    return workplace


def configure(place: Workplace, tiny: Path, **changes: Any) -> None:
    """The config, with changes."""
    place.write_config("sentence-transformers", model__name=str(tiny), **{**CONFIG, **changes})


def ran(place: Workplace, *arguments: str, code: int = 0) -> str:
    """Run it; returns what it said."""
    ended = place.run(*arguments)
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


def digest_in(place: Workplace, output: str = "out") -> str:
    """Of the model that the output was begun with."""
    values = json.loads((place.workdir / "outputs" / output / "identity.json").read_text())["identity"]
    assert values["model.dtype"] == "int8"
    return str(values["model.quantized"])


def models(place: Workplace) -> list[str]:
    """Names of the folders of converted models."""
    return sorted(path.name for path in (place.workdir / "openvino").iterdir())


def stop_after_first_chunk(place: Workplace) -> None:
    """Run until one of the two chunks is done."""
    assert "slice 1/2 is done" in ran(place, "--slice", "1/2")


def test_a_run_quantises_once_and_tells_the_cosine(place: Workplace, child: StandIn) -> None:
    """By all outputs, with their prompts; the manifest and a line say how near the vectors are; a low cosine warns."""
    more = {"source": "rows.jsonl", "column": "text", "encode": {"prompt_name": "query"}}
    configure(place, Path(child_model(place)), outputs__more=more)
    said = ran(place)
    (request,) = child.made
    assert [(sample.encode.prompt_name, sample.count) for sample in request.samples] == [("query", 40), (None, 40)]
    told = {"calibrated": 80, "compared": 1, "mean_cosine": 0.6, "least_cosine": 0.6, "neighbours": 1.0}
    assert place.manifest()["quantized"] == pytest.approx(told)
    assert place.manifest()["model"]["dtype"] == "int8"
    assert digest_in(place) == digest_in(place, "more") == models(place)[0]
    events = [event["event"] for event in place.events()]
    assert [events.count(name) for name in ("model_quantized", "cosine_low")] == [1, 1]
    assert "quantised to int8 by 80 texts of this run" in said
    assert "0.6000: try how your searches do with it" in said
    ran(place)
    assert len(child.made) == 1


def test_a_run_tells_its_share_of_the_peak(place: Workplace) -> None:
    """Of a product in int8, as of one in the other dtypes."""
    ran(place)
    (device,) = place.status()["devices"].values()
    assert device["peak_flop"] > 0
    assert device["peak_share"] is not None


def child_model(place: Workplace) -> str:
    """The model of the config."""
    import yaml

    return str(yaml.safe_load(place.config_path.read_text())["model"]["name"])


def test_a_resume_takes_the_model_that_is_there(place: Workplace, child: StandIn) -> None:
    """Whatever else it would be made into now: by other versions, or of other texts with --update."""
    stop_after_first_chunk(place)
    digest = digest_in(place)
    child.mood = "another machine"
    ran(place)
    place.write_source(TEXTS + MORE)
    ran(place, "--update")
    assert len(child.made) == 1
    assert (digest_in(place), models(place)) == (digest, [digest])
    assert place.manifest()["texts_encoded"] == 2


@pytest.mark.parametrize("damage", ["removed", "altered"])
def test_a_model_that_is_gone_is_made_again_where_that_gives_the_same(
    place: Workplace, child: StandIn, damage: str
) -> None:
    """Of the texts that are staged; another one is refused with what to do, and no vector of it is made."""
    stop_after_first_chunk(place)
    digest = digest_in(place)
    folder = place.workdir / "openvino" / digest
    kept = place.folder / "kept"
    shutil.copytree(folder, kept)
    if damage == "removed":
        shutil.rmtree(folder)
    else:
        (folder / "model.bin").write_bytes(b"?")
    child.mood = "another machine"
    said = ran(place, code=78)
    assert "quantised again it is another one" in said
    assert "--from-scratch" in said
    assert not (place.workdir / "out.npy").exists()
    child.mood = ""
    ran(place)
    assert (len(child.made), digest_in(place)) == (3, digest)
    shutil.rmtree(place.workdir / "openvino")
    ran(place)  # nothing is left to compute
    assert len(child.made) == 3


def test_a_folder_that_is_put_back_is_used(place: Workplace, child: StandIn) -> None:
    """As the message says."""
    stop_after_first_chunk(place)
    folder = place.workdir / "openvino"
    folder.rename(place.folder / "kept")
    child.mood = "another machine"
    ran(place, code=78)
    shutil.rmtree(folder)
    (place.folder / "kept").rename(folder)
    ran(place)
    assert place.vectors().shape == (40, 32)


def test_chunks_that_are_all_done_are_joined_without_a_model(place: Workplace, child: StandIn) -> None:
    """A removed folder matters only to what is still to be computed."""
    ran(place, "--set", "chunk.keep=true")
    shutil.rmtree(place.workdir / "openvino")
    (place.workdir / "out.npy").unlink()
    ran(place, "--set", "chunk.keep=true")
    assert len(child.made) == 1
    assert place.manifest()["quantized"]["least_cosine"] == pytest.approx(0.6)


def test_from_scratch_quantises_by_the_texts_as_they_are_now(place: Workplace, child: StandIn) -> None:
    """The earlier one stays until `clean` finds that no output has it; of the same texts it is taken again."""
    ran(place)
    first = digest_in(place)
    ran(place, "--from-scratch")
    assert (digest_in(place), len(child.made)) == (first, 1)
    place.write_source(TEXTS[:30])
    ran(place, "--from-scratch")
    second = digest_in(place)
    assert second != first
    assert models(place) == sorted([first, second])
    assert place.call("clean", str(place.workdir)).returncode == 0
    assert models(place) == [second]
    place.write_source(TEXTS)
    ran(place, "--update")
    assert (len(child.made), digest_in(place)) == (2, second)


def test_a_new_output_has_the_model_of_the_others(place: Workplace, child: StandIn, tiny: Path) -> None:
    """Of the same config, or of the same workdir: so a text that both have is encoded once."""
    ran(place)
    (place.folder / "more.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in MORE))
    more = {"source": "more.jsonl", "column": "text"}
    configure(place, tiny, outputs={"more": more})
    said = ran(place)
    assert len(child.made) == 1
    assert digest_in(place, "more") == digest_in(place)
    assert "as the model was quantised for other outputs" in said
    assert json.loads((place.workdir / "more.json").read_text())["texts_encoded"] == 2


def test_outputs_of_another_workdir(place: Workplace, child: StandIn, tiny: Path) -> None:
    """With `reuse_from` its model is copied, and with it its vectors serve; without, nothing is taken over."""
    ran(place)
    place.write_source(MORE)
    configure(place, tiny, workdir="alone", reuse_from=[])
    ran(place)
    assert len(child.made) == 2
    assert json.loads((place.folder / "alone" / "out.json").read_text()).get("texts_encoded", 3) == 3
    configure(place, tiny, workdir="second", reuse_from=["work"])
    ran(place)
    assert len(child.made) == 2
    assert json.loads((place.folder / "second" / "out.json").read_text())["texts_encoded"] == 2
    assert (place.folder / "second" / "openvino" / digest_in(place) / "model.bin").exists()


def test_a_model_that_is_gone_is_taken_from_another_workdir(place: Workplace, child: StandIn, tiny: Path) -> None:
    """From which it was copied before: quantised again, by other texts, it would be another."""
    place.write_source(MORE)
    ran(place)
    place.write_source(TEXTS)
    configure(place, tiny, workdir="second", reuse_from=["work"])
    stop_after_first_chunk(place)
    shutil.rmtree(place.folder / "second" / "openvino")
    ran(place)
    assert len(child.made) == 1


def test_float32_vectors_are_not_taken_for_int8(place: Workplace, child: StandIn, tiny: Path) -> None:
    """An output that was begun in float32 is refused before anything is quantised."""
    configure(place, tiny, model__dtype="float32", model__backend="torch")
    stop_after_first_chunk(place)
    configure(place, tiny)
    said = ran(place, code=78)
    assert 'model.dtype: "float32" before, "int8" now' in said
    assert not child.made


def test_slices_have_one_model(place: Workplace, child: StandIn) -> None:
    """The first of them quantises it, the others find it."""
    ran(place, "--slice", "1/2")
    child.mood = "another machine"
    ran(place, "--slice", "2/2")
    assert len(child.made) == 1
    assert place.vectors().shape == (40, 32)
    assert place.call("verify", str(place.workdir)).returncode == 0


def test_models_of_two_calibrations_are_no_one_run(place: Workplace, child: StandIn, tiny: Path) -> None:
    """Two outputs that were begun apart from each other, both not done: the run says so."""
    stop_after_first_chunk(place)
    more = {"source": "rows.jsonl", "column": "text", "encode": {"normalize": True}}
    configure(place, tiny, outputs={"more": more}, reuse=False)
    child.mood = "another machine"
    stop_after_first_chunk(place)
    assert digest_in(place) != digest_in(place, "more")
    configure(place, tiny, outputs__more=more)
    assert "quantised apart from each other" in ran(place, code=78)


def test_without_nncf(workplace: Workplace, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said at once, with the line that installs it."""
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "nncf" else name)
    workplace.write_source(TEXTS)
    configure(workplace, tiny)
    for command in ("run", "plan"):
        ended = workplace.call(command, str(workplace.config_path))
        assert ended.returncode == 78
        assert "pip install 'chunkvisor[openvino-int8]'" in ended.stderr


@needs_nncf
def test_the_real_child(tiny: Path, tmp_path: Path) -> None:
    """Two conversions of the same texts give the same files, one of them from float32; the vectors are near those."""
    from chunkvisor.engine.conversion import ensure_converted, with_place
    from chunkvisor.engine.quantization import Sample, ensure_quantized, read_quantized

    model = ModelSpec("tiny", str(tiny), dtype="int8", backend="openvino")
    samples = [Sample(EncodeSpec(), TEXTS), Sample(EncodeSpec(prompt_name="query"), MORE)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    folders = [tmp_path / "one", tmp_path / "two"]
    in_float32 = with_place(replace(model, dtype="float32"), folders[1])
    ensure_converted(in_float32, environment)
    one, two = (ensure_quantized(model, folder, samples, environment) for folder in folders)
    assert one == two
    told = read_quantized(tmp_path / "one", one)
    assert told is not None
    assert (told.calibrated, told.compared) == (32, 11)
    assert 0.9 < told.least_cosine <= told.mean_cosine <= 1
    assert [path.name for path in (tmp_path / "one").iterdir()] == [one]
    assert in_float32.converted is not None
    assert {path.name for path in folders[1].iterdir()} == {two, Path(in_float32.converted).name}
    of_one, of_two = (read_message(Converted, ConvertedFiles(folder / one).record) for folder in folders)
    assert of_one == of_two
    names = {"model.xml", "model.bin", "tokenizer.json", "converted.json"}
    assert {path.name for path in (tmp_path / "one" / one).iterdir()} == names


@needs_nncf
def test_a_real_run(workplace: Workplace, tiny: Path) -> None:
    """Killed while it quantises and started again; the vectors are near those of plain `encode`."""
    from sentence_transformers import SentenceTransformer

    workplace.write_source(TEXTS)
    configure(workplace, tiny)
    process = workplace.start("run", str(workplace.config_path))
    scratch = AttemptFiles(workplace.workdir / "openvino" / "converting")
    wait_for(scratch.log.exists)
    children = wait_for(lambda: [int(each) for each in children_of(process.pid)])
    process.send_signal(signal.SIGKILL)
    finish(process)
    wait_for(lambda: not any(map(lives, children)))
    ran(workplace)
    expected = SentenceTransformer(str(tiny), device="cpu").encode(TEXTS, show_progress_bar=False)
    found = workplace.vectors()
    cosines = np.einsum("ij,ij->i", found, expected)
    cosines /= np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.9
    assert np.abs(found - expected).max() > 1e-4  # it is another arithmetic
    assert workplace.manifest()["quantized"]["compared"] == 10
    assert models(workplace) == [digest_in(workplace)]


def children_of(pid: int) -> list[str]:
    """Pids of a process's children."""
    return [pid for path in Path(f"/proc/{pid}/task").glob("*/children") for pid in path.read_text().split()]
