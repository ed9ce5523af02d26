"""The scratch folder of a drill: configs for its runs, and workdirs in which the source is read already."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.assemble.form import FORM_KEYS
from chunkvisor.config.load import LoadedConfig, load
from chunkvisor.store.layout import Layout
from chunkvisor.store.mark import mark

ROWS = 48
"""Of the source that a drill takes."""

CHUNKS = 3
"""One before the fault, one that meets it, one after."""


@dataclass(slots=True)
class Scratch:
    """Makes workdirs for runs of one config's first output."""

    loaded: LoadedConfig
    folder: Path
    chunk_size: int = ROWS // CHUNKS
    stall_s: float | None = None
    """For the faults that have to be waited for; None = the config's."""
    _source: Path | None = None

    @property
    def output(self) -> str:
        """Name of the config's first output."""
        return next(iter(self.loaded.config.outputs))

    @property
    def device(self) -> str:
        """The first device of the config: a drill uses one."""
        device = self.loaded.config.device
        return device if isinstance(device, str) else device[0]

    def workdir(self, name: str) -> Path:
        """A new workdir; once `read_from` is set, with that one's staged texts."""
        workdir = self.folder / name
        workdir.mkdir(mode=0o700, exist_ok=True)
        mark(Layout(workdir))
        if self._source is not None:
            old, new = Layout(self._source), Layout(workdir)
            if old.model.exists():
                shutil.copy2(old.model, new.model)
            before, after = old.output(self.output), new.output(self.output)
            after.state.mkdir(mode=0o700, parents=True)
            for path in (before.identity, before.staged):
                shutil.copy2(path, after.state / path.name)
            shutil.copytree(before.table, after.table)
        return workdir

    def read_from(self, workdir: Path) -> None:
        """Later workdirs begin with the staged texts of this one: the source is read once."""
        self._source = workdir

    def config(self, workdir: Path, *, stalls: bool = False, standby: int | None = None) -> LoadedConfig:
        """The person's config for a run there. Raises Halt (78)."""
        return load(self.loaded.path, self._overrides(workdir, stalls, standby))

    def victim(self, workdir: Path) -> list[str]:
        """The command line of a run there that is to be killed, without standby workers."""
        module = [sys.executable, "-P", "-m", "chunkvisor.commands.drill.saboteur"]
        return [*module, str(self.loaded.path), *self._overrides(workdir, False, 0)]

    def _overrides(self, workdir: Path, stalls: bool, standby: int | None) -> list[str]:
        config = self.loaded.config
        output = config.outputs[self.output].model_dump(mode="json", exclude_unset=True, exclude={"chunk", *FORM_KEYS})
        stall_s = self.stall_s if stalls and self.stall_s is not None else config.recovery.stall_timeout
        recovery = {"startup_timeout": config.recovery.startup_timeout, "stall_timeout": stall_s, "wait_timeout": 60}
        values: dict[str, Any] = {
            "workdir": str(workdir),
            "device": self.device,
            "engine": {"kind": "local"},
            "reuse": False,  # what a drill is about is the encoding
            "chunk": {"size": self.chunk_size},
            # What the table of faults expects: the retries of the defaults, not the person's.
            "recovery": recovery,
            "workers.per_device": 1,
            "workers.standby": config.workers.standby if standby is None else standby,
            "outputs": {self.output: output},
            "combine": {},
            "upload": None,
        }
        # JSON is YAML, but for escaped surrogate pairs.
        ours = [f"{key}={json.dumps(each, ensure_ascii=False)}" for key, each in values.items()]
        return [*self.loaded.overrides, *ours]
