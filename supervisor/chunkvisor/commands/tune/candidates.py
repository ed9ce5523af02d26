"""What is tried: settings of the config's keys, in rounds that each begin with the best of the one before. Pure."""

from dataclasses import dataclass, replace

from chunkvisor.config.choices import Dtype


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to encode; the fields are keys of the config."""

    dtype: str
    """`model.dtype`; never auto, which means another thing for each checkpoint."""
    batch_tokens: int | str = "auto"
    """`encode.batch_tokens`."""
    per_device: int = 1
    """`workers.per_device`."""

    def __str__(self) -> str:
        workers = f", {self.per_device} workers" if self.per_device > 1 else ""
        return f"{self.dtype}, batch_tokens {self.batch_tokens}{workers}"

    def values(self) -> dict[tuple[str, str], int | str]:
        """Section and key of the config -> value."""
        return {
            ("model", "dtype"): self.dtype,
            ("encode", "batch_tokens"): self.batch_tokens,
            ("workers", "per_device"): self.per_device,
        }


BASELINE = Candidate(str(Dtype.FLOAT32))
"""What the others are compared with: vectors of single precision."""

_DTYPES = {"cpu": (Dtype.BFLOAT16,), "cuda": (Dtype.BFLOAT16, Dtype.FLOAT16)}
"""Beside float32. On a CPU float16 has no kernels of its own and is slower than float32."""

_TOKENS = {"cpu": (1024, 4096, 8192), "cuda": (8192, 16384, 65536)}
"""Around what `auto` is: 2,048 on a CPU; on a GPU 32,768, cut to what fits the memory."""


def dtypes(kind: str, *, bfloat16: bool, fixed: str | None) -> list[Candidate]:
    """The first round, on a CPU with `bfloat16` only where told so.

    With `fixed`, only that dtype, since outputs that have begun keep theirs.
    """
    if fixed is not None:
        return [replace(BASELINE, dtype=fixed)] if fixed != BASELINE.dtype else []
    return [replace(BASELINE, dtype=str(dtype)) for dtype in _DTYPES[kind] if bfloat16 or kind != "cpu"]


def budgets(kind: str, best: Candidate) -> list[Candidate]:
    """The second round: other token budgets."""
    return [replace(best, batch_tokens=tokens) for tokens in _TOKENS[kind]]


def crowds(best: Candidate, cores: int) -> list[Candidate]:
    """The third round: two workers on the device, where there are cores for both."""
    return [replace(best, per_device=2)] if cores >= 2 else []
