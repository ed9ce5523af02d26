"""What a plug-in returns: checked, and brought to float32 where that loses nothing that a vector needs."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec
from chunkvisor_worker.plugin import PluginEncoder, PluginError
from chunkvisor_worker.progress import BeatWriter


def vectors(monkeypatch: pytest.MonkeyPatch, returned: Any) -> np.ndarray:
    """What an encoder makes of nine texts, one a batch, whose plug-in answers each call with rows of `returned`."""
    module = ModuleType("returning")
    module.encode = lambda texts, _: np.repeat(returned, len(texts), axis=0)  # type: ignore[attr-defined]  # a plug-in
    module.make = lambda model, device: module  # type: ignore[attr-defined]  # a plug-in
    monkeypatch.setitem(sys.modules, "returning", module)
    encoder = PluginEncoder(ModelSpec("any", encoder="returning:make"), EncodeSpec(), "cpu", ())
    monkeypatch.setattr("chunkvisor_worker.progress.write_beat", lambda *_: None)
    progress = BeatWriter(Path())
    encoder.load(progress)
    encoder.tokenize(["text"] * 9, progress)
    encoder.start(progress)
    return np.concatenate([rows for _, rows in encoder.encode(Limits(rows=1), progress)])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_converted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dtype: type[np.floating[Any]]
) -> None:
    """float16 and float64 become float32, float16 exactly, and the log says so once."""
    row = np.array([[0.1, -2.5, 65504.0, 6e-8]], dtype=dtype)
    found = vectors(monkeypatch, row)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.repeat(row.astype(np.float32), 9, axis=0))
    assert capsys.readouterr().out.count("converted to float32") == (dtype is not np.float32)


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex64", "U3", "object"])
def test_other_types_are_refused(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Anything else is the plug-in's fault, and no text's."""
    with pytest.raises(PluginError, match="returned an array of"):
        vectors(monkeypatch, np.ones((1, 3)).astype(dtype))
