"""The class that stands in for sentence-transformers' own: what it gives, and where it computes."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import modelkinds
from chunkvisor.sentence_transformers import SentenceTransformer
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
    journals = tmp_path.glob
    wait_for(lambda: [each for each in journals(JOURNAL) if "chunk_committed" in each.read_text()])
    killed.send_signal(signal.SIGKILL)
    killed.wait()

    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert re.search(r"to do: [\d,]+ of 600 texts, [12]?\d of 30 chunks", again.stderr)
    assert len([*tmp_path.glob("vectors/*")]) == 1


def test_the_page_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the page does what it says, here with a model of 32 dimensions."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(from chunkvisor.sentence.*?)```", page, re.DOTALL)
    (tmp_path / "model").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    exec(block.replace("(2, 384)", "(2, 32)"), {})
