"""Makes runs that are forked from this process cheap: what all of them import, compile and look up
is there already.

Imports, and pauses that a person does not notice, would be most of the time of thousands of runs.
"""

import importlib
from collections.abc import Callable, Mapping
from unittest import mock

import duckdb

import chunkvisor.core.loop
import chunkvisor.core.store
import chunkvisor.judge
import chunkvisor.supervise.session

_LOADED_LATE = (
    "chunkvisor.cli.run",
    "chunkvisor.cli.workdir",
    "chunkvisor.config.load",
    "chunkvisor.commands.housekeeping",
    "chunkvisor.commands.onefile",
    "chunkvisor.show.lines",
    "chunkvisor.show.invocation",
    "chunkvisor.show.notices",
    "chunkvisor.show.terminal",
    "chunkvisor.supervise.work",
    "chunkvisor.show.report",
    "chunkvisor.devices.handles",
    "chunkvisor.sources.stage",
    "chunkvisor.sources.table",
    "pydantic.dataclasses",
    "numpy.ma",
    "faulthandler",
    "chunkvisor_worker.job",
    "chunkvisor_worker.plugin",
    "chunkvisor_worker.faults",
    "encodings.utf_8_sig",
)
"""What a process imports when it needs it."""


def be_quick() -> None:
    """From now on, for this process and what is forked from it."""
    for name in _LOADED_LATE:
        importlib.import_module(name)
    for owner, name, stand_in in (
        # It looks at every process of the machine; workers end with their supervisor all the same.
        (chunkvisor.supervise.session, "end_orphans", lambda *_: []),
        (chunkvisor.judge, "BACKOFF_S", 0.01),
        (chunkvisor.core.loop, "_PAUSE_S", 0.02),
        (chunkvisor.core.store, "PAUSE_S", 0.05),
        (duckdb, "connect", _reconnect()),
    ):
        mock.patch.object(owner, name, stand_in).start()


def _reconnect() -> Callable[..., duckdb.DuckDBPyConnection]:
    """In the place of `duckdb.connect`: to a database that is there already, as to make one takes
    30 ms.

    It has no threads, which a fork would not have; the files are read by the thread that asks.
    """
    made = duckdb.connect(config={"threads": 1, "async_threads": 0})

    def connect(*, config: Mapping[str, object] | None = None) -> duckdb.DuckDBPyConnection:
        connection = made.cursor()
        for name, value in (config or {}).items():
            if name != "threads":
                connection.execute(f"SET GLOBAL {name} = ?", [value])
        return connection

    return connect
