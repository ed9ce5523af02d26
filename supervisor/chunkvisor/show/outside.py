"""What a run reports to other programs: figures for Prometheus, notices to people elsewhere, its state to systemd."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from chunkvisor.errors import ExitCode
from chunkvisor.events import event as of
from chunkvisor.events.event import Event
from chunkvisor.events.state import COMPUTING, RunState
from chunkvisor.show.lines import progress_line
from chunkvisor.show.observer import Observer
from chunkvisor.show.snapshot import Snapshot, snapshot_of
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.units import counted, human_time
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import write_atomic

INTERVAL_S = 15.0
"""Between two files of metrics."""
END_S, HURRIED_S = 10.0, 3.0
"""How long the end of a run may take longer for its notices; after SIGTERM, which has something stronger behind it."""
TIMEOUT_S = 60
"""For one notice."""
STALL_LEAST_S, STALL_TIMES = 1800.0, 10
"""A run stalls if no chunk was committed for so long, and for so many times the usual."""
_CHECK_S = 20.0
_STATUS_S = 5.0
"""Between two words of progress to systemd, at least."""
_COMMAND = (sys.executable, "-P", "-m", "chunkvisor.show.outside")

METRICS = """\
build_info{version}: Version of chunkvisor, as a label; always 1.
running: 1 while the run lives, 0 once it has ended; a killed run leaves 1.
run_start_timestamp_seconds: When the run began, in seconds since the epoch.
written_timestamp_seconds: When this file was written, in seconds since the epoch.
exit_code: Exit code of the last run that ended here; -1 while one is running.
rows{output}: Rows of the output.
rows_done{output}: Rows whose text is encoded; estimated from distinct texts until the output is complete.
chunks{output}: Chunks of the output.
chunks_done{output}: Chunks of the output that are committed.
quarantined_rows{output}: Texts that this run has put into quarantine.
texts_per_second: Distinct texts a second since this run began to compute, as of its last chunk.
eta_seconds: Time until all outputs are complete, at that rate.
last_chunk_timestamp_seconds: When a chunk was committed last.
batch_texts_limit: Texts in a batch, at most, as of now.
texts_total{output}: Distinct texts that this run has committed.
tokens_total{output}: Tokens of the texts that this run has committed, without padding.
attempts_total{outcome}: Attempts of this run that have ended, by outcome.
device_busy_seconds_total{device}: Time that the device has computed.
device_idle_seconds_total{device}: Time, from its first worker to its last, in which the device has not computed.
worker_startup_seconds_total: Time that workers have taken until they were ready.
"""
"""Name, label and meaning of each metric; those whose name ends in `_total` are counters, the others gauges."""


class Metrics(Observer):
    """Keeps a file of figures up to date, for the textfile collector of node_exporter."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = RunState()
        self._began_s, self._next_s = time.time(), 0.0

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - all is in the state
        self._state = state

    def tick(self) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + INTERVAL_S
            self._write(1)

    def close(self) -> None:
        self._write(0)

    def _write(self, running: int) -> None:
        # Readable by others, unlike the state: node_exporter is another user.
        text = _metrics(snapshot_of(self._state, time.time()), self._began_s, running)
        with contextlib.suppress(OSError):
            write_atomic(self._path, text.encode(), durable=False)


def _metrics(now: Snapshot, began_s: float, running: int) -> str:
    """Return the content of the file, in the text format of Prometheus."""
    state, devices = now.state, now.state.device_times if now.state.started else {}
    begun, ours = bool(state.chunks_here), {name: each for name, each in now.outputs.items() if each.distinct}
    values: dict[str, Mapping[str, float] | float] = {
        "build_info": {__version__: 1},
        "running": running,
        "run_start_timestamp_seconds": began_s,
        "written_timestamp_seconds": time.time(),
        "exit_code": -1 if state.ending is None else state.ending.code,
        "rows": {name: each.rows for name, each in now.outputs.items()},
        "rows_done": {name: each.rows_done for name, each in now.outputs.items()},
        "chunks": {name: each.chunks for name, each in ours.items()},
        "chunks_done": {name: each.chunks_done for name, each in ours.items()},
        "quarantined_rows": {name: each.quarantined for name, each in ours.items()},
        "texts_per_second": (begun and state.texts_per_s) or 0.0,
        "eta_seconds": state.eta_s or 0.0,
        "last_chunk_timestamp_seconds": state.points[-1].t if begun and state.points else 0.0,
        "batch_texts_limit": state.batch_rows,
        "texts_total": {name: each.texts_here for name, each in ours.items()},
        "tokens_total": {name: each.tokens_here for name, each in ours.items()},
        "attempts_total": state.attempts,
        "device_busy_seconds_total": {name: each.busy_s for name, each in devices.items()},
        "device_idle_seconds_total": {name: each.idle_s for name, each in devices.items()},
        "worker_startup_seconds_total": sum(each.startup_s for each in devices.values()),
    }
    lines = []
    for head, _, meaning in (line.partition(": ") for line in METRICS.splitlines()):
        name, _, label = head.rstrip("}").partition("{")
        full, value = f"chunkvisor_{name}", values[name]
        lines += [f"# HELP {full} {meaning}", f"# TYPE {full} {'counter' if name.endswith('_total') else 'gauge'}"]
        if not isinstance(value, Mapping):
            lines.append(f"{full} {float(value)}")
            continue
        for key, number in value.items():
            escaped = key.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
            lines.append(f'{full}{{{label}="{escaped}"}} {float(number)}')
    return "".join(f"{line}\n" for line in lines)


def is_textfile(head: bytes) -> bool:
    """Whether a file that begins like this was written here."""
    return head.startswith(b"# HELP chunkvisor_")


class Notices(Observer):
    """Sends a notice when a run ends, stalls, or meets the first text that cannot be encoded.

    One child process delivers them by apprise, in the order of what happened; the run waits for it only at its end.
    """

    def __init__(self, urls: Sequence[str], layout: Layout, files: InvocationFiles | None) -> None:
        self._order = {"urls": list(urls), "record": str(files.notices) if files is not None else ""}
        self._workdir = layout.workdir
        self._child: subprocess.Popen[bytes] | None = None
        self._state, self._stalled_s, self._end_s = RunState(), 0.0, END_S

    def event(self, event: Event, state: RunState) -> None:
        self._state = state
        match event:
            case of.Quarantined() if state.total("quarantined") == 1:
                row = f"{event.output} row {event.row} ({event.place})"
                self._send("a row is quarantined", f"{row} gets no vector: {event.outcome}: {event.reason}")
            case of.RunEnded() if state.worked:
                now = snapshot_of(state, time.time())
                made = ((name, each.rows) for name, each in now.outputs.items() if each.complete and each.distinct)
                rows = [f"{name}: {counted(count, 'row')}" for name, count in made]
                self._send("complete", "\n".join([*rows, f"after {human_time(now.elapsed_s)}"]))
            case of.Halted() if event.code != ExitCode.INTERRUPTED:  # who pressed Ctrl-C knows
                self._end_s = HURRIED_S if event.code == ExitCode.TERMINATED else END_S
                self._send(f"ended with exit code {event.code}", "\n".join(event.last_words))

    def tick(self) -> None:
        """See whether the run stalls: what does not commit, such as a join, is left alone."""
        state, commits_s = self._state, [point.t for point in self._state.points]
        last_s = max([state.doing_since_s, *commits_s[-1:]])
        usual_s = (commits_s[-1] - commits_s[0]) / (len(commits_s) - 1) if len(commits_s) > 1 else 0.0
        waited_s = time.time() - last_s
        stalls = state.doing == COMPUTING and waited_s > max(STALL_LEAST_S, STALL_TIMES * usual_s)
        if stalls and self._stalled_s != last_s:
            self._stalled_s = last_s
            usual = f"; usually it takes {human_time(usual_s)}" if usual_s else ""
            words = f"no chunk was committed for {human_time(waited_s)}{usual}"
            self._send("no progress", f"{words}\nLook at: chunkvisor status {self._workdir}")

    def close(self) -> None:
        """Give the child a little time for what it has not delivered yet."""
        if self._child is not None:
            with self._child as child, contextlib.suppress(OSError):
                try:
                    child.communicate(timeout=self._end_s)
                except subprocess.TimeoutExpired:
                    child.kill()
            self._child = None

    def _send(self, what: str, body: str) -> None:
        title = f"chunkvisor: {what}: {self._workdir.name} on {socket.gethostname()}"
        line = json.dumps({**self._order, "what": what, "title": title, "body": body[:8000]}).encode() + b"\n"
        with contextlib.suppress(OSError):
            if self._child is None or self._child.poll() is not None:
                nothing = subprocess.DEVNULL
                self._child = subprocess.Popen(_COMMAND, 0, None, subprocess.PIPE, nothing, nothing)
            # Others can read a command line and an environment, but not a pipe; addresses hold passwords.
            assert self._child.stdin is not None
            self._child.stdin.write(line)


def not_understood(urls: Sequence[str]) -> list[int]:
    """Return the places of addresses that apprise does not understand; none if that cannot be found out."""
    try:  # in a child: apprise is large
        order = json.dumps({"urls": list(urls)}).encode()
        ended = subprocess.run(_COMMAND, input=order, capture_output=True, timeout=_CHECK_S, check=True)
        return [int(number) for number in json.loads(ended.stdout)]
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return []


def main() -> None:
    """Deliver the notices that come as lines of JSON; of one without a title, print which addresses make no sense."""
    from apprise import Apprise

    for line in sys.stdin.buffer:
        signal.alarm(TIMEOUT_S)  # without a handler it ends the process, wherever it hangs
        order = json.loads(line)
        sender = Apprise()
        added = [sender.add(url) for url in order["urls"]]  # a wrong one must not keep the others from being told
        if "title" not in order:
            json.dump([number for number, good in enumerate(added) if not good], sys.stdout)
            return
        delivered = sender.notify(title=order["title"], body=order["body"], body_format="text") and all(added)
        if order["record"]:
            end = "delivered" if delivered else "not delivered to all"
            with open(order["record"], "a") as file:
                file.write(json.dumps({"t": round(time.time(), 3), "notice": order["what"], "end": end}) + "\n")
        signal.alarm(0)


def service_manager(environ: MutableMapping[str, str] | None = None) -> Observer:
    """Return the observer for the manager that has started this process; one that takes no notice if there is none.

    Takes its variables out of the environment: no child of ours is to speak, or to be watched, in our place.
    """
    environ = os.environ if environ is None else environ
    names = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    address, watchdog_us, watched_pid = (environ.pop(name, "") for name in names)
    if not address.startswith(("/", "@")):  # none, or one over vsock, which is for virtual machines
        return Observer()
    watched = watchdog_us.isdecimal() and watched_pid in ("", str(os.getpid()))  # see sd_watchdog_enabled(3)
    return Systemd(address, int(watchdog_us) / 1e6 if watched else None)


class Systemd(Observer):
    """Tells a service manager how the run is: ready, alive, how far, stopping (sd_notify(3)).

    It uses the thread of the loop: when the loop is stuck, the signs of life stop, as they should.
    """

    def __init__(self, address: str, watchdog_s: float | None) -> None:
        """`watchdog_s` is how long the manager puts up with silence, None for ever."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._alive_every_s = watchdog_s / 3 if watchdog_s else float("inf")
        self._alive_s = self._progress_s = -1e9
        self._begun = self._ready = False

    def event(self, event: Event, state: RunState) -> None:
        # Before them, a model may be fetched for an hour. A run that finds all its work done has to be ready all the
        # same: systemd takes a service of Type=notify that ends without having been ready for a failed one.
        self._begun |= isinstance(event, of.AttemptStarted | of.Assembling | of.RunEnded)
        self._tell_readiness()
        if isinstance(event, of.ChunkCommitted):
            now_s = time.monotonic()
            if event.chunks_done == event.chunks or now_s - self._progress_s >= _STATUS_S:
                self._progress_s = now_s
                self._send_status(progress_line(snapshot_of(state, time.time())))
        elif words := event.what if isinstance(event, of.Halted) else event.line:
            self._send_status(words)
        if isinstance(event, of.Draining):
            self._send("STOPPING=1")

    def tick(self) -> None:
        self._tell_readiness()
        now_s = time.monotonic()
        if now_s - self._alive_s >= self._alive_every_s and self._send("WATCHDOG=1"):
            self._alive_s = now_s

    def _tell_readiness(self) -> None:
        if self._begun and not self._ready:
            self._ready = self._send("READY=1")

    def _send_status(self, words: str) -> None:
        self._send(f"STATUS={' '.join(words.split())}")

    def _send(self, message: str) -> bool:
        """Send one datagram, without ever waiting for the manager; return whether it has it."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as link:
                link.sendto(message.encode(errors="replace"), self._address)
        except OSError:  # its queue is full, or it is gone
            return False
        return True


if __name__ == "__main__":
    main()
