"""The class that stands in for sentence-transformers' own: what it gives, and where it computes."""

import importlib
import re
import signal
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

import modelkinds
from chunkvisor.sentence_transformers import SentenceTransformer
from docpages import blocks, text_of
from harness import ROOT, wait_for

pytestmark = pytest.mark.model

TEXTS = [f"commit {number}: refactor the parser" for number in range(12)]
PROMPTS = {"query": "find: ", "document": "text: "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with prompts."""
    return modelkinds.bert(tmp_path_factory.mktemp("bert"), prompts=PROMPTS)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    """The library's own class."""
    import sentence_transformers

    return sentence_transformers.SentenceTransformer(str(folder), device="cpu")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs are kept."""
    return tmp_path_factory.mktemp("vectors")


@pytest.fixture(scope="module")
def ours(folder: Path, workdir: Path) -> SentenceTransformer:
    """Ours, for which twelve texts are many."""
    return SentenceTransformer(str(folder), device="cpu", workdir=workdir, bulk_from=12)


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("encode", {}),
    "a query, as a tensor": ("encode_query", {"convert_to_tensor": True}),
    "a document, shorter and of length one": (
        "encode_document",
        {"truncate_dim": 8, "normalize_embeddings": True},
    ),
    "a list of tensors": ("encode", {"prompt": "find: ", "convert_to_numpy": False}),
    "binary": ("encode", {"prompt_name": "query", "precision": "ubinary", "batch_size": 4}),
}


@pytest.mark.parametrize("name", CALLS)
def test_many_texts_are_a_run_with_the_same_vectors(
    name: str, ours: Any, plain: Any, workdir: Path
) -> None:
    """A call of many texts gives what the library gives, in its types, from a run that is kept."""
    method, given = CALLS[name]
    found = getattr(ours, method)(TEXTS, **given)

    wanted = getattr(plain, method)(TEXTS, **given)
    assert type(found) in (type(wanted), np.memmap)
    assert len(found) == len(wanted) == len(TEXTS)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=2e-6)
    assert [*workdir.glob("*/embeddings.npy")]


def test_what_no_worker_is_asked_for(
    ours: SentenceTransformer, plain: Any, workdir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Few texts, one text, token embeddings and a trained model are computed here, with no run."""
    before = {*workdir.iterdir()}
    np.testing.assert_array_equal(ours.encode(TEXTS[:11]), plain.encode(TEXTS[:11]))
    np.testing.assert_array_equal(ours.encode(TEXTS[0]), plain.encode(TEXTS[0]))
    tokens = ours.encode(TEXTS, output_value="token_embeddings")
    assert [each.shape for each in tokens] == [
        each.shape for each in plain.encode(TEXTS, output_value="token_embeddings")
    ]
    with pytest.raises(ValueError, match="Prompt name 'answer' not found"):
        ours.encode(TEXTS, prompt_name="answer")
    weights = next(ours.parameters()).data
    kept = weights.clone()
    weights.zero_()
    trained = ours.encode(TEXTS)
    ours.encode(TEXTS)
    weights.copy_(kept)

    assert not np.allclose(trained, plain.encode(TEXTS))
    said = [record.getMessage() for record in caplog.records if record.name == "chunkvisor"]
    assert said == [
        "12 texts are encoded in this process: the model was changed since it was loaded"
    ]
    assert {*workdir.iterdir()} == before


def test_the_page_has_every_argument(plain: Any) -> None:
    """one-file.md says of every argument of the constructor and of encode what became of it."""
    names = {*signature(type(plain)).parameters, *signature(plain.encode).parameters}
    assert {"inputs", "prompt", "model_name_or_path", "backend"} <= names
    text = text_of(ROOT / "docs" / "how-to" / "one-file.md")
    missing = {name for name in names if f"`{name}`" not in text}
    assert missing <= {"kwargs", "use_auth_token"}  # the second is the old name of `token`


SCRIPT = """
import sys
from chunkvisor.sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu", workdir="vectors", bulk_from=12)
print(model.encode([f"text {n}" for n in range(600)], chunk_size=20, show_progress_bar=True).sum())
"""
JOURNAL = "vectors/*/.chunkvisor/events.jsonl"


def test_a_script_that_was_killed_continues(folder: Path, tmp_path: Path) -> None:
    """After `kill -9` the same script takes over what is done."""
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    killed = subprocess.Popen(command, cwd=tmp_path)
    wait_for(
        lambda: [each for each in tmp_path.glob(JOURNAL) if "chunk_committed" in each.read_text()]
    )
    killed.send_signal(signal.SIGKILL)
    killed.wait()

    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert re.search(r"to do: [\d,]+ of 600 texts, [12]?\d of 30 chunks", again.stderr)
    assert len([*tmp_path.glob("vectors/*")]) == 1


@pytest.mark.parametrize("client", ["evaluator", "MockSTSTask", "MockRetrievalTask"])
@pytest.mark.filterwarnings("ignore")
def test_who_evaluates_models_takes_it(
    client: str, ours: Any, plain: Any, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's evaluators and tasks of MTEB give the same score, from runs."""

    def score(model: Any) -> Any:
        if client == "evaluator":
            return EmbeddingSimilarityEvaluator(TEXTS, TEXTS[::-1], list(range(12)))(model)
        mteb = pytest.importorskip("mteb", reason="mteb is not installed (group: clients)")
        task = getattr(importlib.import_module("mteb.mocks.mock_tasks"), client)()
        return mteb.evaluate(model, task, cache=None).task_results[0].get_score()

    monkeypatch.setattr(ours, "_bulk_from", 1)
    before = {*workdir.iterdir()}
    assert score(ours) == pytest.approx(score(plain), abs=1e-4)
    assert {*workdir.iterdir()} > before


@pytest.mark.filterwarnings("ignore")
def test_bertopic_takes_it(ours: SentenceTransformer) -> None:
    """BERTopic chooses its backend by the class, and asks it for the vectors of all documents."""
    backends = pytest.importorskip("bertopic.backend._utils", reason="(group: clients)")
    chosen = backends.select_backend(ours)
    assert chosen.embedding_model is ours
    assert chosen.embed(TEXTS).shape == (len(TEXTS), modelkinds.WIDTH)


def test_the_page_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the page does what it says, here with a model of 32 dimensions."""
    block = blocks(ROOT / "docs" / "reference" / "python.md", "python")[1]
    (other,) = blocks(ROOT / "docs" / "how-to" / "one-file.md", "python")
    (tmp_path / "model").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    exec(block.text.replace("(2, 384)", "(2, 32)"), {})
    exec(other.text, {})
