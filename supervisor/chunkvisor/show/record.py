"""What a run leaves to read: the folder of its invocation, with its log and its sensors, and the report.

What the disk refuses is missing.
"""

import contextlib
import json
import re
import time
from concurrent.futures import Future

import psutil

from chunkvisor.config.model import Config
from chunkvisor.devices.gpu import in_background, memory_used, query_gpus
from chunkvisor.errors import Halt
from chunkvisor.show.lines import Console, Observer
from chunkvisor.show.outside import Metrics, Notices
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor_worker.contract.files import make_folder, remove_folder

KEPT = 50
"""Folders that stay; older ones are removed, but for those that a person has renamed."""
INTERVAL_S, MOST_S = 5.0, 60.0
"""Between two lines of the sensors, at first and in the end."""
MOST_BYTES = 48 << 20
"""Of a journal of which a run makes the report; about five seconds of reading on a slow core."""

_NUMBER = re.compile(r"([0-9]{1,6})(?![0-9])")
"""A longer number is a date that a person has put in front, not one of ours."""
_OURS = re.compile(r"([0-9]{3,6})_[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{6}")


def open_invocation(layout: Layout) -> InvocationFiles | None:
    """Make the folder of the next invocation, with an empty log, and let `latest` point to it; remove old ones.

    The caller holds the workdir's lock, hence no number is given twice. None if the disk refuses: a run is worth more
    than what it leaves to read.
    """
    try:
        make_folder(layout.runs, durable=False)
        temporary = layout.latest.with_name(".latest.tmp")
        temporary.unlink(missing_ok=True)  # of a run that was killed
        names = [entry.name for entry in layout.runs.iterdir()]
        number = 1 + max((int(match[1]) for name in names if (match := _NUMBER.match(name))), default=0)
        files = InvocationFiles(layout.runs / f"{number:03d}_{time.strftime('%Y-%m-%d_%H%M%S')}")
        files.folder.mkdir()
        files.log.touch()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # if links cannot be made, or something else has the name, there is no link
        temporary.symlink_to(files.name)
        temporary.replace(layout.latest)
    ours = sorted((int(match[1]), name) for name in names if (match := _OURS.fullmatch(name)))
    for _, name in ours[: max(0, len(ours) - KEPT + 1)]:
        remove_folder(layout.runs / name)
    return files


def observers_of_run(config: Config, layout: Layout, files: InvocationFiles | None) -> list[Observer]:
    """Return the observers of every run, to be guarded; `files` is None if the disk did not allow such a folder."""
    made: list[Observer] = []
    if files is not None:
        with contextlib.suppress(OSError):
            made.append(_Log(files))
        made.append(Sensors(files))
    if config.metrics.textfile is not None:
        made.append(Metrics(config.metrics.textfile))
    made.append(Reporter(layout))  # after those whose files it reads
    if config.notify:  # after the report, which the notice may lead a person to
        made.append(Notices([url.get_secret_value() for url in config.notify], layout, files))
    return made


class _Log(Console):
    def __init__(self, files: InvocationFiles) -> None:
        self._file = open(files.log, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed by close
        super().__init__(self._file, last_words=True)

    def close(self) -> None:
        self._file.close()


class Sensors(Observer):
    """Writes `sensors.jsonl`: every few seconds how much memory of the GPUs and of the host is in use."""

    def __init__(self, files: InvocationFiles) -> None:
        self._path = files.sensors
        self._reading: Future[None] | None = None
        self._began_s, self._next_s = time.monotonic(), 0.0

    def tick(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s and (self._reading is None or self._reading.done()):
            # However long the run lasts, the file stays small: after an hour lines come more and more rarely.
            self._next_s = now_s + min(MOST_S, max(INTERVAL_S, (now_s - self._began_s) / 700))
            pids = [worker.pid for worker in self.state.workers.values() if worker.pid]
            self._reading = in_background(self._read, pids, self.state.gpus)  # nvidia-smi may hang

    def _read(self, pids: list[int], uuids: tuple[str, ...]) -> None:
        held_bytes = 0
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                held_bytes += psutil.Process(pid).memory_info().rss
        gpus = memory_used(query_gpus("index,uuid,memory.used").text, uuids) if any(uuids) else {}
        line = {"t": round(time.time(), 3), "held_bytes": {**gpus, "workers": held_bytes}}
        with contextlib.suppress(OSError), open(self._path, "a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


class Reporter(Observer):
    """Writes `report.html` when a run ends; after a very long one that is left to `chunkvisor report`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def close(self) -> None:
        """Write it, unless the run found everything complete; a full disk costs the report, nothing else."""
        from chunkvisor.show.report import write_report

        with contextlib.suppress(OSError, Halt):  # another page of that name stays
            if self.state.worked and self._layout.events.stat().st_size <= MOST_BYTES:
                write_report(self._layout.workdir, self._layout.report)
