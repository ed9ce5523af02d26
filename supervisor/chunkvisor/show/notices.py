"""Notices to people, by mail, chat or whatever else apprise knows."""

import contextlib
import json
import socket
import time
import warnings
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

from chunkvisor.errors import ExitCode
from chunkvisor.events import event as events
from chunkvisor.show.lines import Observer
from chunkvisor.show.snapshot import snapshot_of
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.units import counted, human_time

END_S = 5.0
"""How long a run waits for its notices at its end: after a SIGTERM, a SIGKILL will follow."""


class Notices(Observer):
    """Sends a notice when a run is complete, needs a person, or quarantines its first text.

    No notice is sent of a run that was asked to stop, nor of a wrong config that ends a run before
    it works: whoever has typed the command reads that.

    A thread delivers the notices by apprise, in order. The run waits for it only at its end.
    """

    def __init__(self, urls: Sequence[str], layout: Layout, files: InvocationFiles | None) -> None:
        self._workdir = layout.workdir
        self._files = files
        self._sender, _ = sender_to(urls)
        self._is_stopping = False
        self._queue = SimpleQueue[tuple[str, str, str] | None]()
        self._thread = Thread(target=self._deliver, name="notices", daemon=True)
        self._thread.start()

    def event(self, event: events.Event) -> None:
        state = self.state
        match event:
            case events.Quarantined() if state.total("quarantined") == 1:
                self._enqueue("warning", "a row is quarantined", event.line)
            case events.Draining():
                self._is_stopping = True
            case events.RunEnded() if state.worked:
                now = snapshot_of(state)
                rows = [
                    f"{name}: {counted(each.rows, 'row')}"
                    for name, each in now.outputs.items()
                    if each.complete
                ]
                body = "\n".join([*rows, f"after {human_time(now.elapsed_s)}"])
                self._enqueue("success", "complete", body)
            case events.Halted(code=ExitCode.INTERRUPTED | ExitCode.TERMINATED):
                pass
            case events.Halted(code=ExitCode.TRY_AGAIN) if self._is_stopping:
                pass  # by --stop-after
            case events.Halted() if state.worked or event.code != ExitCode.CONFIG:
                is_passing = event.code in (ExitCode.QUARANTINED, ExitCode.TRY_AGAIN)
                kind = "warning" if is_passing else "failure"
                body = "\n".join(event.last_words)
                self._enqueue(kind, f"ended with exit code {event.code}", body)

    def close(self) -> None:
        """Wait up to `END_S` for notices that are not delivered yet."""
        self._queue.put(None)
        self._thread.join(END_S)

    def _enqueue(self, kind: str, what: str, body: str) -> None:
        """Hand a notice to the thread; `kind` is one of apprise: success, warning or failure."""
        self._queue.put((kind, what, body[:8000]))

    def _deliver(self) -> None:
        for kind, what, body in iter(self._queue.get, None):
            title = f"chunkvisor: {what}: {self._workdir.name} on {socket.gethostname()}"
            delivered = self._sender.notify(
                title=title, body=body, notify_type=kind, body_format="text"
            )
            end = "delivered" if delivered else "not delivered to all"
            line = {"t": time.time(), "notice": what, "end": end}
            if self._files is not None:
                with contextlib.suppress(OSError), open(self._files.notices, "a") as file:
                    file.write(json.dumps(line) + "\n")


def sender_to(urls: Sequence[str]) -> tuple[Any, list[int]]:
    """Return an Apprise for these addresses, and the indices of those it does not understand."""
    with warnings.catch_warnings(action="ignore"):  # apprise's imports warn
        from apprise import Apprise

        sender = Apprise()
        return sender, [number for number, url in enumerate(urls) if not sender.add(url)]
