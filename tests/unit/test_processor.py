"""What the flags of a processor say of bfloat16, and which configs that refuses."""

from pathlib import Path
from typing import Any

import pytest

from chunkvisor.config.model import Config
from chunkvisor.devices.processor import has_bfloat16, lacks_openvino_bfloat16
from chunkvisor.errors import Halt
from chunkvisor.observe import extras
from chunkvisor_worker.contract.processor import lacks_int8


@pytest.mark.parametrize(
    ("flags", "has", "refused"),
    [
        ("sse2 avx2", False, True),
        ("sse2 avx2 avx512f", False, False),
        ("sse2 avx2 avx512f avx512_bf16", True, False),
        ("sse2 avx2 avx_vnni_int8 avx_ne_convert", False, False),
        ("fp asimd", False, False),
        ("fp asimd bf16", True, False),
        ("", False, False),
    ],
)
def test_bfloat16(flags: str, has: bool, refused: bool) -> None:
    """A CPU multiplies in it, or only converts to it; OpenVINO is taken to lack it on an x86 alone."""
    words = frozenset(flags.split())
    assert has_bfloat16(words) is has
    assert lacks_openvino_bfloat16(words) is refused


@pytest.mark.parametrize(
    ("flags", "lacks"),
    [
        ("sse2 avx2", True),
        ("sse2 avx512f", True),
        ("sse2 avx512f avx512_vnni", False),
        ("sse2 avx2 avx_vnni", False),
        ("sse2 amx_int8", False),
        ("fp asimd", False),
        ("", False),
    ],
)
def test_int8(flags: str, lacks: bool) -> None:
    """An x86 lacks it without VNNI and AMX; of others nothing is said."""
    assert lacks_int8(frozenset(flags.split())) is lacks


@pytest.mark.parametrize(
    ("flags", "dtype", "backend", "refused"),
    [
        ("sse2", "bfloat16", "openvino", True),
        ("sse2 avx512f", "bfloat16", "openvino", False),
        ("sse2", "auto", "openvino", False),
        ("sse2", "bfloat16", "torch", False),
    ],
)
def test_openvino_in_bfloat16_is_refused_before_the_conversion(
    flags: str, dtype: str, backend: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what run, plan and doctor call first."""
    monkeypatch.setattr(extras, "processor_flags", lambda: frozenset(flags.split()))
    monkeypatch.setattr(extras, "find_spec", lambda name: name)
    keys: dict[str, Any] = {"model": {"name": "m/m", "dtype": dtype, "backend": backend}, "device": "cpu"}
    config = Config.model_validate(
        {"workdir": str(tmp_path), "outputs": {"a": {"source": "a.txt"}}, **keys}, context={"folder": tmp_path}
    )
    if not refused:
        extras.require_extras(config)
        return
    with pytest.raises(Halt, match="bfloat16") as halt:
        extras.require_extras(config)
    assert halt.value.code == 78
