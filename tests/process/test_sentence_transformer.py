"""The sentence-transformers encoder against the library's own `encode`, on real weights."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from chunkvisor_worker import sentence_transformer
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec, Phase
from chunkvisor_worker.cpu import LINEAR
from chunkvisor_worker.liveness import BeatWriter
from chunkvisor_worker.model import is_placed_by_loading, split_kwargs
from chunkvisor_worker.sentence_transformer import SentenceTransformerEncoder, padded

pytestmark = pytest.mark.model

TEXTS = [
    "fix: close the file",
    "",
    "Fix: Close the File",
    "word " * 3000,
    "fix: close the file",
    "漢字とかなの混じった文。" * 5,
    "🙂🙃 emoji 👩‍👩‍👧",
    " \t ",
    "\n\n\n",
    "a\x00b",
    "Ünïcödé naïve café",
    *(f"commit {number}: " + "refactor the parser " * (number) for number in range(12)),
]
SMALL = Limits(rows=16, tokens=1024)
ALIKE: dict[str, Any] = {"batch_size": 1, "show_progress_bar": False}
"""For the library: one by one it pads nothing, which would be most of its work here."""


class _Progress(BeatWriter):
    """Keeps what an encoder reports."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.phases: list[Phase] = []
        self.ticks = 0
        self.batches: list[tuple[int, int]] = []
        self.advances: list[tuple[int, int, int]] = []

    def phase(self, phase: Phase) -> None:
        self.phases.append(phase)

    def tick(self) -> None:
        self.ticks += 1

    def batch(self, indices: npt.NDArray[np.int64], tokens: int, rows: int = 0) -> None:
        self.batches.append((rows or len(indices), tokens))

    def advance(self, rows: int, tokens: int, padded_tokens: int) -> None:
        self.advances.append((rows, tokens, padded_tokens))


def run(
    model: ModelSpec,
    texts: list[str] = TEXTS,
    encode: EncodeSpec = EncodeSpec(),  # noqa: B008 - frozen
    limits: Limits = SMALL,
    progress: _Progress | None = None,
) -> tuple[npt.NDArray[np.float32], SentenceTransformerEncoder]:
    """All vectors in the order of the texts, and the encoder that made them."""
    progress = progress or _Progress()
    encoder = SentenceTransformerEncoder(model, "cpu")
    encoder.encode_spec = encode
    encoder.load(progress)
    encoder.tokenize(texts, progress)
    encoder.start(progress)
    parts = list(encoder.encode(limits, progress))
    indices = np.concatenate([part[0] for part in parts])
    assert sorted(indices.tolist()) == list(range(len(texts)))
    vectors = np.empty((len(texts), parts[0][1].shape[1]), dtype=np.float32)
    for index, block in parts:
        assert block.dtype == np.float32
        vectors[index] = block
    return vectors, encoder


@pytest.fixture(autouse=True, scope="module")
def packed() -> Iterator[None]:
    """Weights are packed, whatever is faster here, so that all these tests try it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(LINEAR, "onednn")
        yield


@pytest.fixture(scope="module")
def minilm(minilm_path: Path) -> ModelSpec:
    """The real MiniLM."""
    return ModelSpec("sentence-transformers/all-MiniLM-L6-v2", str(minilm_path))


@pytest.fixture(scope="module")
def library(minilm_path: Path) -> Any:
    """The same model as the library loads it."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_path), device="cpu")


@pytest.mark.parametrize(
    ("fast", "encode"),
    [
        (True, EncodeSpec()),
        (True, EncodeSpec(truncate_dim=128, normalize=True, prompt="Represent this commit: ")),
        (False, EncodeSpec(truncate_dim=128, normalize=True, prompt="Represent this commit: ")),
    ],
)
def test_vectors_equal_the_librarys(
    minilm: ModelSpec, library: Any, fast: bool, encode: EncodeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either path gives, row by row, what one plain `SentenceTransformer.encode` gives."""
    if not fast:
        monkeypatch.setattr(sentence_transformer, "is_plain_text_model", lambda model: False)

    vectors, encoder = run(minilm, encode=encode)

    expected = library.encode(
        TEXTS,
        prompt=encode.prompt,
        normalize_embeddings=encode.normalize,
        truncate_dim=encode.truncate_dim,
        **ALIKE,
    )
    assert np.abs(vectors - expected).max() < 1e-5
    assert encoder.facts().dimension == expected.shape[1]


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_are_padded_as_the_tokenizer_does(library: Any, side: str) -> None:
    """Each column of the tokenizer has its own filling, on the side that the model wants."""
    library.tokenizer.padding_side = side
    given = library.tokenizer(TEXTS[:3])
    rows = [
        dict(zip(given, map(np.array, each), strict=True))
        for each in zip(*given.values(), strict=True)
    ]
    theirs = library.tokenizer.pad(given, return_tensors="np")
    assert {key: block.tolist() for key, block in padded(rows, library.tokenizer).items()} == {
        key: block.tolist() for key, block in theirs.items()
    }


def test_limits_and_length_change_the_work_and_not_the_vectors(
    minilm: ModelSpec, library: Any
) -> None:
    """A text is cut at the length asked for; one row or all in a batch give equal vectors; each row
    is told once.
    """
    model, progress = replace(minilm, max_length=64), _Progress()
    one, _ = run(model, limits=Limits(rows=1))
    all_at_once, encoder = run(model, limits=Limits(rows=10**6, tokens=None), progress=progress)
    assert np.abs(one - all_at_once).max() < 1e-5
    assert np.abs(one[0] - one[4]).max() == 0
    shorter = {"text": {"max_length": 64}}
    assert np.abs(one - library.encode(TEXTS, processing_kwargs=shorter, **ALIKE)).max() < 1e-5
    ids = library.tokenizer(TEXTS, truncation=True, max_length=64)["input_ids"]
    assert progress.phases == [Phase.IMPORT, Phase.MODEL_LOAD, Phase.TOKENIZE]
    assert progress.advances == [(len(TEXTS), sum(map(len, ids)), 64 * len(TEXTS))]
    assert progress.batches == [(len(TEXTS), 64 * len(TEXTS))]
    facts = encoder.facts()
    assert (facts.dimension, facts.dtype, facts.max_length) == (384, "float32", 64)
    assert {"python", "torch", "sentence-transformers", "transformers", "numpy"} <= set(
        facts.versions
    )
    slow = _Progress()
    encoder.tokenize(["a"] * 300, slow)
    assert slow.ticks == 2  # a sign of life before each 256 texts
    with pytest.raises(TypeError, match="TextEncodeInput must be"):
        encoder.tokenize(["good", "a\ud800b"], slow)


def test_a_batch_of_one_text_leaves_no_mark_on_the_trial_of_padding(minilm: ModelSpec) -> None:
    """Where the host makes the masks, as for a GPU, a canary has no sound model refused."""
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    progress: Any = _Progress()
    encoder = SentenceTransformerEncoder(minilm, "cpu")
    encoder.load(progress)
    encoder.tokenize(TEXTS, progress)
    encoder.start(progress)
    encoder._make_masks_without_waiting()
    try:
        alone = _vectors_of(encoder, 1)
        among = _vectors_of(encoder, 3)
    finally:
        AttentionMaskInterface.register("sdpa", sdpa_mask)
    assert np.abs(np.stack(alone) - np.stack(among)).max() < 1e-5


def _vectors_of(encoder: SentenceTransformerEncoder, rows: int) -> list[npt.NDArray[np.float32]]:
    found: dict[int, npt.NDArray[np.float32]] = {}
    for indices, block in encoder.encode(Limits(rows=rows), _Progress()):
        found |= dict(zip(indices.tolist(), block.copy(), strict=True))
    return [found[row] for row in sorted(found)]


@pytest.mark.parametrize(
    ("model", "encode", "message"),
    [
        ({"max_length": 513}, {}, "513, but the model has positions for 512"),
        ({}, {"truncate_dim": 385}, "385, but the model's vectors have 384"),
    ],
)
def test_what_the_model_cannot_meet_is_refused(
    minilm: ModelSpec, model: dict[str, Any], encode: dict[str, Any], message: str
) -> None:
    """The error names the setting and what the model has; nothing is encoded."""
    encoder = SentenceTransformerEncoder(replace(minilm, **model), "cpu")
    encoder.encode_spec = EncodeSpec(**encode)

    with pytest.raises(ValueError, match=message):
        encoder.load(_Progress())


def test_no_gpu_is_an_error_not_the_cpu(minilm: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading leaves the driver alone; if torch cannot reach a GPU its own reason comes through."""
    import torch

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("CUDA was asked for")

    def refuse(*size: int, device: str) -> None:
        raise RuntimeError(f"No {device} GPUs are available")

    for name in ("is_available", "device_count", "init", "_lazy_init", "current_device"):
        monkeypatch.setattr(torch.cuda, name, forbidden)
    progress = _Progress()
    encoder = SentenceTransformerEncoder(minilm, "cuda")
    encoder.load(progress)
    encoder.tokenize(["text"], progress)
    monkeypatch.undo()
    monkeypatch.setattr(torch, "zeros", refuse)

    with pytest.raises(RuntimeError, match="No cuda GPUs are available"):
        encoder.start(progress)
    assert progress.phases[-1] is Phase.CUDA_INIT


@pytest.mark.parametrize(
    ("kwargs", "config", "expected"),
    [
        ({}, {}, False),
        ({"quantization_config": {"load_in_8bit": True}}, {}, True),
        ({"model_kwargs": {"device_map": "auto"}}, {}, True),
        ({"backend": "onnx"}, {}, True),
        ({}, {"quantization_config": {"quant_method": "gptq"}}, True),
    ],
)
def test_what_is_loaded_on_the_device(
    kwargs: dict[str, Any], config: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    """A quantized model, or one with a device map, waits for the GPU; any other is loaded ahead."""
    asked = {"attn_implementation": "eager", "model_kwargs": {"a": 1}, "prompts": {}}
    assert split_kwargs(asked) == ({"prompts": {}}, {"a": 1, "attn_implementation": "eager"})
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert is_placed_by_loading(ModelSpec("any", str(tmp_path), kwargs=kwargs)) is expected


FLAT = "end_to_end"


def attend(
    module: Any, query: Any, key: Any, value: Any, _: Any, *, cu_seq_lens_q: Any = None, **__: Any
) -> Any:
    """Attention on the CPU, within each text; tensors of shape (1, heads, tokens of all texts,
    width).
    """
    import torch

    ends = [0, query.shape[2]] if cu_seq_lens_q is None else cu_seq_lens_q.tolist()
    parts = [
        torch.nn.functional.scaled_dot_product_attention(
            *(each[:, :, start:stop] for each in (query, key, value))
        )
        for start, stop in itertools.pairwise(ends)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def test_flash_attention_takes_texts_end_to_end(
    minilm_path: Path, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of all lengths share a batch, none of it is padding, and the vectors are those of
    padded batches.
    """
    from sentence_transformers.base.modules import Transformer
    from transformers import AttentionInterface, DataCollatorWithFlattening

    def can_flatten(self: Any) -> bool:
        self.data_collator = DataCollatorWithFlattening(
            return_seq_idx=True, return_flash_attn_kwargs=True
        )
        return True

    AttentionInterface.register(FLAT, attend)  # in the place of a kernel that only GPUs have
    monkeypatch.setattr(Transformer, "_can_flatten_inputs", can_flatten)
    monkeypatch.setenv(LINEAR, "torch")
    model = ModelSpec("flat", str(minilm_path), kwargs={"attn_implementation": FLAT})
    encode, progress = EncodeSpec(prompt="Represent this commit: ", normalize=True), _Progress()
    vectors, _ = run(
        model, encode=encode, limits=Limits(rows=1000, tokens=400, padding=0), progress=progress
    )
    assert all(tokens == worked for _, tokens, worked in progress.advances)
    assert max(tokens for _, tokens in progress.batches) <= 400
    assert len(progress.batches) < len(TEXTS) / 4
    expected = library.encode(
        TEXTS, prompt=encode.prompt, normalize_embeddings=encode.normalize, **ALIKE
    )
    assert np.abs(vectors - expected).max() < 1e-5
