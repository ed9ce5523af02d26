"""`model.backend: openvino` against plain `encode`, on small models that are made here."""

import errno
import functools
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkvisor_worker.contract.converted import Converted, ConvertedFiles, ConvertRequest
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec
from chunkvisor_worker.contract.wire import read_message
from chunkvisor_worker.quietopenvino import import_openvino, openvino_core
from harness import Workplace
from process.test_sentence_transformer import RecordedProgress
from smallbert import save_small_bert

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="extra openvino is not installed"),
]

TEXTS = [
    "fix: close the file",
    "Fix: Close the File",
    "word " * 3000,
    "漢字とかなの混じった文。" * 5,
    "a\x00b 🙂🙃\n\n\nÜnïcödé",
    "",
    *(f"commit {number}: " + "refactor the parser " * number for number in range(9)),
]


@pytest.fixture(scope="module")
def tiny(minilm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with three poolings one behind the other, a dense layer, and vectors of length 1; reads 64 tokens."""
    import torch
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

    torch.manual_seed(1)
    behind = [Pooling(32, ("mean", "cls", "max")), Dense(96, 16), Normalize()]
    return save_small_bert(tmp_path_factory.mktemp("tiny"), minilm_path, *behind)


@pytest.fixture(scope="module")
def converted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """The same, converted."""
    from chunkvisor_worker.convert import convert

    model = ModelSpec("tiny", str(tiny), backend="openvino", converted=str(tmp_path_factory.mktemp("converted")))
    assert model.converted is not None
    convert(ConvertRequest(model, "test", model.converted), ConvertedFiles(Path(model.converted)))
    return model


def run(model: ModelSpec, encode: EncodeSpec) -> tuple[Any, Any]:
    """All vectors in the order of TEXTS, and the encoder that made them."""
    from chunkvisor_worker.openvino_encoder import OpenvinoEncoder

    progress, encoder = RecordedProgress(), OpenvinoEncoder(model, encode, "cpu")
    encoder.load(progress)
    encoder.tokenize(TEXTS, progress)
    encoder.start(progress)
    parts = list(encoder.encode(Limits(rows=16, tokens=256), progress))
    order = np.argsort(np.concatenate([indices for indices, _ in parts]))
    assert sum(tokens for _, tokens, _ in progress.advances) == progress.tokens
    assert progress.flop > 0 < progress.peak
    return np.concatenate([vectors for _, vectors in parts])[order], encoder


@pytest.mark.parametrize(
    ("encode", "max_length"),
    [
        (EncodeSpec(), None),
        (EncodeSpec(prompt_name="query", truncate_dim=8, normalize=True), 20),
        (EncodeSpec(prompt="Represent this: "), None),
    ],
)
def test_vectors_equal_plain_encode(converted: ModelSpec, encode: EncodeSpec, max_length: int | None) -> None:
    """Poolings, dense layer, prompts, truncation of texts and of vectors, length 1: within 1e-5 of plain `encode`."""
    from sentence_transformers import SentenceTransformer

    vectors, encoder = run(replace(converted, max_length=max_length), encode)

    library = SentenceTransformer(str(converted.path), device="cpu")
    if max_length is not None:
        library.max_seq_length = max_length
    expected = library.encode(
        TEXTS,
        prompt=encode.prompt,
        prompt_name=encode.prompt_name,
        normalize_embeddings=encode.normalize,
        truncate_dim=encode.truncate_dim,
        show_progress_bar=False,
    )
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    facts = encoder.facts()
    assert (facts.dimension, facts.dtype, facts.max_length) == (expected.shape[1], "float32", max_length or 64)
    assert {"openvino", "tokenizers", "numpy", "python"} == set(facts.versions)


@pytest.mark.parametrize(
    ("model", "encode", "words"),
    [
        ({"max_length": 513}, {}, "model.max_length is 513, but the model has positions for 512 tokens"),
        ({}, {"truncate_dim": 17}, "encode.truncate_dim is 17, but the model's vectors have 16 dimensions"),
        ({}, {"prompt_name": "none"}, "is not a prompt of this model; it has: 'query'"),
    ],
)
def test_what_the_model_cannot_do(
    converted: ModelSpec, model: dict[str, Any], encode: dict[str, Any], words: str
) -> None:
    """A setting that cannot be met is refused by name before any text is encoded."""
    with pytest.raises(ValueError, match=words):
        run(replace(converted, **model), EncodeSpec(**encode))


def test_bfloat16_where_the_cpu_has_none(converted: ModelSpec) -> None:
    """It is refused, where OpenVINO would compute in float32 and say nothing; elsewhere the vectors are near."""
    half = replace(converted, dtype="bfloat16")
    if "BF16" not in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        with pytest.raises(ValueError, match=r"^model\.dtype is bfloat16, but OpenVINO has no bfloat16 on this CPU"):
            run(half, EncodeSpec())
        return
    vectors, encoder = run(half, EncodeSpec())
    plain, _ = run(converted, EncodeSpec())
    assert encoder.facts().dtype == "bfloat16"
    assert np.einsum("ij,ij->i", vectors, plain).min() > 0.99


def test_signals_are_handled_after_two_encoders(converted: ModelSpec) -> None:
    """One that has a handler does not end a process in which the first of two encoders is gone before the second."""
    program = f"""
import faulthandler, gc, signal
faulthandler.enable()
from process.test_openvino import EncodeSpec, ModelSpec, run
signal.signal(signal.SIGINT, lambda *_: print("handled"))
encoders = [run({converted!r}, EncodeSpec())[1] for _ in range(2)]
while encoders:
    del encoders[0]
    gc.collect()
signal.raise_signal(signal.SIGINT)
"""
    folder = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_a_batch_that_was_not_computed_is_noticed(converted: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO returns without an error where an allocation fails; the batch before is not taken for this one."""
    from chunkvisor_worker.openvino_encoder import OpenvinoEncoder

    progress, encoder = RecordedProgress(), OpenvinoEncoder(converted, EncodeSpec(), "cpu")
    encoder.load(progress)
    encoder.tokenize(["one", "two"], progress)
    monkeypatch.setattr(encoder, "_compute", lambda batch, vectors: None)

    with pytest.raises(MemoryError, match="returned without vectors"):
        list(encoder.encode(Limits(rows=1), progress))


def test_a_model_that_is_more_than_token_ids_is_refused(minilm_path: Path, tmp_path: Path) -> None:
    """By name, with what to set; nothing is written that could be taken for a converted model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    from chunkvisor_worker.convert import CannotConvertError, convert

    tokenizer = Tokenizer.from_file(str(minilm_path / "tokenizer.json"))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu").save(str(tmp_path / "m"))
    files = ConvertedFiles(tmp_path / "converted")

    with pytest.raises(
        CannotConvertError, match=r"^model\.backend is openvino, but .*StaticEmbedding.* set it to torch"
    ):
        convert(ConvertRequest(ModelSpec("static", str(tmp_path / "m")), "test", str(files.folder)), files)

    assert not files.record.exists()


def test_a_model_that_reads_long_texts_in_another_way_is_refused(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code looks at the length, beyond all texts of the sample but the longest: the trace has one way for both."""
    from transformers import BertModel

    from chunkvisor_worker.convert import CannotConvertError, convert

    short = BertModel.forward

    @functools.wraps(short)
    def forward(self: Any, input_ids: Any = None, **others: Any) -> Any:
        found = short(self, input_ids=input_ids, **others)
        if input_ids.shape[1] > 400:
            found.last_hidden_state = found.last_hidden_state.flip(-1)
        return found

    monkeypatch.setattr(BertModel, "forward", forward)

    with pytest.raises(CannotConvertError, match="the converted model's vectors differ from its own"):
        convert(ConvertRequest(ModelSpec("tiny", str(tiny)), "test", str(tmp_path)), ConvertedFiles(tmp_path))


def test_a_disk_without_room_for_the_converted_model(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO says only that its stream failed; the fault is a full disk where the weights have no room there."""
    from chunkvisor_worker.convert import convert

    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("basic_ios::clear: iostream error")

    def full(descriptor: int, offset: int, size_bytes: int) -> None:
        assert size_bytes > 30522 * 32 * 4  # its table of words alone
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(import_openvino(), "save_model", fail)
    monkeypatch.setattr("os.posix_fallocate", full)
    files = ConvertedFiles(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        convert(ConvertRequest(ModelSpec("tiny", str(tiny), backend="openvino"), "test", str(tmp_path)), files)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_run(workplace: Workplace, tiny: Path) -> None:
    """The model is converted once, and the CPU timed once, for all workers; they are forked from a template."""
    from sentence_transformers import SentenceTransformer

    workplace.write_source(TEXTS)
    keys: dict[str, Any] = {"workers": {"start": "warm", "standby": 0}, "chunk__size": 8}
    workplace.write_config("sentence-transformers", model__name=str(tiny), model__backend="openvino", **keys)

    ended = workplace.run()

    assert ended.returncode == 0, ended.stderr
    expected = SentenceTransformer(str(tiny), device="cpu").encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(workplace.vectors(), expected, rtol=0, atol=1e-5)
    manifest = workplace.manifest()
    assert (manifest["model"]["backend"], manifest["model"]["dtype"]) == ("openvino", "float32")
    started = [event["start"] for event in workplace.events() if event["event"] == "attempt_started"]
    assert started == ["warm", "warm"]
    (peak,) = {event["peak_flop_per_s"] for event in workplace.events() if event["event"] == "worker_ended"}
    assert peak > 0
    (folder,) = (workplace.workdir / "openvino").iterdir()
    known = read_message(Converted, ConvertedFiles(folder).record)
    assert known is not None
    assert known.difference < 1e-5
    assert [event["event"] for event in workplace.events()].count("converting_model") == 1
