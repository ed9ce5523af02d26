"""Says in which dtype a model is to compute on a GPU, and why. Every warning and every remedy about it asks here.

Cards before Ampere (compute capability 8.0) do not have bfloat16: torch emulates it, and sdpa computes attention by the
math kernel, which holds the scores of all pairs of tokens: 7 GiB for one text of 8,192 tokens and 12 heads. float16 is
as small, but its range is smaller too, and models that were trained in bfloat16 leave it: their vectors become NaN
(infinity#328, Qwen3-Embedding#164, unsloth#4014).
"""

from dataclasses import dataclass
from typing import NamedTuple

from chunkvisor.config.choices import Dtype

AMPERE = (8, 0)
_OVERFLOWING = ("qwen", "gemma", "mistral")
_HALF = (Dtype.FLOAT16, Dtype.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, as far as dtypes are concerned."""

    name: str
    capability: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name or 'the GPU'} (compute capability {'.'.join(map(str, self.capability))})"


class Advice(NamedTuple):
    """The dtype to take."""

    dtype: Dtype
    why: str


def advised_dtype(model_type: str | None, card: Card) -> Advice:
    """Advise the smallest dtype that gives right vectors; `model_type` is that of config.json, None = not known."""
    if card.capability >= AMPERE:
        return Advice(Dtype.BFLOAT16, "it has the range of float32 in half the memory")
    if model_type is None:
        return Advice(Dtype.FLOAT32, "the card does not have bfloat16, and float16 may overflow to NaN in this model")
    if _overflows(model_type):
        why = f"the card does not have bfloat16, and models of the kind {model_type} overflow to NaN in float16"
        return Advice(Dtype.FLOAT32, why)
    return Advice(Dtype.FLOAT16, "the card does not have bfloat16")


def _overflows(model_type: str) -> bool:
    return any(family in model_type.lower() for family in _OVERFLOWING)


def lacks(dtype: str | None, card: Card) -> bool:
    """Whether the card does not have the dtype, so that torch emulates it."""
    return dtype == Dtype.BFLOAT16 and card.capability < AMPERE


def unfit_dtype(dtype: str | None, model_type: str | None, card: Card) -> tuple[str, str] | None:
    """Say why a model that computes in this dtype should not, and what to do; None if it may, or it is not known."""
    advice = advised_dtype(model_type, card)
    mend = f"set model.dtype to {advice.dtype}: {advice.why}"
    if lacks(dtype, card):
        emulated = "attention is emulated, slowly, and needs memory for all pairs of tokens of a text"
        return f"the model computes in bfloat16, which {card} does not have: {emulated}", mend
    if dtype == Dtype.FLOAT16 and model_type is not None and _overflows(model_type):
        return f"the model computes in float16, in which models of the kind {model_type} overflow to NaN", mend
    return None


def less_memory(dtype: str | None, model_type: str | None, card: Card) -> str:
    """What another dtype does against a lack of memory, as a sentence; empty if none helps, or it is not known."""
    advice = advised_dtype(model_type, card)
    if dtype is None or dtype == advice.dtype or (dtype in _HALF and not lacks(dtype, card)):
        return ""
    gain = "half the memory" if advice.dtype in _HALF and dtype not in _HALF else "less memory for long texts"
    other = "in another workdir, since it gives other vectors"
    return f"On {card}, model.dtype {advice.dtype} takes {gain} ({other}): {advice.why}."
