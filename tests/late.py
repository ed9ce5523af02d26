"""Modules that a test imports when it uses them: each process of pytest collects all tests, and
torch takes seconds.
"""

import importlib.util
from typing import Any

import pytest


class Late:
    """A module that is imported by the first use of it, which skips the test where it is missing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Of the module. A private name is one that pytest looks for in all that a test's module
        has, and not there.
        """
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self._name), attribute)


def needs(name: str) -> pytest.MarkDecorator:
    """Skips where the module is missing, and does not import it."""
    return pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"{name} is not installed"
    )
