"""What other programs hear of a run: metrics and notices."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.config.load import from_values
from chunkvisor.errors import Halt
from chunkvisor.events.event import Draining, Event, Halted, OutputOpened, Quarantined, RunEnded
from chunkvisor.events.state import Progress, RunState
from chunkvisor.show import notices as notices_module
from chunkvisor.show.metrics import METRICS, Metrics
from chunkvisor.show.notices import Notices
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.supervise import session
from chunkvisor.supervise.session import require_extras
from harness import Workplace, contents, wait_for
from late import Late, needs
from servers import Handler, serving

SECRET = "s3cr3t-of-the-address"
prometheus = Late("prometheus_client.parser")
TEXTS = [f"text {number}" for number in range(12)]


# Metrics.


def figures(path: Path) -> dict[tuple[str, ...], float]:
    """(name, values of its labels but the workdir…) -> value, as Prometheus reads the file."""
    found = dict[tuple[str, ...], float]()
    for family in prometheus.text_string_to_metric_families(path.read_text()):
        assert family.documentation
        assert family.type == ("counter" if family.samples[0].name.endswith("_total") else "gauge")
        for sample in family.samples:
            assert sample.labels.pop("workdir") == str(path.parent / "work")
            found[sample.name, *sample.labels.values()] = sample.value
    return found


@needs("prometheus_client")
def test_a_run_leaves_its_figures(workplace: Workplace) -> None:
    """Rows, attempts by outcome, the devices' time and the exit code are in the file when a run has
    ended.
    """
    texts = [f"text {number}" for number in range(40)]
    workplace.write_source([*texts, *texts])
    kwargs = {"plan": {"out/1": "segfault@encode"}, "times": 1}
    workplace.write_config(
        "misbehaving:make", model__kwargs=kwargs, metrics__textfile="chunkvisor.prom"
    )

    workplace.ends(0)
    found = figures(workplace.folder / "chunkvisor.prom")
    assert found["chunkvisor_rows", "out"] == found["chunkvisor_rows_done", "out"] == 80
    assert found["chunkvisor_chunks", "out"] == found["chunkvisor_chunks_done", "out"] == 4
    assert found["chunkvisor_texts_total", "out"] == 40
    assert found["chunkvisor_attempts_total", "committed"] == 4
    assert found["chunkvisor_attempts_total", "crashed"] == 1
    assert found["chunkvisor_device_busy_seconds_total", "0"] > 0
    assert found[("chunkvisor_exit_code",)] == 0
    assert list(workplace.folder.glob("chunkvisor.prom?*")) == []


@needs("prometheus_client")
def test_two_jobs_in_one_folder_do_not_collide(tmp_path: Path) -> None:
    """No sample of a workdir has name and labels of another's, whatever is in the workdirs' names."""
    samples = list[tuple[str, frozenset[tuple[str, str]]]]()
    for name in ("one", 'tw"o\\\n'):
        metrics = Metrics(tmp_path / f"{len(samples)}.prom", tmp_path / name)
        metrics.watch(RunState(outputs={"out": Progress(4)}))
        metrics.close()
        text = (tmp_path / f"{len(samples)}.prom").read_text()
        for family in prometheus.text_string_to_metric_families(text):
            for sample in family.samples:
                assert sample.labels["workdir"] == str(tmp_path / name)
                samples.append((sample.name, frozenset(sample.labels.items())))
    assert len(samples) == len(set(samples)) >= 2 * len(METRICS) - 10


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the library of a key is not installed, the run is refused with the extra to install."""
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    outputs = {"o": {"source": "s.csv", "column": "c"}}
    values = {"workdir": "w", "model": {"name": "m"}, "outputs": outputs, "notify": ["json://h"]}
    with pytest.raises(Halt) as refused:
        require_extras(from_values(values, tmp_path))
    assert "apprise" in refused.value.what
    assert ".[notify]" in refused.value.remedy


# Notices.


class Receiver(http.server.ThreadingHTTPServer):
    """Takes notices by HTTP, and answers that it cannot."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taker)
        self.got: list[dict[str, Any]] = []
        self.url = f"json://user:{SECRET}@127.0.0.1:{self.server_address[1]}/"


class Taker(Handler):
    """Notes what is posted."""

    server: Receiver

    def do_POST(self) -> None:
        """Note it."""
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_error(500)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A server on this machine, for which there is all the time that a busy one may need."""
    monkeypatch.setattr(notices_module, "END_S", 60.0)
    receiver = Receiver()
    with serving(receiver):
        yield receiver


@needs("apprise")
@pytest.mark.parametrize(
    "plan", [{}, {"out/0": "segfault@encode"}], ids=["complete", "quarantined"]
)
def test_the_end_is_told(workplace: Workplace, receiver: Receiver, plan: dict[str, str]) -> None:
    """Rows, or the first bad row and the words of the command; no file and no terminal has an
    address.
    """
    workplace.write_source(TEXTS[:8])
    kwargs = {"plan": plan, "times": None}
    workplace.write_config(
        "misbehaving:make", model__kwargs=kwargs, chunk__size=4, notify=[receiver.url]
    )
    ended = workplace.ends(3 if plan else 0)
    titles = [notice["title"].split(": ")[1] for notice in receiver.got]
    assert titles == (["a row is quarantined", "ended with exit code 3"] if plan else ["complete"])
    types = [notice["type"] for notice in receiver.got]
    assert types == (["warning", "warning"] if plan else ["success"])
    assert ("do:  " if plan else "out: 8 rows") in receiver.got[-1]["message"]
    assert SECRET.encode() not in b"".join(contents(workplace.workdir).values())
    assert SECRET not in ended.stdout + ended.stderr
    record = workplace.hidden / "runs" / "latest" / "notices.jsonl"
    assert record.read_text().count('"not delivered to all"') == len(titles)
    if not plan:
        workplace.ends(0)
        assert len(receiver.got) == 1, "there was nothing to do"


@needs("apprise")
@pytest.mark.parametrize(
    "value", [["json://localhost", f"what://{SECRET}"], [["x", SECRET]]], ids=str
)
def test_a_wrong_address_is_refused_unseen(workplace: Workplace, value: object) -> None:
    """What is wrong under notify is refused before the run, and not repeated."""
    workplace.prepare(["a"], "good:make", notify=value)
    ended = workplace.run()
    assert (ended.returncode, "notify" in ended.stderr, SECRET in ended.stderr) == (78, True, False)


OPENED = OutputOpened("out", 4, 4, 1)


@pytest.mark.parametrize(
    ("happened", "told"),
    [
        ([OPENED, RunEnded(0)], ["success: complete"]),
        ([RunEnded(0)], []),
        (
            [OPENED, Quarantined("out", 1), Quarantined("out", 2), Halted(3)],
            ["warning: a row is quarantined", "warning: ended with exit code 3"],
        ),
        ([OPENED, Halted(75)], ["warning: ended with exit code 75"]),
        ([OPENED, Draining("--stop-after"), Halted(75)], []),
        ([OPENED, Draining("SIGTERM"), Halted(143)], []),
        ([OPENED, Halted(143)], []),
        ([OPENED, Draining("SIGINT"), Halted(130)], []),
        ([OPENED, Draining("SIGTERM"), Halted(74)], ["failure: ended with exit code 74"]),
        ([OPENED, Halted(78)], ["failure: ended with exit code 78"]),
        ([Halted(78)], []),
        ([Halted(69)], ["failure: ended with exit code 69"]),
        ([Halted(1)], ["failure: ended with exit code 1"]),
    ],
    ids=lambda value: " ".join(each.name for each in value if isinstance(each, Event)),
)
def test_notices_are_for_what_needs_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happened: list[Event], told: list[str]
) -> None:
    """Each has the type that apprise sorts by; a run that was told to stop sends none, nor one that
    refuses its config before it works.
    """
    got = list[str]()

    class Sender:
        def notify(self, *, title: str, notify_type: str, **words: str) -> bool:
            got.append(f"{notify_type}: {title.split(': ')[1]}")
            return True

    monkeypatch.setattr(notices_module, "sender_to", lambda _: (Sender(), []))
    notices = Notices(["x"], Layout(tmp_path), None)
    notices.watch(RunState())
    for event in happened:
        notices.state.apply(event, 1.0)
        notices.event(event)
    notices.close()
    assert got == told


def test_the_end_waits_a_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices arrive in order; one that is never answered does not hold up the end; none tells of a
    Ctrl-C.
    """
    told, go_on = list[str](), threading.Event()

    class Sender:
        def notify(self, *, title: str, **words: str) -> bool:
            told.append(title.split(": ")[1])
            return title.count("74") == 0 or go_on.wait()

    monkeypatch.setattr(notices_module, "sender_to", lambda _: (Sender(), []))
    monkeypatch.setattr(notices_module, "END_S", 0.1)
    notices = Notices(["x"], Layout(tmp_path), InvocationFiles(tmp_path))
    for code in (3, 130, 74, 143):
        notices.event(Halted(code, "x"))
    wait_for(lambda: len(told) == 2)
    notices.close()
    assert told == ["ended with exit code 3", "ended with exit code 74"]
    (line,) = (tmp_path / "notices.jsonl").read_text().splitlines()
    assert json.loads(line)["end"] == "delivered"
    go_on.set()
