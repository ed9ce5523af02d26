"""Fills the folder of an invocation: what the terminal showed, config, surroundings, and the summary at the end.

It never fails for want of disk space: what cannot be written is missing, and the run goes on.
"""

import contextlib
import json
import time
from collections import Counter
from typing import Any

import yaml

from chunkvisor.config.model import Config
from chunkvisor.observe.console import Console
from chunkvisor.observe.observer import NullObserver
from chunkvisor.observe.secretless import without_secrets
from chunkvisor.observe.surroundings import surroundings
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.store.modelfacts import read_facts
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import write_atomic

_WORDS = ("what", "why", "remedy", "log")


class Record(NullObserver):
    """Hears one run."""

    def __init__(self, config: Config, layout: Layout, files: InvocationFiles, run_id: str) -> None:
        self._config = config
        self._layout = layout
        self._files = files
        self._run_id = run_id
        self._log = open(files.log, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed by close
        self._console = Console(self._log, last_words=True)
        self._started_at = time.time()
        self._surroundings: dict[str, Any] = {}
        self._ending: dict[str, Any] = {}
        self._attempts: Counter[str] = Counter()
        self._texts = self._tokens = self._quarantined = 0
        self._rows: dict[str, int] = {}
        self._rates: dict[str, Any] = {}

    def event(self, event: str, details: dict[str, Any]) -> None:
        """Write down what is shown of it, and count."""
        if not self._surroundings:
            self._describe()
        self._console.event(event, details)
        match event:
            case "output_opened" | "output_already_complete":
                self._rows[details["output"]] = details["rows"]
            case "chunk_committed":
                self._attempts[Outcome.COMMITTED] += details["attempt_ok"]
                self._texts += details["texts"]
                self._tokens += details["tokens"]
                self._rates = {"texts_per_s": details["texts_per_s"]}
                self._add_worker_versions(details["output"])
            case "part_committed":
                self._attempts[Outcome.COMMITTED] += 1
            case "attempt_failed" | "part_failed" | "attempt_interrupted":
                self._attempts[str(details["outcome"])] += 1
            case "quarantined":
                self._quarantined += 1
            case "halted" | "run_ended":
                self._ending = details

    def tick(self) -> None:
        """Let the log have its heartbeat."""
        self._console.tick()

    def close(self) -> None:
        """Write the summary."""
        self._console.close()
        with contextlib.suppress(OSError):
            self._log.close()
        seconds = time.time() - self._started_at
        self._write_json(
            self._files.summary,
            {
                "invocation": self._files.name,
                "run": self._run_id,
                "code": self._ending.get("code"),
                "words": {name: self._ending[name] for name in _WORDS if self._ending.get(name)},
                "started_at": round(self._started_at, 3),
                "ended_at": round(self._started_at + seconds, 3),
                "seconds": round(seconds, 3),
                "rows": self._rows,
                "texts": self._texts,
                "tokens": self._tokens,
                "texts_per_s": self._rates.get("texts_per_s"),
                "attempts": dict(self._attempts),
                "quarantined": self._quarantined,
            },
        )

    def _describe(self) -> None:
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
