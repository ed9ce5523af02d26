"""What both sides look for in this machine's processor."""

from collections.abc import Set
from pathlib import Path

X86 = "sse2"
"""A flag of every x86 of 64 bits."""
_INT8 = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Flags, one of which an x86 has that adds up products in int8 in one instruction."""


def processor_flags() -> frozenset[str]:
    """Words of /proc/cpuinfo, flags among them; none where it cannot be read."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return frozenset()


def lacks_int8(flags: Set[str]) -> bool:
    """Whether products in int8 are surely slower on it than those in float32; of other processors nothing is known."""
    return X86 in flags and _INT8.isdisjoint(flags)
