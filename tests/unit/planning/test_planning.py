"""What `chunkvisor plan` reckons, as tables."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor.commands.planning.draw import WIDTH, draw
from chunkvisor.commands.planning.histogram import distribution, longest_texts
from chunkvisor.commands.planning.survey import (
    Forecast,
    LongText,
    OutputForecast,
    Unit,
    disk_bytes,
    final_bytes,
    gpu_bytes,
    last_rate,
    memory_bytes,
    scaled,
    stride,
)
from chunkvisor.config.model import ModelConfig
from chunkvisor.engine.modelfolder import ModelFolder, computed_dtype, gpu_need_bytes, read_model_folder
from chunkvisor.events.event import ChunkCommitted, Note
from chunkvisor.events.journal import Entry

GIB = 1 << 30


def lengths_of(*values: int) -> np.ndarray:
    """An array as the worker leaves it."""
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("lengths", "max_length", "bins", "truncated", "lost_share"),
    [
        ((0, 8, 9), None, [(0, 8, 2), (9, 16, 1)], 0, 0.0),
        ((1, 2), 100, [(0, 8, 2)], 0, 0.0),
        ((3,), 4, [(0, 4, 1), (5, 8, 0)], 0, 0.0),
        ((10, 30), 20, [(0, 8, 0), (9, 16, 1), (17, 20, 0), (21, 32, 1)], 1, 0.25),
        ((16, 16, 17), 16, [(0, 8, 0), (9, 16, 2), (17, 32, 1)], 1, 1 / 49),
        ((0, 0), 8, [(0, 8, 2)], 0, 0.0),
    ],
)
def test_distribution(
    lengths: tuple[int, ...], max_length: int | None, bins: list[Any], truncated: int, lost_share: float
) -> None:
    """Bins double in width, the limit always ends one, and what is beyond it is counted."""
    found = distribution(lengths_of(*lengths), max_length)
    assert [(each.low, each.high, each.count) for each in found.bins] == bins
    assert found.truncated == truncated
    assert found.lost_share == pytest.approx(lost_share)


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=60), st.none() | st.integers(1, 100_000))
def test_every_text_is_in_one_bin(values: list[int], max_length: int | None) -> None:
    """The bins follow one another without a gap and hold all texts between them."""
    found = distribution(lengths_of(*values), max_length)
    assert sum(each.count for each in found.bins) == len(values)
    assert found.bins[0].low == 0
    assert all(after.low == before.high + 1 for before, after in zip(found.bins, found.bins[1:], strict=False))
    assert found.longest == max(values) <= found.bins[-1].high


def test_no_texts() -> None:
    """Without texts there is nothing to summarise, and no division by zero."""
    assert distribution(lengths_of(), 8).bins == ()
    assert longest_texts(lengths_of()) == []


@pytest.mark.parametrize(
    ("lengths", "positions"),
    [((5,), [0]), ((1, 9, 5, 7), [1, 3, 2]), ((4, 4, 4, 4, 4), [0, 1, 2]), ((2, 9, 2, 2), [1, 0, 2])],
)
def test_longest_texts(lengths: tuple[int, ...], positions: list[int]) -> None:
    """The three longest, of equals the first."""
    assert longest_texts(lengths_of(*lengths)) == positions


def test_sizes() -> None:
    """A final file is float32 with a header; on the way, chunks and staged texts lie beside it."""
    assert final_bytes(1000, 4 * 384) == 1000 * 384 * 4 + 128
    assert disk_bytes(rows=1000, texts_left=900, dimension=10, table_bytes=77) == (1000 + 900) * 40 + 77
    assert memory_bytes(3 * GIB, GIB, workers=2, computing=0) == 8 * GIB
    assert memory_bytes(3 * GIB, GIB, workers=3, computing=2) == 14 * GIB
    assert gpu_bytes(3 * GIB, GIB, per_device=2) == 9 * GIB


@pytest.mark.parametrize(
    ("stored", "asked", "factor"),
    [("bfloat16", "auto", 1), ("bfloat16", "float32", 2), ("float32", "float16", 0.5), (None, "float16", 1)],
)
def test_weights_in_memory(stored: str | None, asked: str, factor: float) -> None:
    """Weights grow and shrink with the dtype asked for, where the stored one is known."""
    assert ModelFolder(dtype=stored, weights_bytes=1000).loaded_bytes(asked) == 1000 * factor


@pytest.mark.parametrize(
    ("chunks", "size", "most", "every"),
    [(10, 1000, 10_000, 1), (11, 1000, 10_000, 2), (5000, 1000, 1_000_000, 5), (1, 5_000_000, 1_000_000, 1)],
)
def test_which_chunks_are_measured(chunks: int, size: int, most: int, every: int) -> None:
    """All of them, until there are too many texts."""
    assert stride(chunks, size, most) == every


def test_rate_is_the_last_one() -> None:
    """The latest commit that had a rate counts; a result found at a resume has none."""
    rates = (3.0, 5.5, None)
    entries = [Entry(1, "r", ChunkCommitted("a", 0, 1, 1, 1, 1, texts_per_s=rate)) for rate in rates]
    assert last_rate([*entries, Entry(2, "r", Note("x"))]) == 5.5
    assert last_rate(entries[2:]) is None


def test_scaled() -> None:
    """A count among a part stands for the whole."""
    assert scaled(7, measured=100, total=1000) == 70
    assert scaled(0, measured=0, total=0) == 0


def transformer(path: str = "") -> dict[str, str]:
    """The first entry of a modules.json."""
    return {"type": "sentence_transformers.models.Transformer", "path": path}


POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
DENSE = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}


@pytest.mark.parametrize(
    ("files", "dimension"),
    [
        ({"config.json": {"hidden_size": 384}}, 384),
        ({"config.json": {"d_model": 512}}, 512),
        ({"config.json": {"text_config": {"hidden_size": 640}}}, 640),
        ({"modules.json": [transformer("0_T")], "0_T/config.json": {"hidden_size": 100}}, 100),
        ({"modules.json": [transformer(), POOLING], "config.json": {"hidden_size": 10}}, 10),
        (
            {
                "modules.json": [transformer(), POOLING],
                "config.json": {"hidden_size": 10},
                "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True},
            },
            20,
        ),
        (
            {
                "modules.json": [transformer(), POOLING],
                "1_Pooling/config.json": {"embedding_dimension": 7, "pooling_mode": ["cls", "max", "mean"]},
            },
            21,
        ),
        (
            {
                "modules.json": [transformer(), POOLING, DENSE],
                "config.json": {"hidden_size": 10},
                "2_Dense/config.json": {"out_features": 64},
            },
            64,
        ),
        ({"modules.json": [transformer(), {"type": "their.Own", "path": ""}], "config.json": {"hidden_size": 1}}, None),
        ({"config.json": ["no mapping"], "modules.json": {"no": "list"}}, None),
        ({}, None),
    ],
)
def test_dimension_from_the_folder(tmp_path: Path, files: dict[str, Any], dimension: int | None) -> None:
    """The dimension follows from the modules' JSON files; what is strange is unknown, not guessed."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    assert read_model_folder(tmp_path).dimension == dimension


def test_weights_from_the_folder(tmp_path: Path) -> None:
    """Weights in the safe format count; those in the old one only where there are no others."""
    (tmp_path / "config.json").write_text('{"torch_dtype": "float16"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 100)
    assert read_model_folder(tmp_path).weights_bytes == 100
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"x" * 30)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"x" * 20)
    found = read_model_folder(tmp_path)
    assert (found.weights_bytes, found.dtype) == (50, "float16")
    (tmp_path / "model.fp16.safetensors").write_bytes(b"x" * 25)  # the same once more, under a name that nobody loads
    assert read_model_folder(tmp_path).weights_bytes == 50


def safetensors(*dtypes: str) -> bytes:
    """The header of a file of weights."""
    tensors = {f"layer.{number}": {"dtype": dtype, "shape": [1]} for number, dtype in enumerate(dtypes)}
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    ("model", "config", "weights", "dtype"),
    [
        ({}, {"torch_dtype": "bfloat16"}, [safetensors("F32")], "bfloat16"),
        ({}, {"dtype": "float32"}, [], "float32"),
        ({}, {}, [safetensors("I64", "F32", "F32")], "float32"),
        ({}, {}, [safetensors("F32"), safetensors("BF16")], None),
        ({}, {}, [safetensors("I64")], None),
        ({}, {}, [b"\xff" * 100], None),
        ({}, {}, [b"{}"], None),
        ({}, {}, [], None),
        ({"dtype": "float32"}, {"dtype": "bfloat16"}, [], "float32"),
        ({"dtype": "float32"}, {"quantization_config": {"bits": 4}}, [], None),
        ({"dtype": "float32", "kwargs": {"model_kwargs": {"dtype": "float16"}}}, {}, [], None),
        ({"dtype": "float32", "kwargs": {"backend": "onnx"}}, {}, [], None),
        ({"dtype": "float32", "kwargs": {"attn_implementation": "eager"}}, {}, [], "float32"),
    ],
)
def test_computed_dtype(
    tmp_path: Path, model: dict[str, Any], config: dict[str, Any], weights: list[bytes], dtype: str | None
) -> None:
    """What a worker computes in follows from the config and the model's files, or is not known."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    for number, content in enumerate(weights):
        (tmp_path / f"model-{number}-of-{len(weights)}.safetensors").write_bytes(content)
    assert computed_dtype(ModelConfig(name="m", **model), str(tmp_path)) == dtype
    assert computed_dtype(ModelConfig(name="m", **model), None) is None


@pytest.mark.parametrize(
    ("model", "stored", "needed"),
    [
        ({}, {"dtype": "float16"}, (1 << 28) + 100),
        ({"dtype": "float32"}, {"dtype": "float16"}, (1 << 28) + 200),
        ({"kwargs": {"backend": "onnx"}}, {}, 0),
        ({"kwargs": {"model_kwargs": {"device_map": "auto"}}}, {}, 0),
        ({}, {"quantization_config": {"bits": 4}}, 0),
    ],
)
def test_what_a_gpu_has_to_have_free(
    tmp_path: Path, model: dict[str, Any], stored: dict[str, Any], needed: int
) -> None:
    """Context and weights, as far as the files on disk tell; of a plug-in, and of a folder without weights, nothing."""
    config = ModelConfig(name=str(tmp_path), **model)
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert gpu_need_bytes(config, None) == gpu_need_bytes(config, str(tmp_path)) == 0
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    assert gpu_need_bytes(config, str(tmp_path)) == needed


def output(**changes: Any) -> OutputForecast:
    """Of an output with one text that is too long."""
    lengths = lengths_of(*[10] * 999, 5000)
    values: dict[str, Any] = {
        "rows": 1_234_567,
        "distinct_texts": 1000,
        "duplicate_share": 0.5,
        "chunks": 10,
        "chunks_done": 4,
        "chunk_size": 100,
        "texts_left": 600,
        "texts_measured": 1000,
        "length_unit": Unit.TOKENS,
        "max_length": 512,
        "lengths": distribution(lengths, 512),
        "longest": (LongText(5000, 999, "/a/very/long/path" * 8 + "/rows.jsonl:1000"),),
        "batch_rows": 32,
        "batch_tokens": 4096,
        "batches": 40,
        "padding_share": 0.125,
        "dimension": 384,
        "final_bytes": 5 * GIB,
        "disk_bytes": 7 * GIB,
        "activation_bytes": GIB,
    }
    return OutputForecast(**(values | changes))


def forecast(*outputs: OutputForecast, **changes: Any) -> Forecast:
    """Of a config with these outputs."""
    values: dict[str, Any] = {
        "outputs": {f"out{number}": each for number, each in enumerate(outputs)},
        "peak_disk_bytes": 7 * GIB,
        "final_disk_bytes": 5 * GIB,
        "free_disk_bytes": 100 * GIB,
        "weights_bytes": 3 * GIB,
        "workers": 2,
        "per_gpu": True,
        "host_memory_bytes": 8 * GIB,
        "total_memory_bytes": 64 * GIB,
        "gpu_memory_bytes": 5 * GIB,
        "texts_per_s": 10.0,
        "time_s": 60.0,
        "notes": (),
    }
    return Forecast(**(values | changes))


@pytest.mark.parametrize("blocks", [True, False])
def test_drawing(blocks: bool) -> None:
    """Everything is said, the limit is marked where it cuts, and no line is wider than a terminal."""
    note = "a long note " * 20
    lines = list(draw(forecast(output(), notes=(note,)), blocks=blocks))
    text = "\n".join(lines)
    assert max(map(len, lines)) <= WIDTH
    assert text.isascii() != blocks
    for part in [
        "out0: 1,234,567 rows, 1,000 distinct texts, 50.0 % of the rows repeat a text",
        "tokens of a text: median 10, 95 % up to 10, longest 5,000",
        "0.1 % of the texts are cut, and with them 29.9 % of all tokens",
        "/rows.jsonl:1000",
        "batches  40; 12.5 % of the work is padding",
        "a batch  at most 32 texts and 4,096 padded tokens",
        "10 of 100 texts, 4 of them done",
        "1,234,567 rows x 384, 5.0 GiB",
        "up to 7.0 GiB more while it runs, 5.0 GiB of final files; 100.0 GiB",
        "about 8.0 GiB of 64.0 GiB for each GPU, an estimate: 2 workers",
        "(workers.per_device and standby together), each with 1 GiB for its",
        "libraries and 3.0 GiB of weights\n",
        "GPU     about 5.0 GiB of each GPU, an estimate: 0.5 GiB for CUDA, 3.0 GiB of",
        "weights, and 1.0 GiB for the largest batch",
        "time    about 60 s of computing: 600 texts at the 10 texts/s (12,346 rows/s) of",
        "the last run; before it, the source is read and the model loaded",
    ]:
        assert part in text
    marked = next(number for number, line in enumerate(lines) if "max_length 512" in line)
    assert "257 - 512" in lines[marked - 1]
    assert "513 - 1,024" in lines[marked + 1]
    bars = [line[21:60].strip() for line in lines if " - " in line]
    assert [len(bar) for bar in bars if bar] == [39, 1], "the one long text of a thousand still shows"


@pytest.mark.parametrize(
    ("changed", "changes", "expected"),
    [
        ({"dimension": None, "final_bytes": None, "disk_bytes": None}, {}, "the dimension is unknown until a run"),
        ({"rows": 1000}, {"texts_per_s": 9.5}, "about 60 s of computing: 600 texts at the 9.5 texts/s of the last"),
        (
            {},
            {"peak_disk_bytes": None},
            "disk    unknown until a run has made a chunk; 100.0 GiB are free",
        ),
        (
            {},
            {"host_memory_bytes": None, "weights_bytes": None},
            "memory  unknown until a run has downloaded the weights",
        ),
        ({}, {"gpu_memory_bytes": None, "per_gpu": False}, "for the largest batch\n"),
        ({}, {"gpu_memory_bytes": None, "batches_at_once": 4}, "computes up to 4 at a time\n"),
        ({}, {"texts_per_s": None, "time_s": None}, "time    unknown until a run has a rate"),
        ({}, {"time_s": 0.0}, "time    nothing is left to be done"),
        ({"max_length": 8000}, {"lengths": None}, "no text is longer than the 8,000 tokens that the model reads"),
        ({"rows_empty": 1_234_567}, {}, "  empty    1,234,567 rows, with one vector for all; `where` leaves them out"),
        ({"batch_rows": 4096}, {}, "a batch  at most 4,096 padded tokens\n"),
        ({"batch_tokens": None, "batches": None, "padding_share": None}, {}, "a batch  at most 32 texts\n"),
        ({"length_unit": Unit.CHARACTERS, "max_length": None}, {}, "characters of a text: median 10"),
    ],
)
def test_what_is_unknown_is_said(changed: dict[str, Any], changes: dict[str, Any], expected: str) -> None:
    """Nothing is made up where nobody can know, and what does not apply is left out."""
    if "lengths" in changes:
        changes = {}
        changed = changed | {"lengths": distribution(lengths_of(*[10] * 999, 5000), 8000)}
    assert expected in "\n".join(draw(forecast(output(**changed), **changes)))
