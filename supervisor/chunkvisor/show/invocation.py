"""The folder of each invocation of `run`, and the observers of every run: log, report and more."""

import re
import time
from contextlib import suppress

from chunkvisor.config.model import Config
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.show.lines import Console, Observer
from chunkvisor.show.metrics import Metrics
from chunkvisor.show.notices import Notices
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor_worker.contract.files import remove_folder

KEPT = 50
"""How many folders of invocations stay. Older ones are removed, unless the user renamed them."""
MOST_BYTES = 48 << 20
"""A run writes no report of a longer journal; the command `report` does, and takes its time."""
# Seven digits or more are a date that the user has put in front of the name.
_NUMBER = re.compile(r"([0-9]{1,6})(?![0-9])")
_OURS = re.compile(r"([0-9]{3,6})_[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{6}")


def open_invocation(layout: Layout) -> InvocationFiles | None:
    """Make the folder of the next invocation, such as `runs/012_2026-01-31_235959`.

    It has an empty log; the link `latest` leads to it, and old folders are removed. The caller
    holds the workdir's lock, so that no number is given twice.

    Return None if the folder cannot be made: the run continues without it.
    """
    try:
        layout.runs.mkdir(exist_ok=True)
        names = [entry.name for entry in layout.runs.iterdir()]
        numbers = [int(match[1]) for match in filter(None, map(_NUMBER.match, names))]
        number = 1 + max(numbers, default=0)
        files = InvocationFiles(layout.runs / f"{number:03d}_{time.strftime('%Y-%m-%d_%H%M%S')}")
        files.folder.mkdir()
        files.log.touch()
    except OSError:
        return None
    # If links cannot be made, or something else has the name, there is no link.
    with suppress(OSError):
        layout.latest.unlink(missing_ok=True)
        layout.latest.symlink_to(files.name)
    matches = filter(None, map(_OURS.fullmatch, names))
    ours = sorted(matches, key=lambda match: int(match[1]))
    # All but the newest: with the new one, KEPT stay.
    for match in ours[: 1 - KEPT]:
        remove_folder(layout.runs / match[0])
    return files


def observers_of_run(
    config: Config, layout: Layout, files: InvocationFiles | None
) -> list[Observer]:
    """Return the observers that every run has; `files` is None if the disk had no room for them."""
    made: list[Observer] = []
    if files is not None:
        with suppress(OSError):
            made.append(_Log(files))
    if config.metrics.textfile is not None:
        made.append(Metrics(config.metrics.textfile, layout.workdir))
    made.append(Reporter(layout))
    if config.notify:  # after the report, so that the receiver of a notice finds it
        made.append(Notices([url.get_secret_value() for url in config.notify], layout, files))
    return made


class _Log(Console):
    def __init__(self, files: InvocationFiles) -> None:
        self._file = open(  # noqa: SIM115 - closed by close
            files.log, "a", encoding="utf-8", errors="backslashreplace"
        )
        super().__init__(self._file, last_words=True)

    def close(self) -> None:
        self._file.close()


class Reporter(Observer):
    """Writes `report.html` when a run ends that had something to do."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def close(self) -> None:
        """Write the report, unless the disk refuses or a file of the user has its name.

        After a SIGTERM there is no time for it: `recovery.grace` is for what workers have encoded.
        """
        from chunkvisor.show.report import write_report

        ending = self.state.ending
        if ending is not None and ending.code == ExitCode.TERMINATED:
            return
        with suppress(OSError, Halt):
            if self.state.worked and self._layout.events.stat().st_size <= MOST_BYTES:
                write_report(self._layout.workdir, self._layout.report)
