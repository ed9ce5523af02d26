"""What a service manager hears of a run, over a real socket (sd_notify(3))."""

import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Iterator

import psutil
import pytest

from chunkvisor.events.event import AttemptStarted, ChunkCommitted, Event, Go, Halted, OutputOpened
from chunkvisor.events.state import RunState
from chunkvisor.show.observer import Observer
from chunkvisor.show.systemd import Systemd, service_manager
from harness import Workplace, finish, wait_for

TEXTS = [f"text {number}" for number in range(12)]
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Manager:
    """The socket of a service manager; `heard` has all assignments so far."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def hears(self, start: str) -> bool:
        """Whether an assignment that begins like this has come."""
        while True:
            try:
                self.heard += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return any(line.startswith(start) for line in self.heard)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


@pytest.fixture
def path() -> Iterator[str]:
    """Where a socket can be bound: the kernel takes 107 characters, and pytest's own folders may have more."""
    with tempfile.TemporaryDirectory(prefix="chunkvisor-", dir="/tmp") as folder:
        yield f"{folder}/notify"


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, path: str) -> Iterator[Manager]:
    """A manager that listens at a path, or in the abstract namespace."""
    manager = Manager(path if request.param == "path" else f"@chunkvisor-test-{secrets.token_hex(8)}")
    yield manager
    manager.close()


def test_run_is_ready_alive_and_stopping(workplace: Workplace, manager: Manager) -> None:
    """The manager hears when the loop begins, that it lives, how far it is, and that it stops; workers stay silent."""
    workplace.write_source(TEXTS)
    workplace.write_config("waiting:make", model__kwargs={"chunk": 1}, chunk__size=4)
    env = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "300000"}
    process = workplace.start("run", str(workplace.config_path), env=env)
    wait_for(lambda: manager.hears("READY=1"))
    # Always listening: a socket's queue has room for ten messages (net.unix.max_dgram_qlen), and then they are lost.
    wait_for(lambda: manager.hears("STATUS=computing") and (workplace.folder / "waiting").exists())
    del manager.heard[:]
    wait_for(lambda: manager.hears("WATCHDOG=1"))
    for child in psutil.Process(process.pid).children(recursive=True):
        assert not set(VARIABLES) & set(child.environ())

    process.send_signal(signal.SIGTERM)
    wait_for(lambda: manager.hears("STOPPING=1"))
    assert manager.hears("STATUS=SIGTERM: finishing")
    del manager.heard[:]
    wait_for(lambda: manager.hears("WATCHDOG=1"))
    (workplace.folder / "release").touch()
    assert finish(process).returncode == 143


def test_run_with_nothing_to_do_is_ready_before_it_ends(workplace: Workplace, manager: Manager) -> None:
    """Else systemd would take it for a failure, and start it again and again."""
    workplace.write_source(TEXTS)
    workplace.write_config("good:make")
    assert workplace.run().returncode == 0
    assert workplace.run(env={"NOTIFY_SOCKET": manager.address}).returncode == 0
    assert manager.hears("READY=1")
    assert not manager.hears("WATCHDOG")


def test_run_that_cannot_begin_is_never_ready(workplace: Workplace, manager: Manager) -> None:
    """It tells why instead."""
    workplace.write_source(TEXTS)
    workplace.write_config("good:make", outputs__out__column="none")
    assert workplace.run(env={"NOTIFY_SOCKET": manager.address}).returncode == 78
    assert manager.hears("STATUS=")
    assert "none" in manager.heard[-1]
    assert not manager.hears("READY=1")


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_nobody_to_tell(address: str) -> None:
    """Without an address that is ours to use, nothing is told; the variables are taken out all the same."""
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    assert type(service_manager(environ)) is Observer
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize(
    ("microseconds", "pid", "watched"),
    [("1", "own", True), ("1", "", True), ("1", "1", False), ("", "", False), ("soon", "", False)],
)
def test_who_is_watched(manager: Manager, microseconds: str, pid: str, watched: bool) -> None:
    """Signs of life are sent where a time is given, and the process that is meant is this one."""
    pid = str(os.getpid()) if pid == "own" else pid
    environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": microseconds, "WATCHDOG_PID": pid}
    service_manager(environ).tick()
    assert manager.hears("WATCHDOG=1") == watched


def test_manager_that_is_away_for_a_while(path: str) -> None:
    """Nothing is raised, and readiness is told as soon as somebody listens."""
    observer = Systemd(path, watchdog_s=60)
    observer.event(AttemptStarted("out", 1, 1), RunState())
    observer.tick()

    manager = Manager(path)
    for _ in range(2):
        observer.tick()
    assert manager.hears("READY=1")
    assert manager.heard == ["READY=1", "WATCHDOG=1"]
    manager.close()


def test_status_is_one_line_and_not_a_flood(manager: Manager) -> None:
    """Whatever a message holds, the status is one line; progress is told now and then, and at the end."""
    observer, state = Systemd(manager.address, None), RunState()
    events: list[Event] = [
        OutputOpened("out", rows=100, distinct=100, chunks=100, chunk_size=1),
        Go("out", 0, 1, rows=1),
    ]
    events += [ChunkCommitted("out", done, 1, done, done, 100) for done in range(1, 101)]
    for event in [*events, Halted(1, "wrong\nREADY=1\n")]:
        state.apply(event, 1000.0)
        observer.event(event, state)
    assert manager.hears("STATUS=wrong READY=1")
    opened, first, last, halted = manager.heard
    assert opened == "STATUS=out: 100 chunks of up to 1 text"
    assert "1 of 100 chunks" in first
    assert "100 of 100 chunks" in last
    assert halted == "STATUS=wrong READY=1"
