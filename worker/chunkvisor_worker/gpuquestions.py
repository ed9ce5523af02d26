"""Notices code of a model or a plug-in that asks for a GPU where a template shows it none.

It never changes the answer. Whoever builds on that answer would build something else in a forked worker than in a fresh
one: `DEVICE = "cuda" if torch.cuda.is_available() else "cpu"` in a plug-in's module computes on the CPU, say.
"""

import importlib.abc
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_QUESTIONS = ("is_available", "device_count")
"""Functions of torch.cuda. All others that tell of a GPU start CUDA, and fail without one."""

_LIBRARIES = frozenset(
    {"torch", "transformers", "sentence_transformers", "accelerate", "huggingface_hub", "functools", "contextlib"}
)
"""They ask in their own interest, in a forked worker once more (see `forked`)."""

_CACHED = "transformers.utils.import_utils"
"""Its functions keep their answers, so that a later question never gets to torch."""


class GpuQuestions(importlib.abc.MetaPathFinder):
    """A context within which every question that is not a library's own is noted."""

    def __init__(self) -> None:
        self.asked = ""
        """Who asked first, and what; empty = nobody."""
        self._replaced: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> "GpuQuestions":
        sys.meta_path.insert(0, self)
        self.find_spec("")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        sys.meta_path.remove(self)
        for name, original in self._replaced.items():
            setattr(sys.modules["torch.cuda"], name, original)
        if not self.asked:
            self.asked = next(filter(None, map(_cached_question, list(sys.modules.items()))), "")

    def find_spec(self, _fullname: str, _path: Any = None, _target: Any = None) -> None:
        """Find nothing; but listen to torch.cuda once it is there: torch imports much after it, which comes by here."""
        cuda: Any = sys.modules.get("torch.cuda")
        if self._replaced or not all(hasattr(cuda, name) for name in _QUESTIONS):
            return
        for name in _QUESTIONS:
            self._replaced[name] = getattr(cuda, name)
            setattr(cuda, name, self._listening(name))

    def _listening(self, name: str) -> Callable[..., Any]:
        original = self._replaced[name]

        def ask(*args: Any, **kwargs: Any) -> Any:
            if not self.asked and (asker := _asker(sys._getframe(1))):
                self.asked = f"{asker} asks torch.cuda.{name}()"
            return original(*args, **kwargs)

        return ask


def _asker(frame: FrameType | None) -> str:
    """Module and line of the code that asks; empty where a library does, or is being imported itself."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        top = module.partition(".")[0]
        if top in ("importlib", "_frozen_importlib") or frame.f_code.co_filename.startswith("<frozen importlib"):
            return ""
        if top not in _LIBRARIES and top != __name__.partition(".")[0]:
            return f"{module}, line {frame.f_lineno},"
        frame = frame.f_back
    return ""


def _cached_question(item: tuple[str, Any]) -> str:
    name, module = item
    if not name.startswith("transformers_modules."):
        return ""
    for value in list(vars(module).values()):
        function = getattr(value, "__name__", "")
        if getattr(value, "__module__", "") == _CACHED and ("flash_attn" in function or "cuda" in function):
            return f"{name} can ask transformers' {function}()"
    return ""
