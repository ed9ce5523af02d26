"""In which dtype a model computes on a GPU, by the card and the model's family."""

import re

import pytest

from chunkvisor import words as words_of
from chunkvisor.commands.tune import other_dtypes
from chunkvisor.devices.dtypes import Card, advised_dtype, less_memory, unfit_dtype
from chunkvisor.devices.gpu import CPU, Device, weakest
from chunkvisor_worker.contract.rules import RULES

TURING, AMPERE, HOPPER = Card("Quadro RTX 8000", (7, 5)), Card("A100", (8, 0)), Card("H100", (9, 0))
QWEN = "models of the kind qwen2 overflow to NaN in float16"


@pytest.mark.parametrize(
    ("model_type", "card", "dtype", "why"),
    [
        ("qwen2", TURING, "float32", f"the card does not have bfloat16, and {QWEN}"),
        ("qwen3", TURING, "float32", "overflow"),
        (None, TURING, "float32", "may overflow"),
        ("bert", TURING, "float16", "the card does not have bfloat16"),
        ("qwen2", AMPERE, "bfloat16", "range of float32"),
        (None, HOPPER, "bfloat16", "range of float32"),
    ],
)
def test_the_dtype_to_take(model_type: str | None, card: Card, dtype: str, why: str) -> None:
    """Before Ampere float32 for the families that overflow, and float16 for the others; else bfloat16."""
    advice = advised_dtype(model_type, card)
    assert advice.dtype == dtype
    assert why in advice.why


@pytest.mark.parametrize(
    ("dtype", "model_type", "card", "words"),
    [
        ("bfloat16", "qwen2", TURING, ["RTX 8000 (compute capability 7.5) does not have", "float32", QWEN]),
        ("float16", "qwen2", TURING, ["kind qwen2 overflow to NaN", "set model.dtype to float32"]),
        ("float16", "gemma2", HOPPER, ["kind gemma2 overflow to NaN", "set model.dtype to bfloat16"]),
        ("float32", "qwen2", TURING, []),
        ("bfloat16", "qwen2", AMPERE, []),
        (None, "qwen2", TURING, []),
    ],
)
def test_a_dtype_that_does_not_suit(dtype: str | None, model_type: str, card: Card, words: list[str]) -> None:
    """bfloat16 that the card lacks, and float16 that the model leaves: why, and which one to take."""
    found = unfit_dtype(dtype, model_type, card)
    assert (found is None) is (not words)
    assert all(each in "; ".join(found or ()) for each in words), found


@pytest.mark.parametrize(
    ("dtype", "model_type", "card", "words"),
    [
        (
            "float32",
            "bert",
            TURING,
            "On Quadro RTX 8000 (compute capability 7.5), model.dtype float16 takes half the memory",
        ),
        ("float32", "qwen2", AMPERE, "On A100 (compute capability 8.0), model.dtype bfloat16 takes half the memory"),
        ("bfloat16", "qwen2", TURING, "model.dtype float32 takes less memory for long texts"),
        ("bfloat16", "bert", TURING, "model.dtype float16 takes less memory for long texts"),
        ("float32", "qwen2", TURING, ""),
        (None, "bert", HOPPER, ""),
    ],
)
def test_against_a_lack_of_memory(dtype: str | None, model_type: str, card: Card, words: str) -> None:
    """Another dtype is named only if it takes less, and never one that the card lacks."""
    said = less_memory(dtype, model_type, card)
    assert words in said
    assert bool(said) is bool(words)
    assert card is not TURING or not re.search(r"model\.dtype bfloat16", said)


def test_words_that_do_not_know_the_card_name_no_half_precision() -> None:
    """A rule, an entry of the handbook or a last remedy is read on any card."""
    words = [word for rule in RULES for word in (rule.remedy, rule.if_ended)]
    words += [entry.do for entry in words_of.ENTRIES.values()]
    assert not [word for word in words if re.search(r"b?float16", word)]


def test_the_weakest_gpu_decides() -> None:
    """One config has one dtype for all its GPUs; what is not known does not count."""
    devices = [
        Device("cuda", name, name, capability=each) for name, each in [("a", (9, 0)), ("b", (7, 5)), ("c", None)]
    ]
    assert weakest(devices) == Card("b", (7, 5))
    assert weakest([CPU, devices[-1]]) is None


@pytest.mark.parametrize(
    ("model_type", "card", "tried"),
    [
        ("qwen2", TURING, []),
        ("bert", TURING, ["float16"]),
        ("qwen2", AMPERE, ["bfloat16"]),
        ("bert", AMPERE, ["bfloat16", "float16"]),
        ("qwen2", None, ["bfloat16", "float16"]),
    ],
)
def test_tune_tries_what_suits_card_and_model(model_type: str, card: Card | None, tried: list[str]) -> None:
    """The others are named with the reason."""
    notes: list[str] = []
    assert other_dtypes("float32", "cuda", card, model_type, notes) == tried
    assert len(notes) == 2 - len(tried)
    assert all(f"is not tried on {card}: " in words for words in notes)
