"""Calls a user's own encoder, named `package.module:factory` in the config."""

import importlib
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from chunkvisor_worker.batching import NONE_CUT, Indices, Vectors
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, Limits, ModelSpec, Phase
from chunkvisor_worker.liveness import BeatWriter

BATCHES_PER_CALL = 4  # batches in a call of `encode`: few, so that progress shows


class BadOutputError(Exception):
    """The encoder returned something else than one float32 vector a text."""


class PluginError(Exception):
    """The plug-in cannot be found, or is not one."""


class PluginEncoder:
    """Calls the user's encoder slice by slice, and checks what it returns (see `job`)."""

    def __init__(self, model: ModelSpec, device: str, import_path: tuple[str, ...]) -> None:
        self._model = model
        self.encode_spec = EncodeSpec()
        self._device = device
        self._import_path = import_path
        self._factory: Callable[[ModelSpec, str], Any] | None = None
        self._encoder: Any = None
        self._texts: list[str] = []
        self._dimension = 0

    def load(self, progress: BeatWriter) -> None:
        """Import the plug-in's module; `start` calls the factory, which may want the device.

        Raises PluginError.
        """
        progress.phase(Phase.IMPORT)
        if self._factory is not None:
            return
        sys.path[:0] = self._import_path
        module_name, _, attribute = self._model.encoder.partition(":")
        factory = getattr(importlib.import_module(module_name), attribute, None)
        if not callable(factory):
            raise PluginError(f"module {module_name} has no factory {attribute!r}")
        self._factory = factory

    def tokenize(self, texts: list[str], progress: BeatWriter) -> None:
        """Take the texts in, with the prompt before each."""
        prompt = self.encode_spec.prompt or ""
        self._texts = [prompt + text for text in texts] if prompt else texts
        progress.tick()

    def start(self, progress: BeatWriter) -> None:
        """Call the factory."""
        progress.phase(Phase.MODEL_LOAD)
        assert self._factory is not None
        self._encoder = self._factory(self._model, self._device)

    def texts_cut(self) -> Indices:
        """Return none: a plug-in does not say."""
        return NONE_CUT

    def encode(self, limits: Limits, progress: BeatWriter) -> Iterator[tuple[Indices, Vectors]]:
        """Yield vectors, of some batches at a time.

        Raises BadOutputError or PluginError if the plug-in returns something else.
        """
        step = 1 if limits.one_text_per_call else limits.rows * BATCHES_PER_CALL
        for first in range(0, len(self._texts), step):
            if progress.leaving:
                return
            texts = self._texts[first : first + step]
            indices = np.arange(first, first + len(texts), dtype=np.int64)
            progress.batch(indices, 0, min(limits.rows, len(texts)))
            vectors = self._finish(self._encoder.encode(texts, limits.rows), len(texts))
            progress.advance(len(texts), 0, 0)
            yield indices, vectors

    def facts(self) -> Facts:
        """Return the dimension, and versions; torch's only if it is loaded anyway."""
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        torch = sys.modules.get("torch")
        if torch:
            versions["torch"] = str(torch.__version__)
        return Facts(self._dimension, "", self._model.max_length, versions)

    def release(self) -> bool:
        """Call the plug-in's `release`; without it, a GPU is free when this process ends."""
        release = getattr(self._encoder, "release", None)
        if callable(release):
            release()
            return True
        return self._device == "cpu"

    def _finish(self, returned: object, count: int) -> Vectors:
        """Check what the plug-in returned, and make it float32, truncated, normalized as asked."""
        if not isinstance(returned, np.ndarray):
            raise BadOutputError(f"encode() returned {type(returned).__name__}, not a numpy array")
        if returned.dtype not in (np.float32, np.float16, np.float64):
            raise PluginError(
                f"encode() returned an array of {returned.dtype}, not of float32, float16 or "
                "float64"
            )
        if returned.ndim != 2 or len(returned) != count or not returned.shape[1]:
            raise BadOutputError(f"encode() returned shape {returned.shape} for {count} texts")
        with np.errstate(over="ignore"):  # the parent finds an infinity
            vectors: Vectors = returned.astype(np.float32, copy=False)
        width = self.encode_spec.truncate_dim
        if width:
            if width > vectors.shape[1]:
                raise BadOutputError(
                    f"encode.truncate_dim is {width}, the vectors have {vectors.shape[1]} "
                    "dimensions"
                )
            vectors = vectors[:, :width]
        if self.encode_spec.normalize:
            # torch divides by at least this as well.
            lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            vectors = (vectors / lengths).astype(np.float32)
        self._dimension = vectors.shape[1]
        return vectors
