"""Counting tokens without weights, against the encoder that has them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkvisor_worker.batching import batches_of, padded_tokens
from chunkvisor_worker.contract.messages import EncodeSpec, LengthsTask, Limits, ModelSpec
from chunkvisor_worker.lengths import TokenCounter, measure
from chunkvisor_worker.liveness import BeatWriter
from chunkvisor_worker.sentence_transformer import SentenceTransformerEncoder

TEXTS = [
    "fix: close the file",
    "",
    "word " * 3000,
    "漢字とかなの混じった文。" * 5,
    "🙂 emoji",
    "a\x00b",
    "Ünïcödé",
]


def task_of(folder: Path, texts: list[str], **changes: Any) -> LengthsTask:
    """A task over the texts, written as a staged table has them."""
    data = [text.encode() for text in texts]
    (folder / "texts.bin").write_bytes(b"".join(data))
    np.cumsum([0, *map(len, data)]).astype("<u8").tofile(folder / "offsets.bin")
    values: dict[str, Any] = {
        "texts": str(folder / "texts.bin"),
        "offsets": str(folder / "offsets.bin"),
        "count": len(texts),
        "chunk_size": 1000,
        "every": 1,
        "encode": EncodeSpec(),
        "limits": Limits(32),
    }
    return LengthsTask(**(values | changes))


class Bytes:
    """Stands in for a tokenizer: a token for each byte."""

    max_length: int | None = 6
    tokenizer = len

    def prompt(self, encode: EncodeSpec) -> str:
        """Whatever the spec says."""
        return encode.prompt or ""

    def count(self, texts: list[str]) -> list[int]:
        """One for each byte."""
        return [len(text.encode()) for text in texts]


@pytest.mark.parametrize(
    ("chunk_size", "every", "lengths"),
    [
        (1000, 1, [1, 2, 3, 4, 5, 6, 7]),
        (3, 1, [1, 2, 3, 4, 5, 6, 7]),
        (2, 2, [1, 2, 5, 6]),
        (1, 3, [1, 4, 7]),
    ],
)
def test_chunks_are_measured_one_by_one(
    tmp_path: Path, chunk_size: int, every: int, lengths: list[int]
) -> None:
    """Every so-manieth chunk is measured, its lengths are uncut, and its batches are those that a
    worker would cut.
    """
    limits = Limits(2)
    task = task_of(
        tmp_path, ["x" * n for n in range(1, 8)], chunk_size=chunk_size, every=every, limits=limits
    )
    report = measure(Bytes(), task, tmp_path / "out.npy")  # type: ignore[arg-type]  # a stand-in
    assert np.load(tmp_path / "out.npy").tolist() == lengths
    kept = np.minimum(lengths, 6)
    chunks = [kept[start : start + chunk_size] for start in range(0, len(kept), chunk_size)]
    cuts = [(chunk, batches_of(chunk, limits)) for chunk in chunks]
    assert (report.tokens, report.batches) == (sum(kept), sum(len(batches) for _, batches in cuts))
    assert report.padded_tokens == sum(
        padded_tokens(chunk, batch) for chunk, batches in cuts for batch in batches
    )


@pytest.mark.model
@pytest.mark.parametrize(
    ("model", "encode"),
    [
        ({}, EncodeSpec()),
        ({"max_length": 12, "kwargs": {"prompts": {"q": "ask: "}}}, EncodeSpec(prompt_name="q")),
    ],
    ids=["plain", "cut, with a prompt"],
)
def test_counts_are_the_encoders(
    tmp_path: Path, minilm_path: Path, model: dict[str, Any], encode: EncodeSpec
) -> None:
    """Cut at the limit, the counts are those that the encoder itself makes its batches of."""
    spec = ModelSpec("minilm", path=str(minilm_path), **model)
    report = measure(
        TokenCounter(spec, minilm_path),
        task_of(tmp_path, TEXTS, encode=encode),
        tmp_path / "out.npy",
    )
    encoder = SentenceTransformerEncoder(spec, "cpu")
    encoder.encode_spec = encode
    encoder.load(BeatWriter(tmp_path / "beat.json"))
    encoder.tokenize(TEXTS, BeatWriter(tmp_path / "beat.json"))
    lengths = np.load(tmp_path / "out.npy")
    assert report.max_length is not None
    assert report.max_length == model.get("max_length", 256)
    assert np.minimum(lengths, report.max_length).tolist() == encoder._lengths.tolist()
    assert lengths.max() > 3000
    assert not report.estimated


def test_a_model_without_a_tokenizer_is_estimated(tmp_path: Path) -> None:
    """Where the encoder would estimate from bytes, so does the count, and says so."""
    modules = [{"type": "sentence_transformers.models.StaticEmbedding", "path": "0_Static"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    report = measure(
        TokenCounter(ModelSpec("static"), tmp_path),
        task_of(tmp_path, ["abcdef"]),
        tmp_path / "out.npy",
    )
    assert (report.max_length, report.estimated) == (None, True)
    assert (report.tokens, report.padded_tokens, report.batches) == (4, 4, 1)
