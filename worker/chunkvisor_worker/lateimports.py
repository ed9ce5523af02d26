"""Puts off what an import brings along for functions that a worker does not call.

sentence-transformers imports scikit-learn and scipy for one similarity and for its evaluators, transformers for losses.
What they take from them within `LateImports` are stand-ins, each of which imports the real function when it is first
called. Whoever else asks for these libraries, within or afterwards, gets the libraries themselves. `importscan` hastens
what transformers does on its own.
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from types import FrameType, ModuleType, TracebackType
from typing import Any

from chunkvisor_worker.importscan import SCANNER, spec_of_scanner

LATE = frozenset({"sklearn", "sklearn.metrics", "scipy", "scipy.optimize", "scipy.sparse", "scipy.stats"})
"""Packages, and their modules, that are put off."""

IMPORTERS = frozenset({"sentence_transformers", "transformers.loss"})
"""They take nothing but functions from them, to call them later (sentence-transformers 6.2, transformers 5.23)."""


class LateImports(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A context within which modules of LATE, unless they are there already, are stand-ins for IMPORTERS."""

    def __enter__(self) -> "LateImports":
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        sys.meta_path.remove(self)
        _forget()

    def find_spec(self, fullname: str, path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """A stand-in's, or where another module of its package is wanted, the real one's."""
        if fullname == SCANNER:
            return spec_of_scanner(path)
        package = sys.modules.get(fullname.partition(".")[0])
        if fullname in LATE and isinstance(package, _StandIn | None) and _asked_by_one_of_them():
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if not isinstance(package, _StandIn):
            return None
        _forget()
        parent = importlib.import_module(fullname.rpartition(".")[0])
        return importlib.machinery.PathFinder.find_spec(fullname, parent.__path__)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """A stand-in."""
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing runs."""


class _StandIn(ModuleType):
    """All that IMPORTERS take from it is a function that calls the real module's by that name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if _asked_by_one_of_them():
            return _late(self.__name__, name)
        _forget()
        return getattr(importlib.import_module(self.__name__), name)


def _late(module: str, name: str) -> Any:
    @functools.cache
    def real() -> Any:
        return getattr(importlib.import_module(module), name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return real()(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__module__ = module
    return call


def _asked_by_one_of_them() -> bool:
    """Whether the code that imports something, or takes it from a module, is one of IMPORTERS, or in it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and name.partition(".")[0] not in ("importlib", "_frozen_importlib"):
            return any(f"{name}.".startswith(f"{each}.") for each in IMPORTERS)
        frame = frame.f_back
    return False


def _forget() -> None:
    for name in LATE:
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]
