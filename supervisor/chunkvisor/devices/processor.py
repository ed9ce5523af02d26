"""What this machine's processor can do."""

from collections.abc import Set
from pathlib import Path

_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags in /proc/cpuinfo, one of which a processor has that multiplies in bfloat16; the last is ARM's."""

SLOW_BFLOAT16 = "the model computes in bfloat16, for which this CPU has no instructions: slower than float32"


def processor_flags() -> frozenset[str]:
    """Words of /proc/cpuinfo, flags among them; none if it cannot be read."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return frozenset()


def has_bfloat16(flags: Set[str]) -> bool:
    """Whether it multiplies in bfloat16; elsewhere that type is emulated, and slower than float32."""
    return not _BFLOAT16.isdisjoint(flags)
