"""What a run leaves to read: the folder of its invocation, with its log and its sensors, and the report.

What the disk refuses is missing. Nothing is imported to learn its version, and secrets are left out.
"""

import contextlib
import json
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import yaml

from chunkvisor.config.choices import is_secret
from chunkvisor.config.model import Config
from chunkvisor.devices.gpu import in_background, read_load
from chunkvisor.errors import Halt
from chunkvisor.events import event as of
from chunkvisor.events.event import Event
from chunkvisor.events.state import RunState
from chunkvisor.show.lines import Console
from chunkvisor.show.observer import Observer
from chunkvisor.show.snapshot import snapshot_of
from chunkvisor.store.identity import read_facts
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import make_folder, read_bounded, remove_folder, write_atomic

KEPT = 50
"""Folders that stay; older ones are removed, but for those that a person has renamed."""
LEFT_OUT = "(left out)"
INTERVAL_S, MOST_S = 5.0, 60.0
"""Between two lines of the sensors, at first and in the end."""
FAILURES = 3
"""After so many in a row nvidia-smi is not asked again."""
MOST_BYTES = 48 << 20
"""Of a journal of which a run makes the report; about five seconds of reading on a slow core."""

_NUMBER = re.compile(r"([0-9]{1,6})(?![0-9])")
"""A longer number is a date that a person has put in front, not one of ours."""
_OURS = re.compile(r"([0-9]{3,6})_[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{6}")
_BEFORE_THE_MODEL = (of.Invoked, of.Note, of.Warned, of.RunStarted, of.Doing, of.Resolving)
_PACKAGES = ("numpy", "duckdb", "pydantic", "psutil", "rich")
"""Of the parent; the worker's own versions come with its first result."""
_OF_NOTE = re.compile(
    r"(CUDA|NVIDIA|NCCL|HF|TRANSFORMERS|SENTENCE_TRANSFORMERS|TORCH|PYTORCH|OMP|MKL|OPENBLAS|TOKENIZERS|CUBLAS|SLURM_JOB)_"
    r"|(SLURM_(NODEID|PROCID|RESTART_COUNT)|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD|CONDA_PREFIX|VIRTUAL_ENV|LANG|LC_ALL|TERM)$"
)
_DRIVER = Path("/proc/driver/nvidia/version")
_CREDENTIALS = re.compile(r"://[^/\s@]+@")
"""Without the scheme before it: to look for the start of one at every letter of a long text takes for ever."""


def open_invocation(layout: Layout) -> InvocationFiles | None:
    """Make the folder of the next invocation, with an empty log, and let `latest` point to it; remove old ones.

    The caller holds the workdir's lock, hence no number is given twice. None if the disk refuses: a run is worth more
    than what it leaves to read.
    """
    try:
        make_folder(layout.runs, durable=False)
        names = [entry.name for entry in layout.runs.iterdir()]
        number = 1 + max((int(match[1]) for name in names if (match := _NUMBER.match(name))), default=0)
        files = InvocationFiles(layout.runs / f"{number:03d}_{time.strftime('%Y-%m-%d_%H%M%S')}")
        files.folder.mkdir()
        files.log.touch()
    except OSError:
        return None
    temporary = layout.latest.with_name(".latest.tmp")
    with contextlib.suppress(OSError):  # if links cannot be made, or something else has the name, there is no link
        before = InvocationFiles(layout.latest).log.resolve()
        for unfinished in before.parent.glob(".*.tmp") if layout.latest.is_symlink() else ():  # of a killed run
            unfinished.unlink()
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(files.name)
        temporary.replace(layout.latest)
        # `tail -F latest/output.log` watches the folder that the link led to (inotify follows links), and learns of
        # nothing that happens to the link. Touching the file makes it look up the name anew.
        os.utime(before)
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
    ours = sorted((int(match[1]), name) for name in names if (match := _OURS.fullmatch(name)))
    for _, name in ours[: max(0, len(ours) - KEPT + 1)]:
        remove_folder(layout.runs / name)
    return files


class Record(Observer):
    """Fills the folder while a run lives."""

    def __init__(self, config: Config, layout: Layout, files: InvocationFiles, run_id: str) -> None:
        self._config, self._layout, self._files, self._run_id = config, layout, files, run_id
        self._log = open(files.log, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed by close
        self._console = Console(self._log, last_words=True)
        self._started_at = time.time()
        self._surroundings: dict[str, Any] = {}
        self._state = RunState()

    def event(self, event: Event, state: RunState) -> None:
        if not isinstance(event, _BEFORE_THE_MODEL):
            self._describe()
        self._state = state
        self._console.event(event, state)
        if not isinstance(event, of.ChunkCommitted) or self._surroundings["worker_versions"]:
            return
        if (facts := read_facts(self._layout.output(event.output))) is not None:
            self._surroundings["worker_versions"] = facts.versions or {"worker": "tells no versions"}
            self._write(self._files.environment, json.dumps(self._surroundings, indent=2))

    def tick(self) -> None:
        self._console.tick()

    def close(self) -> None:
        """Write the summary: how the run has ended and what it has done."""
        self._describe()
        with contextlib.suppress(OSError):
            self._log.close()
        now, ended_at = snapshot_of(self._state, time.time()), time.time()
        ending = now.state.ending.details() if now.state.ending is not None else {}
        summary = {
            "invocation": self._files.name,
            "run": self._run_id,
            "code": ending.get("code"),
            "words": {name: ending[name] for name in ("what", "why", "remedy", "log", "see") if ending.get(name)},
            "rows": {name: output.rows for name, output in now.outputs.items()},
            "texts": now.total("texts_here"),
            "tokens": now.total("tokens_here"),
            "texts_per_s": now.state.texts_per_s if now.state.chunks_here else None,
            "attempts": now.state.attempts,
            "quarantined": now.total("quarantined"),
            "started_at": round(self._started_at, 3),
            "ended_at": round(ended_at, 3),
            "seconds": round(ended_at - self._started_at, 3),
        }
        self._write(self._files.summary, json.dumps(summary, indent=2))

    def _describe(self) -> None:
        """Once, when the run has its model: to load that is not to wait for it."""
        if not self._surroundings:
            self._surroundings = surroundings()
            self._write(self._files.environment, json.dumps(self._surroundings, indent=2))
            values = without_secrets(self._config.model_dump(mode="json"))
            self._write(self._files.config, yaml.safe_dump(values, sort_keys=False, allow_unicode=True).rstrip("\n"))

    def _write(self, path: Path, text: str) -> None:
        with contextlib.suppress(OSError):
            write_atomic(path, f"{text}\n".encode(errors="backslashreplace"), durable=False)


def surroundings(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what a run found around it (versions, host, driver, variables of note), for environment.json."""
    driver = re.search(rb"Kernel Module[^\n]*?\s(\d+\.\d+[\d.]*)\s", read_bounded(_DRIVER) or b"")
    return {
        "chunkvisor": __version__,
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "nvidia_driver": driver[1].decode() if driver else None,
        "variables": without_secrets({name: environment[name] for name in sorted(environment) if _OF_NOTE.match(name)}),
        "worker_versions": {},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def without_secrets(value: Any, name: str = "") -> Any:
    """Return plain values once more, with the secrets replaced; `name` is the key that the value stands under."""
    if isinstance(value, Mapping):
        # What a person hands to workers may be anything.
        return {key: LEFT_OUT if name == "env" else without_secrets(item, str(key)) for key, item in value.items()}
    if value is None or isinstance(value, bool | float):
        return value
    if is_secret(name):
        return LEFT_OUT
    if isinstance(value, list | tuple):
        return [without_secrets(item, name) for item in value]
    if name == "notify":  # an address has its secret somewhere in the path; only the scheme is harmless
        return f"{urlsplit(str(value)).scheme}://{LEFT_OUT}"
    return value if isinstance(value, int) else _CREDENTIALS.sub(f"://{LEFT_OUT}@", str(value))


class Sensors(Observer):
    """Writes `sensors.jsonl`: every few seconds what the run takes, memory, processor time and GPUs."""

    def __init__(self, files: InvocationFiles) -> None:
        self._path, self._state = files.sensors, RunState()
        self._processes: dict[int, psutil.Process] = {}
        self._template_pid = 0
        self._uuids: tuple[str, ...] = ()
        self._reading: Future[list[dict[str, Any]]] | None = None
        self._failures, self._told = 0, False
        self._began_s, self._next_s = time.monotonic(), 0.0

    def event(self, event: Event, state: RunState) -> None:
        self._state = state
        match event:
            case of.RunStarted() if any(event.gpus):
                self._uuids = event.gpus
            case of.TemplateStarted() | of.WarmGivenUp():
                self._template_pid = event.pid if isinstance(event, of.TemplateStarted) else 0

    def tick(self) -> None:
        """Write a line when it is time, and nvidia-smi has answered."""
        now_s = time.monotonic()
        if self._reading is None and now_s >= self._next_s:
            # However long the run lasts, the file stays small: after an hour lines come more and more rarely.
            self._next_s = now_s + min(MOST_S, max(INTERVAL_S, (now_s - self._began_s) / 700))
            if self._uuids and self._failures < FAILURES:
                self._reading = in_background(read_load, self._uuids)
            else:
                self.close()
        elif self._reading is not None and self._reading.done():
            self.close()

    def close(self) -> None:
        line: dict[str, Any] = {"t": round(time.time(), 3)}
        if self._reading is not None and self._reading.done():
            gpus, self._reading = self._reading.result(), None
            self._failures = 0 if gpus else self._failures + 1
            line |= {"gpus": gpus} if gpus else {}
        pids = {self._template_pid, *(worker.pid for worker in self._state.workers.values())} - {0}
        line["workers"] = [{"pid": pid, **figures} for pid in sorted(pids) if (figures := self._figures(pid))]
        line["parent"] = self._figures(os.getpid())
        line["host"] = {"available_bytes": int(psutil.virtual_memory().available)}
        self._processes = {pid: each for pid, each in self._processes.items() if pid in {*pids, os.getpid()}}
        if self._failures >= FAILURES and not self._told:
            line["note"] = "nvidia-smi gave no usable answer three times; the sensors go on without the GPUs"
            self._told = True
        with contextlib.suppress(OSError), open(self._path, "a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _figures(self, pid: int) -> dict[str, Any]:
        """Measure a process; `cpu` is how many cores it has kept busy since the reading before."""
        try:
            process = self._processes.get(pid) or psutil.Process(pid)
            figures = {"rss_bytes": process.memory_info().rss, "cpu": round(process.cpu_percent() / 100, 3)}
            # VmHWM of proc(5) misses nothing between two readings.
            peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        except (psutil.Error, OSError):
            return {}
        if pid not in self._processes:
            del figures["cpu"]  # psutil has nothing yet to compare with, and gives 0
        self._processes[pid] = process
        return figures | ({"peak_bytes": int(peak[1]) << 10} if peak else {})


class Reporter(Observer):
    """Writes `report.html` when a run ends; after a very long one that is left to `chunkvisor report`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._news = False

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - of every observer
        """A run that found everything complete leaves the report as it is."""
        self._news = state.worked

    def close(self) -> None:
        """Write it; a disk that is full costs the report, nothing else."""
        from chunkvisor.show.report import write_report

        with contextlib.suppress(OSError, Halt):  # another page of that name stays
            if self._news and self._layout.events.stat().st_size <= MOST_BYTES:
                write_report(self._layout.workdir, self._layout.report)
