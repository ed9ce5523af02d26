"""A plug-in that says its secrets wherever it can, and fails in the way that the text names."""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

ERRORS: dict[str, Callable[[str], Exception]] = {
    "disk": partial(OSError, 28),
    "busy": ConnectionError,
    "memory": MemoryError,
    "device": RuntimeError,
}


class Leaky:
    """Encodes texts that name no way of failing."""

    def __init__(self, secrets: str) -> None:
        self._secrets = secrets

    def encode(self, texts: list[str], batch_size: int) -> np.ndarray:
        """Fail as a text asks, after printing the secrets."""
        print("on stdout", self._secrets)
        os.write(2, f"on descriptor 2 {self._secrets}\n".encode())
        for text in texts:
            if text == "raise":
                try:
                    raise KeyError(self._secrets)
                except KeyError as error:
                    raise RuntimeError(f"refused: {self._secrets}") from error
            if text == "exit":
                os._exit(3)
            if text == "abort":
                os.abort()
            if text == "hang":
                signal.pause()
            if text in ERRORS:
                raise ERRORS[text](f"CUDA error 700: {self._secrets}")
        vectors = np.ones((len(texts), 2), dtype=np.float32)
        vectors[[text == "nan" for text in texts]] = np.nan
        return vectors


def make(model: Any, device: str) -> Leaky:
    """Its secrets are those of its arguments and of its environment."""
    given = [
        model.kwargs["headers"]["Authorization"],
        model.kwargs["base_url"],
        model.kwargs["apiKey"],
        os.environ["API_TOKEN"],
        os.environ["HF_TOKEN"],
    ]
    assert not any(each.startswith("sha256:") for each in given)
    secrets = " and ".join(given)
    if model.kwargs.get("fails") == "import":
        raise ModuleNotFoundError(f"No module named {secrets}", name="nothing")
    if model.kwargs.get("fails") == "load":
        sys.exit(f"not loaded: {secrets}")
    return Leaky(secrets)
