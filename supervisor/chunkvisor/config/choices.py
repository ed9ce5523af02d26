"""Keys that take one of a few words: the words."""

from enum import StrEnum


class Dtype(StrEnum):
    """Of the model's weights on the device; AUTO is the checkpoint's own."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class EngineKind(StrEnum):
    """Where workers run."""

    LOCAL = "local"
    """On this machine."""
    RAY = "ray"
    """On the nodes of a Ray cluster."""


class Start(StrEnum):
    """How a worker starts."""

    FRESH = "fresh"
    """A new interpreter."""
    WARM = "warm"
    """Forked from a template process that has loaded the model; a retry is fresh all the same."""
    AUTO = "auto"
    """WARM where it works, FRESH where it does not."""


class OnBadRow(StrEnum):
    """What to do with a row that the model cannot encode."""

    QUARANTINE = "quarantine"
    FAIL = "fail"


class FinalFormat(StrEnum):
    """How the rows of a final are written; `assemble.formats` has one module for each."""

    NPY = "npy"
    PARQUET = "parquet"


class FinalDtype(StrEnum):
    """Of the numbers in a final."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"
    """Each dimension's range over the whole output in 256 steps."""
    UBINARY = "ubinary"
    """One bit a dimension, eight in a byte: whether it is greater than 0."""

    @property
    def is_float(self) -> bool:
        """Whether a row without a vector can be NaN; it is zero in the others."""
        return self in (FinalDtype.FLOAT32, FinalDtype.FLOAT16)
