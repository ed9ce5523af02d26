"""Notices: who is told of what, and that no notifier hurts a run."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chunkvisor.events.event import ChunkCommitted, Halted, OutputOpened, Quarantined
from chunkvisor.events.state import RunState
from chunkvisor.show import notices
from chunkvisor.show.notices import Notices
from chunkvisor.store.layout import InvocationFiles, Layout
from harness import Workplace, wait_for
from late import needs

pytestmark = needs("apprise")

SECRET = "s3cr3t-of-the-address"


class Receiver(http.server.ThreadingHTTPServer):
    """Takes notices by HTTP; `hold` keeps every answer back."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[dict[str, Any]] = []
        self.answer = 200
        self.hold = threading.Event()
        self.hold.set()

    @property
    def url(self) -> str:
        """In apprise's form."""
        return f"json://user:{SECRET}@127.0.0.1:{self.server_address[1]}/"


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
    monkeypatch.setattr(notices, "END_S", 60.0)
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


def run(workplace: Workplace, receiver: Receiver, plan: dict[str, str], **changes: Any) -> Any:
    """A run of two chunks that notifies the receiver."""
    workplace.write_source([f"text {number}" for number in range(8)])
    kwargs = {"plan": plan, "times": None}
    workplace.write_config("misbehaving:make", model__kwargs=kwargs, chunk__size=4, notify=[receiver.url], **changes)
    return workplace.run()


def test_completion_is_told(workplace: Workplace, receiver: Receiver) -> None:
    """A finished run sends one notice with its rows; the same command again, with nothing to do, sends none."""
    ended = run(workplace, receiver, {})

    assert ended.returncode == 0, ended.stderr
    assert titles(receiver) == ["complete"]
    assert "out: 8 rows" in receiver.got[0]["message"]
    assert workplace.run().returncode == 0
    assert len(receiver.got) == 1


def test_a_halt_is_told_in_the_words_of_the_command(workplace: Workplace, receiver: Receiver) -> None:
    """The notice of a halt has what, why and what to do, as standard error has them."""
    ended = run(workplace, receiver, {"out/0": "no_gpu@load"})

    assert ended.returncode == 78, ended.stderr
    assert titles(receiver) == ["ended with exit code 78"]
    what = next(line for line in ended.stderr.splitlines() if line.startswith("chunkvisor: "))
    assert what.removeprefix("chunkvisor: ") in receiver.got[0]["message"]
    assert "do:  " in receiver.got[0]["message"]


def test_the_first_quarantined_row_is_told(workplace: Workplace, receiver: Receiver) -> None:
    """However many rows are quarantined, one notice tells of the first, and one of the end."""
    ended = run(workplace, receiver, {"out/0": "segfault@encode"})

    assert ended.returncode == 3, ended.stderr
    assert titles(receiver) == ["a row is quarantined", "ended with exit code 3"]


def test_addresses_are_nowhere(workplace: Workplace, receiver: Receiver) -> None:
    """No file of the workdir and nothing on the terminal has an address or its password."""
    receiver.answer = 500
    ended = run(workplace, receiver, {"out/0": "segfault@encode"})

    assert titles(receiver)
    files = [path for path in workplace.workdir.rglob("*") if path.is_file()]
    assert any(path.name == "config.yaml" for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in ended.stdout + ended.stderr
    record = workplace.hidden / "runs" / "latest" / "notices.jsonl"
    assert {json.loads(line)["end"] for line in record.read_text().splitlines()} == {"not delivered to all"}


@pytest.mark.parametrize("address", ["nonsense", f"what://{SECRET}", ""])
def test_a_wrong_address_is_refused_unseen(workplace: Workplace, address: str) -> None:
    """An address that apprise does not understand is refused by its place, before the run, and not repeated."""
    workplace.write_source(["a"])
    workplace.write_config("good:make", notify=["json://localhost", address])

    ended = workplace.run()

    assert ended.returncode == 78
    assert "notify" in ended.stderr
    assert not address or address not in ended.stderr


@pytest.mark.parametrize("value", [{"a": SECRET}, 7, [["x", SECRET]]], ids=str)
def test_a_wrong_value_is_not_repeated(workplace: Workplace, value: object) -> None:
    """What stands under notify is not shown, even where it is no address at all."""
    workplace.write_source(["a"])
    workplace.write_config("good:make", notify=value)

    ended = workplace.run("--set", f"notify=[{SECRET}")

    assert ended.returncode == 78
    assert SECRET not in ended.stderr


def test_a_dead_notifier_is_not_waited_for(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notifier that never answers is ended with the run, after its time limit."""
    receiver.hold.clear()
    told = Notices([receiver.url], Layout(tmp_path), InvocationFiles(tmp_path))
    told.event(Halted(69, "x"), RunState())
    wait_for(lambda: receiver.got)
    told.tick()
    monkeypatch.setattr(notices, "END_S", 0.1)

    told.close()

    assert "not delivered" in (tmp_path / "notices.jsonl").read_text()


def test_notices_arrive_in_order(tmp_path: Path, receiver: Receiver) -> None:
    """The next notice is sent when the one before has been delivered, however long that takes."""
    receiver.hold.clear()
    told = Notices([receiver.url], Layout(tmp_path), InvocationFiles(tmp_path))
    for code in (3, 69, 78):
        told.event(Halted(code, "x"), RunState())
    wait_for(lambda: receiver.got)
    told.tick()
    receiver.hold.set()

    told.close()

    assert titles(receiver) == [f"ended with exit code {code}" for code in (3, 69, 78)]
    record = [json.loads(line) for line in (tmp_path / "notices.jsonl").read_text().splitlines()]
    assert [each["end"] for each in record] == ["delivered"] * 3


def test_a_notifier_that_cannot_be_started_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no child can be started there is no notice, and no exception."""
    monkeypatch.setattr(notices, "_COMMAND", (str(tmp_path / "missing"),))
    told = Notices(["json://localhost"], Layout(tmp_path), None)

    told.event(Quarantined("o", 1, "p", "crashed", "r"), RunState())
    told.close()


def test_an_interruption_by_the_person_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has pressed Ctrl-C need not be told."""
    told = Notices(["json://localhost"], Layout(tmp_path), None)
    monkeypatch.setattr(told, "_send", lambda *_: pytest.fail("a notice was sent"))

    told.event(Halted(130, "stopped"), RunState())


@pytest.mark.parametrize(
    ("commits_s", "now_s", "stalled"),
    [
        pytest.param([], 1700, False, id="first chunk, half an hour not over"),
        pytest.param([], 1900, True, id="first chunk, too long"),
        pytest.param([10, 20, 30], 1800, False, id="quick chunks have half an hour too"),
        pytest.param([10, 20, 30], 1900, True, id="quick chunks, too long"),
        pytest.param([1000, 2000], 11_000, False, id="slow chunks have ten times the usual"),
        pytest.param([1000, 2000], 12_500, True, id="slow chunks, too long"),
    ],
)
def test_stalls(
    commits_s: list[float], now_s: float, stalled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times the usual, and half an hour at least, without a chunk is a stall."""
    sent: list[str] = []
    told = Notices(["json://localhost"], Layout(tmp_path), None)
    monkeypatch.setattr(told, "_send", lambda what, _body: sent.append(what))
    clock = iter([0.0, *map(float, commits_s), float(now_s)])
    monkeypatch.setattr(notices, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    told.event(OutputOpened("o", 1, 1, 1), RunState())
    for _ in commits_s:
        told.event(ChunkCommitted("o", 0, 1, 1, 1, 1), RunState())

    told.tick()

    assert sent == ["no progress"] * stalled


def test_a_stall_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stall is told once; the next one, after a chunk, once more."""
    sent: list[str] = []
    told = Notices(["json://localhost"], Layout(tmp_path), None)
    monkeypatch.setattr(told, "_send", lambda what, body: sent.append(what))
    now = {"s": 0.0}
    monkeypatch.setattr(notices, "time", SimpleNamespace(monotonic=lambda: now["s"]))
    told.event(OutputOpened("o", 1, 1, 1), RunState())

    for _ in range(2):
        now["s"] += 4000
        told.tick()
        told.tick()
        told.event(ChunkCommitted("o", 0, 1, 1, 1, 1), RunState())

    assert sent == ["no progress", "no progress"]
