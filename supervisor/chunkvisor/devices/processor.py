"""What this machine's processor can do."""

from pathlib import Path

_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})
"""Flags of x86 in /proc/cpuinfo, one of which a processor has that multiplies in bfloat16."""


def has_bfloat16() -> bool:
    """Whether it multiplies in bfloat16; elsewhere that type is emulated, and slower than float32."""
    try:
        return not _BFLOAT16.isdisjoint(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
