"""Imports that are put off, and come when what they bring is called."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from chunkvisor_worker import lateimports
from chunkvisor_worker.lateimports import LateImports

FILES = {
    "slowlib/__init__.py": "size = 7\n",
    "slowlib/metrics.py": "def double(number, *, more=0):\n    return 2 * number + more\n",
    "slowlib/other.py": "from slowlib.metrics import double as also\nvalue = 1\n",
    "using.py": "from slowlib.metrics import double\n\ndef four():\n    return double(1, more=2)\n",
    "another.py": "from slowlib.metrics import double\n",
    "deeper.py": "import slowlib.other\n",
}


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`slowlib.metrics` is put off for `using`, which takes a function from it."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(lateimports, "LATE", frozenset({"slowlib", "slowlib.metrics"}))
    monkeypatch.setattr(lateimports, "IMPORTERS", frozenset({"using"}))
    yield
    for name in {Path(each).parts[0].removesuffix(".py") for each in FILES}:
        for module in [module for module in sys.modules if module.partition(".")[0] == name]:
            del sys.modules[module]


def loaded() -> list[str]:
    """What is imported of `slowlib`."""
    return sorted(name for name in sys.modules if name.partition(".")[0] == "slowlib")


def test_a_function_is_imported_when_it_is_called() -> None:
    """The import alone leaves nothing behind; the call has the arguments and the value of the real function."""
    with LateImports():
        using = import_module("using")

    assert not loaded()
    assert not any(isinstance(finder, LateImports) for finder in sys.meta_path)
    assert using.double.__name__ == "double"
    assert using.four() == 4
    assert loaded() == ["slowlib", "slowlib.metrics"]


def test_others_get_the_real_library() -> None:
    """Within the context, before and after it was put off for somebody, and when all is over."""
    real = import_module("another").double
    with LateImports():
        using = import_module("using")
    assert using.double is real, "what is there already is used"


@pytest.mark.parametrize("other", ["another", "deeper"])
@pytest.mark.parametrize("first", ["using", ""])
def test_others_get_the_real_library_meanwhile(other: str, first: str) -> None:
    """Whoever else imports it within the context, in whatever order, has the real functions; so has everybody later."""
    with LateImports():
        for name in filter(None, [first, other, "using"]):
            import_module(name)
    slowlib, deeper, using = map(import_module, ("slowlib", "slowlib.other", "using"))
    double = slowlib.metrics.double

    assert (slowlib.size, deeper.value, double(1), deeper.also(1), using.four()) == (7, 1, 2, 2, 4)
    assert deeper.also is double
    if other == "another":
        assert sys.modules["another"].double is double
    assert loaded() == ["slowlib", "slowlib.metrics", "slowlib.other"]


def test_an_import_that_fails_leaves_nothing() -> None:
    """An error within ends as it would, and no stand-in stays."""
    (Path(sys.path[0]) / "using.py").write_text(
        "from slowlib.metrics import double\nfrom slowlib.metrics import __no__\n"
    )

    with pytest.raises(ImportError), LateImports():
        import_module("using")

    assert not loaded()
