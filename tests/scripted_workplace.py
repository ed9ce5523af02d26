"""A workplace whose encoder plays faults and counts its calls, and in which commands run inside the
test's process.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness import ENCODERS, Ended, Workplace, finish


class ScriptedWorkplace(Workplace):
    """The folder can be copied and used elsewhere; only what the encoder is asked counts as
    computing.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._faults = folder / "faults"
        self._calls = folder / "calls.jsonl"

    @classmethod
    def make(cls, folder: Path, texts: Sequence[str | None], **changes: Any) -> "ScriptedWorkplace":
        """A new one over the texts; `changes` as in `write_config`."""
        made = cls(folder)
        made._faults.mkdir(parents=True)
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
            config = yaml.safe_load(self.config_path.read_text())
            config["outputs"]["out"]["source"] = str(self.source)
            self.config_path.write_text(yaml.safe_dump(config))

    def copy(self, folder: Path) -> "ScriptedWorkplace":
        """A copy of everything, as it is now."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return ScriptedWorkplace(folder)

    def lay(self, text: str, fault: str) -> None:
        """Have the fault happen when the text comes; see tests/encoders/scripted.py."""
        (self._faults / _script(text)).write_text(fault)

    def lift(self, text: str) -> None:
        """Take the fault back."""
        (self._faults / _script(text)).unlink()

    def has_struck(self, text: str) -> bool:
        """Whether the fault has begun and will not come again: a copy from now on is without it."""
        return not (self._faults / _script(text)).exists()

    def calls(self) -> list[list[str]]:
        """The texts of each call of the encoder so far."""
        return (
            [json.loads(line) for line in self._calls.read_text().splitlines()]
            if self._calls.exists()
            else []
        )

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        """`chunkvisor run` of the config in a process of its own: some faults kill it."""
        return finish(self.start("run", str(self.config_path), *arguments, env=env))

    def run_here(self, *arguments: str) -> Ended:
        """`chunkvisor run` of the config, in this process but where it goes to Ray."""
        return self.call("run", str(self.config_path), *arguments)


def _script(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
