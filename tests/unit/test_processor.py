"""What the flags of a processor say of bfloat16."""

import pytest

from chunkvisor.devices.gpu import has_bfloat16


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        ("sse2 avx2", False),
        ("sse2 avx2 avx512f", False),
        ("sse2 avx2 avx512f avx512_bf16", True),
        ("fp asimd", False),
        ("fp asimd bf16", True),
        ("", False),
    ],
)
def test_bfloat16(flags: str, has: bool) -> None:
    """A CPU multiplies in it, or only converts to it."""
    assert has_bfloat16(frozenset(flags.split())) is has
