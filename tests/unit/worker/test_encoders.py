"""What a plug-in may return."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from chunkvisor_worker.contract.messages import Limits, ModelSpec
from chunkvisor_worker.liveness import BeatWriter
from chunkvisor_worker.plugin import PluginEncoder, PluginError
from late import needs


def vectors(monkeypatch: pytest.MonkeyPatch, folder: Path, returned: Any) -> np.ndarray:
    """What an encoder makes of nine texts, one a batch, whose plug-in answers each call with rows
    of `returned`.
    """
    module: Any = ModuleType("returning")
    module.encode = lambda texts, _: np.repeat(returned, len(texts), axis=0)
    module.make = lambda model, device: module
    monkeypatch.setitem(sys.modules, "returning", module)
    encoder = PluginEncoder(ModelSpec("any", encoder="returning:make"), "cpu", ())
    progress = BeatWriter(folder / "beat.json")
    encoder.load(progress)
    encoder.tokenize(["text"] * 9, progress)
    encoder.start(progress)
    return np.concatenate([rows for _, rows in encoder.encode(Limits(rows=1), progress)])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_converted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: Any) -> None:
    """float16 and float64 become float32, float16 exactly."""
    row = np.array([[0.1, -2.5, 65504.0, 6e-8]], dtype=dtype)
    found = vectors(monkeypatch, tmp_path, row)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.repeat(row.astype(np.float32), 9, axis=0))


@pytest.mark.parametrize("dtype", ["int8", "complex64", "object"])
def test_other_types_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str
) -> None:
    """Anything else is the plug-in's fault, and no text's."""
    with pytest.raises(PluginError, match="returned an array of"):
        vectors(monkeypatch, tmp_path, np.ones((1, 3)).astype(dtype))


@needs("transformers")
@pytest.mark.parametrize(
    ("dtype", "capability", "grouped"),
    [("float32", (9, 0), False), ("bfloat16", (9, 0), True), ("float16", (7, 5), False)],
)
def test_sdpa_hears_of_grouped_queries_if_a_fused_kernel_takes_them(
    monkeypatch: pytest.MonkeyPatch, dtype: str, capability: tuple[int, int], grouped: bool
) -> None:
    """In float32, and before Ampere, they would go to the math kernel."""
    import torch
    from transformers.integrations import sdpa_attention

    from chunkvisor_worker.sentence_transformer import repeat_keys_without_fused_kernel

    before = sdpa_attention.use_gqa_in_sdpa
    monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", before)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    repeat_keys_without_fused_kernel(getattr(torch, dtype))
    assert (sdpa_attention.use_gqa_in_sdpa is before) is grouped
    assert grouped or sdpa_attention.use_gqa_in_sdpa(None, None, None) is False
