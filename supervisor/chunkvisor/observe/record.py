"""Fills the folder of an invocation: log, config, surroundings, summary; what the disk does not take is missing."""

import contextlib
import json
import time
from typing import Any

import yaml

from chunkvisor.config.model import Config
from chunkvisor.events.attempt import ChunkCommitted
from chunkvisor.events.device import GpusGuessed, LookingForGpus
from chunkvisor.events.event import Event
from chunkvisor.events.model import CheckingModel, Resolving
from chunkvisor.events.run import Invoked, OrphansEnded, RunStarted
from chunkvisor.events.state import RunState
from chunkvisor.observe.console import Console
from chunkvisor.observe.observer import Observer
from chunkvisor.observe.surroundings import surroundings, without_secrets
from chunkvisor.store.fixed import read_facts
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor_worker.contract.files import open_kept, write_atomic

_BEFORE_THE_MODEL = (Invoked, OrphansEnded, LookingForGpus, GpusGuessed, RunStarted, CheckingModel, Resolving)
_WORDS = ("what", "why", "remedy", "log", "see")


class Record(Observer):
    """Hears one run."""

    def __init__(self, config: Config, layout: Layout, files: InvocationFiles, run_id: str) -> None:
        self._config = config
        self._layout = layout
        self._files = files
        self._run_id = run_id
        fd = open_kept(files.log)
        self._log = open(fd, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed by close
        self._console = Console(self._log, last_words=True)
        self._started_at = time.time()
        self._surroundings: dict[str, Any] = {}
        self._state = RunState()

    def event(self, event: Event, state: RunState) -> None:
        """Write down what is shown of it."""
        if not isinstance(event, _BEFORE_THE_MODEL):
            self._describe()
        self._state = state
        self._console.event(event, state)
        if isinstance(event, ChunkCommitted):
            self._add_worker_versions(event.output)

    def tick(self) -> None:
        """Let the log have its heartbeat."""
        self._console.tick()

    def close(self) -> None:
        """Write the summary."""
        self._describe()
        self._console.close()
        with contextlib.suppress(OSError):
            self._log.close()
        ended_at = time.time()
        summary = {
            "invocation": self._files.name,
            "run": self._run_id,
            **ending_of(self._state),
            "started_at": round(self._started_at, 3),
            "ended_at": round(ended_at, 3),
            "seconds": round(ended_at - self._started_at, 3),
            **figures_of(self._state),
        }
        self._write_json(self._files.summary, summary)

    def _describe(self) -> None:
        """Once, when the run has its model: to load that is not to wait for it."""
        if self._surroundings:
            return
        self._surroundings = surroundings()
        self._write_json(self._files.environment, self._surroundings)
        values = without_secrets(self._config.model_dump(mode="json"))
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        with contextlib.suppress(OSError):
            write_atomic(self._files.config, text.encode(errors="backslashreplace"), durable=False)

    def _add_worker_versions(self, output: str) -> None:
        """What the first result has told of the worker's libraries."""
        if not self._surroundings["worker_versions"] and (facts := read_facts(self._layout.output(output))) is not None:
            self._surroundings["worker_versions"] = facts.versions or {"worker": "tells no versions"}
            self._write_json(self._files.environment, self._surroundings)

    def _write_json(self, path: Any, content: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            write_atomic(path, (json.dumps(content, indent=2) + "\n").encode(), durable=False)


def ending_of(state: RunState) -> dict[str, Any]:
    """How the run has ended, for the summary."""
    ending = state.ending.details() if state.ending is not None else {}
    return {"code": ending.get("code"), "words": {name: ending[name] for name in _WORDS if ending.get(name)}}


def figures_of(state: RunState) -> dict[str, Any]:
    """What the run has done, for the summary."""
    return {
        "rows": {name: output.rows for name, output in state.outputs.items()},
        "texts": state.texts_here,
        "tokens": state.tokens_here,
        "texts_per_s": state.texts_per_s if state.chunks_here else None,
        "attempts": state.attempts,
        "quarantined": state.quarantined,
    }
