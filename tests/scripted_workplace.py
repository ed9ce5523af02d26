"""A workplace whose encoder plays faults and counts its calls, and in which commands run inside the
test's process.
"""

import atexit
import functools
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import ENCODERS, Process, Workplace, events_in, wait_for


class ScriptedWorkplace(Workplace):
    """The folder can be copied and used elsewhere; only what the encoder is asked counts as
    computing.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.faults = folder / "faults"
        """A file for each text that a fault is laid for."""
        self._calls = folder / "calls.jsonl"

    @classmethod
    def make(cls, folder: Path, texts: Sequence[str | None], **changes: Any) -> "ScriptedWorkplace":
        """A new one over the texts; `changes` as in `write_config`."""
        made = cls(folder)
        made.faults.mkdir(parents=True)
        shutil.copy(ENCODERS / "scripted.py", folder)
        made.write_source(texts)
        # By its full path: the table of a copy is then still that of its source, and most runs need
        # not stage it again.
        made.write_config("scripted:make", **{"outputs.out.source": str(made.source), **changes})
        return made

    def write_source(self, texts: Sequence[str | None], name: str = "rows") -> None:
        """As of every workplace; a copy, which has its original's, gets one of its own."""
        super().write_source(texts, name)
        if name == "rows" and self.config_path.exists():
            self.set(outputs__out__source=str(self.source))

    def copy(self, folder: Path) -> "ScriptedWorkplace":
        """A copy of everything, as it is now."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return ScriptedWorkplace(folder)

    def lay(self, texts: str | Iterable[str], fault: str) -> None:
        """Have the fault happen when the text, or one of them, comes; see tests/encoders/scripted.py."""
        for text in [texts] if isinstance(texts, str) else texts:
            (self.faults / _script(text)).write_text(fault)

    def lift(self, *texts: str) -> None:
        """Take the faults back."""
        for text in texts:
            (self.faults / _script(text)).unlink()

    def has_struck(self, text: str) -> bool:
        """Whether the fault has begun and will not come again: a copy from now on is without it."""
        return not (self.faults / _script(text)).exists()

    def begin_to(self, call: int) -> Process:
        """Start a run; the encoder is in that call of all its calls now."""
        process = self.begin()
        wait_for(lambda: len(self.calls()) >= call)
        return process

    def calls(self) -> list[list[str]]:
        """The texts of each call of the encoder so far."""
        return events_in(self._calls)  # type: ignore[return-value]  # lists, where those are objects

    def encoded(self) -> list[str]:
        """The texts that were encoded so far, in their order."""
        return [text for call in self.calls() for text in call]


def _script(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def made_once(make: Callable[[Path], ScriptedWorkplace]) -> Callable[[Path], ScriptedWorkplace]:
    """The state by a copy of what was made first: to make one takes five processes."""

    @functools.cache
    def original() -> ScriptedWorkplace:
        folder = Path(tempfile.mkdtemp(prefix="chunkvisor-state-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return make(folder / "place")

    @functools.wraps(make)
    def copied(folder: Path) -> ScriptedWorkplace:
        return original().copy(folder)

    return copied


def fixture_of(state: Callable[[Path], ScriptedWorkplace]) -> Any:
    """Make a fixture: each test gets a workplace in that state."""

    @pytest.fixture
    def place(tmp_path: Path) -> ScriptedWorkplace:
        return state(tmp_path / "place")

    return place
