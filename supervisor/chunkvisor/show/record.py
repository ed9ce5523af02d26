"""The folder of one invocation: its log, config, environment and summary, for people; what the disk refuses is missing.

Nothing is imported to learn its version, no process is started, and secrets are left out.
"""

import contextlib
import json
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import yaml

from chunkvisor.config.choices import is_secret
from chunkvisor.config.model import Config
from chunkvisor.events.event import (
    ChunkCommitted,
    Doing,
    Event,
    GpusGuessed,
    Invoked,
    Note,
    Resolving,
    RunStarted,
)
from chunkvisor.events.state import RunState
from chunkvisor.show.lines import Console
from chunkvisor.show.observer import Observer
from chunkvisor.store.identity import read_facts
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import make_folder, read_bounded, remove_folder, write_atomic

KEPT = 50
"""Folders that stay; older ones are removed, but for those that a person has renamed."""
LEFT_OUT = "(left out)"

_NUMBER = re.compile(r"([0-9]{1,6})(?![0-9])")
"""A longer number is a date that a person has put in front, not one of ours."""
_OURS = re.compile(r"([0-9]{3,6})_[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{6}")
_BEFORE_THE_MODEL = (Invoked, Note, GpusGuessed, RunStarted, Doing, Resolving)
_PACKAGES = ("numpy", "duckdb", "pydantic", "psutil", "rich")
"""Of the parent; the worker's own versions come with its first result."""
_OF_NOTE = re.compile(
    r"(CUDA|NVIDIA|NCCL|HF|TRANSFORMERS|SENTENCE_TRANSFORMERS|TORCH|PYTORCH|OMP|MKL|OPENBLAS|TOKENIZERS|CUBLAS|SLURM_JOB)_"
    r"|(SLURM_(NODEID|PROCID|RESTART_COUNT)|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD|CONDA_PREFIX|VIRTUAL_ENV|LANG|LC_ALL|TERM)$"
)
_DRIVER = Path("/proc/driver/nvidia/version")
_CREDENTIALS = re.compile(r"://[^/\s@]+@")
"""Without the scheme before it: to look for the start of one at every letter of a long text takes for ever."""


def next_number(names: Iterable[str]) -> int:
    """Return one more than the highest number that any name begins with, whatever follows it."""
    return 1 + max((int(match[1]) for name in names if (match := _NUMBER.match(name))), default=0)


def superfluous(names: Iterable[str], kept: int) -> list[str]:
    """Return the oldest of the names that are still as we gave them, without the newest `kept`."""
    ours = sorted((int(match[1]), name) for name in names if (match := _OURS.fullmatch(name)))
    return [name for _, name in ours[: max(0, len(ours) - kept)]]


def open_invocation(layout: Layout) -> InvocationFiles | None:
    """Make the folder of the next invocation, with an empty log, and let `latest` point to it; remove old ones.

    The caller holds the workdir's lock, hence no number is given twice. None if the disk refuses: a run is worth more
    than what it leaves to read.
    """
    try:
        make_folder(layout.runs, durable=False)
        names = [entry.name for entry in layout.runs.iterdir()]
        name = f"{next_number(names):03d}_{time.strftime('%Y-%m-%d_%H%M%S')}"
        files = InvocationFiles(layout.runs / name)
        files.folder.mkdir()
        files.log.touch()
    except OSError:
        return None
    before = InvocationFiles(layout.latest).log.resolve()
    with contextlib.suppress(OSError):  # if links cannot be made, or something else has the name, there is no link
        for unfinished in before.parent.glob(".*.tmp") if layout.latest.is_symlink() else ():  # of a killed run
            unfinished.unlink()
        temporary = layout.latest.with_name(".latest.tmp")
        temporary.unlink(missing_ok=True)
        try:
            temporary.symlink_to(files.name)
            temporary.replace(layout.latest)
            # `tail -F latest/output.log` watches the folder that the link led to (inotify follows links), and learns
            # of nothing that happens to the link. Touching the file makes it look up the name anew.
            os.utime(before)
        finally:
            temporary.unlink(missing_ok=True)
    for old in superfluous(names, KEPT - 1):
        remove_folder(layout.runs / old)
    return files


class Record(Observer):
    """Fills the folder while a run lives."""

    def __init__(self, config: Config, layout: Layout, files: InvocationFiles, run_id: str) -> None:
        self._config = config
        self._layout = layout
        self._files = files
        self._run_id = run_id
        self._log = open(files.log, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed by close
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
        if not isinstance(event, ChunkCommitted) or self._surroundings["worker_versions"]:
            return
        if (facts := read_facts(self._layout.output(event.output))) is not None:
            self._surroundings["worker_versions"] = facts.versions or {"worker": "tells no versions"}
            self._write_json(self._files.environment, self._surroundings)

    def tick(self) -> None:
        """Let the log have its heartbeat."""
        self._console.tick()

    def close(self) -> None:
        """Write the summary."""
        self._describe()
        with contextlib.suppress(OSError):
            self._log.close()
        ended_at = time.time()
        times = {"started_at": self._started_at, "ended_at": ended_at, "seconds": ended_at - self._started_at}
        summary = {"invocation": self._files.name, "run": self._run_id, **summary_of(self._state)}
        summary |= {name: round(seconds, 3) for name, seconds in times.items()}
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

    def _write_json(self, path: Path, content: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            write_atomic(path, (json.dumps(content, indent=2) + "\n").encode(), durable=False)


def summary_of(state: RunState) -> dict[str, Any]:
    """Return how the run has ended and what it has done."""
    ending = state.ending.details() if state.ending is not None else {}
    words = {name: ending[name] for name in ("what", "why", "remedy", "log", "see") if ending.get(name)}
    return {
        "code": ending.get("code"),
        "words": words,
        "rows": {name: output.rows for name, output in state.outputs.items()},
        "texts": state.total("texts_here"),
        "tokens": state.total("tokens_here"),
        "texts_per_s": state.texts_per_s if state.chunks_here else None,
        "attempts": state.attempts,
        "quarantined": state.total("quarantined"),
    }


def surroundings(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what a run found around it (versions, host, driver, variables of note), for environment.json."""
    variables = {name: value for name, value in sorted(environment.items()) if _OF_NOTE.match(name)}
    return {
        "chunkvisor": __version__,
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "nvidia_driver": driver_version(),
        "variables": without_secrets(variables),
        "worker_versions": {},
    }


def driver_version(path: Path = _DRIVER) -> str | None:
    """Return the version of the NVIDIA kernel module, from /proc; None if none is loaded."""
    match = re.search(rb"Kernel Module[^\n]*?\s(\d+\.\d+[\d.]*)\s", read_bounded(path) or b"")
    return match[1].decode() if match else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def without_secrets(value: Any, name: str = "") -> Any:
    """Return plain values once more, with the secrets replaced; `name` is the key that the value stands under."""
    if isinstance(value, Mapping):
        if name == "env":
            return dict.fromkeys(value, LEFT_OUT)  # what a person hands to workers may be anything
        return {key: without_secrets(item, str(key)) for key, item in value.items()}
    if value is None or isinstance(value, bool | float):
        return value
    if is_secret(name):
        return LEFT_OUT
    if isinstance(value, int):
        return value
    if isinstance(value, list | tuple):
        return [without_secrets(item, name) for item in value]
    if name == "notify":  # an address has its secret somewhere in the path; only the scheme is harmless
        scheme = urlsplit(str(value)).scheme  # none if pydantic has hidden the whole of it
        return f"{scheme}://{LEFT_OUT}" if scheme else LEFT_OUT
    return _CREDENTIALS.sub(f"://{LEFT_OUT}@", str(value))
