"""Random histories of an output whose rows are windows of long texts: each is what its place says, and encoded once."""

import json
import os
import random
from pathlib import Path

import duckdb
import numpy as np
import pytest

from harness import ENCODERS, STAND_IN, Workplace, model_folder, sweep, vector_of

WORDS, SPECIAL, LIMIT = 60, 2, 12
ASKED = ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog."]
"""Of a tokenizer, which has to know a language."""
CALLS = ("os:replace", "os:rename", "os:fsync", "os:unlink", "os:mkdir", "os:write")


def with_tokenizer(folder: Path, *others: str) -> Path:
    """A model's folder for the stand-in, of which each of some words, and of the others, is one token."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = [*special, *others, *(f"w{number}" for number in range(WORDS))]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=LIMIT, **names)
    fast.save_pretrained(model_folder(folder))
    return folder


def config_of(place: Workplace, source: Path, model: Path, **more: object) -> None:
    """One output of windows."""
    place.folder.mkdir()
    path = os.pathsep.join(map(str, (STAND_IN, ENCODERS)))
    output = {"source": str(source), "column": "text", "encode": {"long": "windows"}}
    keys = {"model__name": str(model), "env__PYTHONPATH": path, "outputs": {"out": output}, **more}
    place.write_config("sentence-transformers", **keys)


def some_text(chance: random.Random) -> str:
    """Of no words, or up to four windows of them."""
    length = chance.choice([0, 3, LIMIT - SPECIAL, LIMIT, 30, 40])
    return chance.choice([" ", "  \n"]).join(f"w{chance.randrange(WORDS)}" for _ in range(length))


def changed(texts: list[str], chance: random.Random) -> list[str]:
    """Some are new, edited at their end, gone, twice there, or elsewhere."""
    texts = list(texts)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(texts))
        match chance.choice(["new", "longer", "removed", "moved", "twice"]):
            case "new":
                texts.insert(at, some_text(chance))
            case "longer":
                texts[at] += " w1 w2"
            case "removed" if len(texts) > 2:
                del texts[at]
            case "moved":
                chance.shuffle(texts)
            case "twice":
                texts.insert(0, texts[at])
    return texts


def windows_of(place: Workplace, texts: list[str]) -> list[str]:
    """The windows, in the order of the rows, with what holds for those of any text."""
    table = place.workdir / "out.rows.parquet"
    columns = "row, source_row, start_char, end_char"
    rows = duckdb.execute(f"SELECT {columns} FROM '{table}' ORDER BY row").fetchall()
    assert [row for row, *_ in rows] == list(range(len(rows)))
    assert [source_row for _, source_row, *_ in rows] == sorted(source_row for _, source_row, *_ in rows)
    for number, text in enumerate(texts):
        spans = [(start, end) for _, source_row, start, end in rows if source_row == number]
        assert spans, text
        covered = {at for span in spans for at in range(*span)}
        assert all(at in covered or letter.isspace() for at, letter in enumerate(text))
        assert all(len(text[start:end].split()) <= LIMIT - SPECIAL for start, end in spans)
        assert len(spans) == 1 or len(text.split()) > LIMIT - SPECIAL
    return [texts[source_row][start:end] for _, source_row, start, end in rows]


def test_windows_history(tmp_path: Path, chance: random.Random) -> None:
    """Row i is the vector of window i; an update, killed or not, encodes only windows that have none."""
    place, source = Workplace(tmp_path / "place"), tmp_path / "rows.jsonl"
    config_of(place, source, with_tokenizer(tmp_path / "model", *ASKED), chunk__size=chance.choice([3, 50]))
    texts, known = [some_text(chance) for _ in range(chance.randint(2, 10))], set[str]()
    for step in range(4):
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        options = ["--update"] if step else []
        if chance.random() < 0.5:
            share, when = f"{chance.randint(2, 40)}:{chance.randrange(1 << 32)}", chance.choice(["before", "after"])
            scratch = tmp_path / f"sweep{step}"
            (told,) = sweep("once", when, place.folder, scratch, *CALLS, options=" ".join(options), share=share)
            assert told["returncode"] in (None, 0), told
            place = Workplace(Path(told["folder"]))
        ended = place.here("run", str(place.config_path), *options)
        assert ended.returncode == 0, ended.stderr
        windows = windows_of(place, texts)
        np.testing.assert_array_equal(place.vectors(), np.stack([vector_of(window) for window in windows]))
        manifest = place.manifest()
        assert manifest.get("texts_encoded", manifest["distinct_texts"]) == len(set(windows) - known)
        assert place.here("verify", str(place.workdir)).returncode == 0
        before, known = texts, set(windows)
        while texts == before:
            texts = changed(texts, chance)


def test_tokenizer_that_cannot_count(tmp_path: Path) -> None:
    """One that knows no language is refused, and neither its process nor a pipe to it is left open."""
    place, source = Workplace(tmp_path / "place"), tmp_path / "rows.jsonl"
    config_of(place, source, with_tokenizer(tmp_path / "model"))
    source.write_text(json.dumps({"text": "w1"}) + "\n")
    ended = place.here("run", str(place.config_path))
    assert ended.returncode == 78
    assert "the tokens of the texts cannot be counted" in ended.stderr
