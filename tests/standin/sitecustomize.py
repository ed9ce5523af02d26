"""Stands in for torch and sentence-transformers in workers, for tests of a model's folder and not
of its vectors.

With this folder on PYTHONPATH, Python imports it at its start (see `site`). What the worker then
takes for its encoder reads the pooling of the model's folder, and waits before it loads while
`hold-load` lies beside that folder, and before it encodes a text while `hold-TEXT` does.
"""

import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any


def hold(model: Any, what: str) -> None:
    """Wait while the file is there."""
    while Path(model.path).with_name(f"hold-{what}").exists():
        time.sleep(0.01)


def encoder_class(name: str) -> Any:
    """The stand-in, made when the worker asks for it."""
    if name != "SentenceTransformerEncoder":
        raise AttributeError(name)
    from dataclasses import replace

    import good

    from chunkvisor_worker.plugin import PluginEncoder

    class Pooled(good.Encoder):
        def __init__(self, model: Any) -> None:
            self.model = model
            pooling = json.loads((Path(model.path) / "1_Pooling" / "config.json").read_text())
            self.sign = -1 if pooling.get("pooling_mode") == "cls" else 1

        def encode(self, texts: Any, batch_size: int) -> Any:
            for text in texts:
                hold(self.model, text)
            return super().encode(texts, batch_size) * self.sign  # type: ignore[no-untyped-call] # as people write them

    class StandIn(PluginEncoder):
        def __init__(self, model: Any, device: str) -> None:
            super().__init__(replace(model, encoder="good:make"), device, ())

        def load(self, progress: Any) -> None:
            hold(self._model, "load")
            encoder = Pooled(self._model)
            super().load(progress)
            self._factory = lambda model, device: encoder

    return StandIn


module = ModuleType("chunkvisor_worker.sentence_transformer")
module.__getattr__ = encoder_class  # type: ignore[method-assign] # PEP 562
sys.modules[module.__name__] = module
