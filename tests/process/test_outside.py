"""What other programs hear of a run: metrics, notices, and a service manager over a real socket (sd_notify(3))."""

import http.server
import json
import re
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from chunkvisor.config.model import Config
from chunkvisor.errors import Halt
from chunkvisor.events.event import (
    AttemptStarted,
    ChunkCommitted,
    Draining,
    Event,
    Halted,
    Invoked,
    OutputOpened,
)
from chunkvisor.events.state import RunState
from chunkvisor.show import outside
from chunkvisor.show.lines import Observer
from chunkvisor.show.outside import Metrics, Notices, Systemd, service_manager
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.supervise import session
from chunkvisor.supervise.session import require_extras
from harness import Workplace, finish, wait_for
from late import needs

SECRET = "s3cr3t-of-the-address"
TEXTS = [f"text {number}" for number in range(12)]


# Metrics.


def figures(path: Path) -> dict[tuple[str, ...], float]:
    """(name, label values…) -> value; each sample has a help line and a type line above it."""
    found, described = dict[tuple[str, ...], float](), set[tuple[str, str]]()
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            _, kind, name, words = line.split(" ", 3)
            assert kind == "HELP" or words in ("gauge", "counter")
            described.add((kind, name))
            continue
        match = re.fullmatch(r'(\w+)(?:\{\w+="(.*)"\})? (\S+)', line)
        assert match is not None, line
        assert {("HELP", match[1]), ("TYPE", match[1])} <= described
        found[(match[1],) if match[2] is None else (match[1], match[2])] = float(match[3])
    return found


def test_a_run_leaves_its_figures(workplace: Workplace) -> None:
    """Rows, attempts by outcome, the devices' time and the exit code are in the file when a run has ended."""
    texts = [f"text {number}" for number in range(40)]
    workplace.write_source([*texts, *texts])
    kwargs = {"plan": {"out/1": "segfault@encode"}, "times": 1}
    workplace.write_config("misbehaving:make", model__kwargs=kwargs, metrics__textfile="chunkvisor.prom")

    ended = workplace.run()

    assert ended.returncode == 0, ended.stderr
    found = figures(workplace.folder / "chunkvisor.prom")
    assert found["chunkvisor_rows", "out"] == found["chunkvisor_rows_done", "out"] == 80
    assert found["chunkvisor_chunks", "out"] == found["chunkvisor_chunks_done", "out"] == 4
    assert found["chunkvisor_texts_total", "out"] == 40
    assert found["chunkvisor_attempts_total", "committed"] == 4
    assert found["chunkvisor_attempts_total", "crashed"] == 1
    assert found["chunkvisor_device_busy_seconds_total", "0"] > 0
    assert found["chunkvisor_exit_code",] == 0
    assert list(workplace.folder.glob("chunkvisor.prom?*")) == []


def test_a_file_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    """A folder that vanishes costs the figures, not the run; one that was never there is refused before it."""
    metrics = Metrics(tmp_path / "gone" / "chunkvisor.prom")
    metrics.tick()
    metrics.close()
    with pytest.raises(Halt, match="there is no folder"):
        require_extras(config(tmp_path, metrics={"textfile": "nowhere/m.prom"}))


def config(tmp_path: Path, **keys: Any) -> Config:
    """A config with these keys."""
    values = {"workdir": "w", "model": {"name": "m"}, "outputs": {"o": {"source": "s.csv", "column": "c"}}}
    return Config.model_validate({**values, **keys}, context={"folder": tmp_path})


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the library of a key is not installed, the run is refused with the extra to install."""
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(Halt) as refused:
        require_extras(config(tmp_path, notify=["json://h"]))
    assert "apprise" in refused.value.what
    assert "chunkvisor[notify]" in refused.value.remedy


# Notices.


class Receiver(http.server.ThreadingHTTPServer):
    """Takes notices by HTTP; `hold` keeps every answer back."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[dict[str, Any]] = []
        self.answer = 200
        self.hold = threading.Event()
        self.hold.set()
        self.url = f"json://user:{SECRET}@127.0.0.1:{self.server_address[1]}/"


class Handler(http.server.BaseHTTPRequestHandler):
    """Notes what is posted."""

    server: Receiver

    def do_POST(self) -> None:
        """Note it, and answer as the server is told to."""
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.hold.wait(60)
        self.send_response(self.server.answer)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A server on this machine, for which there is all the time that a busy one may need."""
    monkeypatch.setattr(outside, "END_S", 60.0)
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.hold.set()
    server.shutdown()
    server.server_close()
    thread.join()


def titles(receiver: Receiver) -> list[str]:
    """What each notice is about."""
    return [notice["title"].split(": ")[1] for notice in receiver.got]


def run(workplace: Workplace, receiver: Receiver, plan: dict[str, str]) -> Any:
    """A run of two chunks that notifies the receiver."""
    workplace.write_source(TEXTS[:8])
    kwargs = {"plan": plan, "times": None}
    workplace.write_config("misbehaving:make", model__kwargs=kwargs, chunk__size=4, notify=[receiver.url])
    return workplace.run()


@needs("apprise")
def test_completion_is_told(workplace: Workplace, receiver: Receiver) -> None:
    """A finished run sends one notice with its rows; the same command again, with nothing to do, sends none."""
    assert run(workplace, receiver, {}).returncode == 0
    assert titles(receiver) == ["complete"]
    assert "out: 8 rows" in receiver.got[0]["message"]
    assert workplace.run().returncode == 0
    assert len(receiver.got) == 1


@needs("apprise")
def test_what_went_wrong_is_told(workplace: Workplace, receiver: Receiver) -> None:
    """The first quarantined row, and the end in the words of the command; no file and no terminal has an address."""
    receiver.answer = 500
    ended = run(workplace, receiver, {"out/0": "segfault@encode"})

    assert ended.returncode == 3, ended.stderr
    assert titles(receiver) == ["a row is quarantined", "ended with exit code 3"]
    what = next(line for line in ended.stderr.splitlines() if line.startswith("chunkvisor: "))
    assert what.removeprefix("chunkvisor: ") in receiver.got[1]["message"]
    assert "do:  " in receiver.got[1]["message"]
    files = [path for path in workplace.workdir.rglob("*") if path.is_file()]
    assert any(path.name == "config.yaml" for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in ended.stdout + ended.stderr
    record = workplace.hidden / "runs" / "latest" / "notices.jsonl"
    assert [json.loads(line)["end"] for line in record.read_text().splitlines()] == ["not delivered to all"] * 2


@needs("apprise")
@pytest.mark.parametrize("value", [["json://localhost", f"what://{SECRET}"], {"a": SECRET}, [["x", SECRET]]], ids=str)
def test_a_wrong_address_is_refused_unseen(workplace: Workplace, value: object) -> None:
    """What is wrong under notify is refused before the run, and not repeated."""
    workplace.write_source(["a"])
    workplace.write_config("good:make", notify=value)

    ended = workplace.run()

    assert ended.returncode == 78
    assert "notify" in ended.stderr
    assert SECRET not in ended.stderr


@needs("apprise")
def test_the_end_waits_a_little(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices arrive in order, however long one takes; one that is never answered does not hold up the end."""
    told = Notices([receiver.url], Layout(tmp_path), InvocationFiles(tmp_path))
    for code in (3, 69, 130, 78):  # who has pressed Ctrl-C need not be told
        told.event(Halted(code, "x"), RunState())
    told.close()
    assert titles(receiver) == [f"ended with exit code {code}" for code in (3, 69, 78)]
    record = [json.loads(line) for line in (tmp_path / "notices.jsonl").read_text().splitlines()]
    assert [each["end"] for each in record] == ["delivered"] * 3

    receiver.hold.clear()
    monkeypatch.setattr(outside, "END_S", 0.1)
    told = Notices([receiver.url], Layout(tmp_path), InvocationFiles(tmp_path))
    told.event(Halted(74, "x"), RunState())
    wait_for(lambda: len(receiver.got) == 4)
    told.close()
    assert len((tmp_path / "notices.jsonl").read_text().splitlines()) == 3


# systemd.


class Manager:
    """The socket of a service manager; `heard` has all assignments so far."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[str] = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)

    def hears(self, start: str) -> bool:
        """Whether an assignment that begins like this has come."""
        while True:
            try:
                self.heard += self.socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return any(line.startswith(start) for line in self.heard)


@pytest.fixture
def path() -> Iterator[str]:
    """Where a socket can be bound: the kernel takes 107 characters, and pytest's own folders may have more."""
    with tempfile.TemporaryDirectory(prefix="chunkvisor-", dir="/tmp") as folder:
        yield f"{folder}/notify"


@pytest.fixture
def manager() -> Iterator[Manager]:
    """A manager that listens in the abstract namespace."""
    manager = Manager(f"@chunkvisor-test-{secrets.token_hex(8)}")
    yield manager
    manager.socket.close()


def test_run_is_ready_alive_and_stopping(workplace: Workplace, path: str) -> None:
    """The manager hears when the loop begins, that it lives, how far it is, and that it stops; workers stay silent."""
    manager = Manager(path)
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
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(child.environ())
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: manager.hears("STOPPING=1"))
    (workplace.folder / "release").touch()
    assert finish(process).returncode == 143
    manager.socket.close()


def test_readiness_of_a_run_that_is_short(workplace: Workplace, manager: Manager) -> None:
    """With nothing to do it is ready before it ends, or systemd would take it for a failure; one refused never is."""
    workplace.write_source(TEXTS)
    workplace.write_config("good:make")
    assert workplace.run().returncode == 0
    assert workplace.run(env={"NOTIFY_SOCKET": manager.address}).returncode == 0
    assert manager.hears("READY=1")
    del manager.heard[:]
    workplace.write_config("good:make", outputs__out__column="none", workdir="other")
    assert workplace.run(env={"NOTIFY_SOCKET": manager.address}).returncode == 78
    assert manager.hears("STATUS=")
    assert "none" in manager.heard[-1]
    assert not manager.hears("READY=1")


@pytest.mark.parametrize("address", ["", "vsock:2:1234"])
def test_no_manager(address: str) -> None:
    """Without an address that is ours to use, nothing is told; the variables are taken out all the same."""
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    assert type(service_manager(environ)) is Observer
    assert environ == {"HOME": "/"}


def test_what_the_manager_hears(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ready once a worker was started; the status is one line, whatever a message holds, and not a flood."""
    observer, state = Systemd(manager.address, 60), RunState()
    events: list[Event] = [Invoked("w"), OutputOpened("out", 100, 100, 100, 1)]
    events += [ChunkCommitted("out", done, 1, done, done, 100) for done in range(1, 101)]
    for event in events:
        state.apply(event, 1000.0)
        observer.event(event, state)
        observer.tick()
    assert not manager.hears("READY=1")
    assert [line.partition("=")[0] for line in manager.heard] == ["WATCHDOG", "STATUS"]
    for event in (AttemptStarted("out", 1, 1), Halted(1, "wrong\nREADY=1\n")):
        observer.event(event, state)
    observer.close()
    assert manager.hears("READY=1")
    assert manager.heard[2:] == ["STATUS=wrong READY=1", "READY=1"]


def test_a_manager_that_is_gone(path: str) -> None:
    """Nothing is raised."""
    observer = Systemd(path, 60)
    observer.event(Draining("SIGTERM"), RunState())
    observer.close()
