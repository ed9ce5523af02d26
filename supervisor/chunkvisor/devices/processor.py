"""What this machine's processor can do."""

from collections.abc import Set

from chunkvisor_worker.contract.processor import X86

_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags in /proc/cpuinfo, one of which a processor has that multiplies in bfloat16; the last is ARM's."""
_OPENVINO = frozenset({"avx512f", "avx_ne_convert"})
"""Flags of x86 without which OpenVINO 2026.4 computes nothing in bfloat16: AVX-512, AVX2-VNNI-2."""

SLOW_BFLOAT16 = "the model computes in bfloat16, for which this CPU has no instructions: slower than float32"
SLOW_INT8 = "the model computes in int8, for which this CPU has neither VNNI nor AMX: slower than float32"


def has_bfloat16(flags: Set[str]) -> bool:
    """Whether it multiplies in bfloat16; elsewhere that type is emulated, and slower than float32."""
    return not _BFLOAT16.isdisjoint(flags)


def lacks_openvino_bfloat16(flags: Set[str]) -> bool:
    """Whether OpenVINO surely computes nothing in bfloat16 on it; a worker asks OpenVINO itself."""
    return X86 in flags and _OPENVINO.isdisjoint(flags)
