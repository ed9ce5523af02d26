"""`chunkvisor report`: one page from the folder alone, whatever state that is in."""

import html.parser
import json
import shutil
from pathlib import Path

import pytest

from chunkvisor.show import record
from harness import kill, wait_for
from scripted_workplace import ScriptedWorkplace

TEXTS = [f"text {number}" for number in range(12)]
VOID = {"meta", "link"}


class Page(html.parser.HTMLParser):
    """A page as a browser would see it: its tags, its words, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag without an end."""
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Every tag is closed in order."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note what a person reads."""
        if not {"style", "script"}.intersection(self._open):
            self.words.append(data)

    @property
    def text(self) -> str:
        """All that a person reads, in one line."""
        return " ".join(" ".join(self.words).split())


def page_of(path: Path) -> Page:
    """The page; it is sound, loads nothing and runs nothing."""
    page = Page(path.read_text("utf-8"))
    assert set(page.loads) <= {"data:,"}
    assert page.handlers == []
    assert "script" not in page.tags
    return page


def report(place: ScriptedWorkplace) -> Page:
    """What `chunkvisor report` writes now."""
    ended = place.here("report", str(place.workdir))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == str(place.workdir / "report.html")
    return page_of(place.workdir / "report.html")


@pytest.fixture
def place(tmp_path: Path) -> ScriptedWorkplace:
    """Three chunks."""
    return ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=4)


def test_a_run_writes_its_report(place: ScriptedWorkplace) -> None:
    """At the end of a run the page is there: what became of it, what failed, how long it took, with which config."""
    place.lay("text 5", "crash")

    assert place.run_here().returncode == 0

    page = page_of(place.workdir / "report.html")
    assert "complete out: 100 %, 12 of 12 rows, 3 of 3 chunks" in page.text
    assert "nothing to do" in page.text
    assert "out chunk 1, attempt 1: crashed" in page.text
    assert "Segmentation fault" in page.text
    assert "Over time Throughput" in page.text
    assert page.tags.count("svg") == page.tags.count("figcaption") >= 2, "of memory only if it was read three times"
    headings = ["What failed", "Over time", "What happened", "Files", str(place.workdir / "out.json")]
    assert sorted(headings, key=page.text.rindex) == headings, "the failure comes first, the paths last"


def test_a_report_goes_where_it_is_wanted(place: ScriptedWorkplace, tmp_path: Path) -> None:
    """-o names the file; where it cannot be written, the words say so."""
    assert place.run_here().returncode == 0

    assert place.here("report", str(place.workdir), "-o", str(tmp_path / "night.html")).returncode == 0
    refused = place.here("report", str(place.workdir), "-o", str(tmp_path / "nowhere" / "night.html"))

    assert "complete" in page_of(tmp_path / "night.html").text
    assert refused.returncode == 74
    assert "cannot be written" in refused.stderr


def test_a_halt_says_what_to_do(place: ScriptedWorkplace) -> None:
    """Rows without a vector are on the page with file and line; after a halt the last words of the run."""
    place.lay("text 5", "value_error!")
    assert place.run_here().returncode == 3
    page = page_of(place.workdir / "report.html")
    assert "complete, but 1 row has no vector" in page.text
    assert f"{place.source}:6" in page.text
    assert "chunkvisor retry" in page.text
    place.write_config("scripted:make", chunk__size=4, recovery__on_bad_row="fail")

    ended = place.run_here("--from-scratch", "--yes")

    assert ended.returncode == 78
    page = page_of(place.workdir / "report.html")
    assert "halted" in page.text
    assert "do: Correct or remove the row" in page.text


def test_live_and_killed(place: ScriptedWorkplace) -> None:
    """Beside a live run the page says that it runs; after a kill, that it was killed and how to go on."""
    place.lay("text 5", "wait!")
    process = place.start("run", str(place.config_path))
    wait_for(lambda: len(place.calls()) == 2)
    assert "running (pid " in report(place).text
    kill(process)
    killed = report(place).text
    assert "stopped: its process was killed" in killed
    assert "run the same command again" in killed


@pytest.mark.parametrize("damage", ["no-journal", "garbage", "sensors", "no-state"])
def test_a_damaged_folder_has_a_report(place: ScriptedWorkplace, damage: str) -> None:
    """What is missing or damaged is left out of the page."""
    place.lay("text 5", "crash")
    assert place.run_here().returncode == 0
    events, invocations = place.hidden / "events.jsonl", place.hidden / "runs"
    match damage:
        case "no-journal":
            events.unlink()
        case "garbage":
            events.write_bytes(
                bytes(range(256)) * 300 + b"\n" + events.read_bytes() + b'\n{"event": 1}\n[]\n{"event": "go"}'
            )
        case "sensors":
            (invocations / "latest" / "sensors.jsonl").write_bytes(
                b'{"t": 1e400}\n{"t": "x", "gpus": [1]}\n\xff\xfe{"gpus"'
            )
            (invocations / "latest" / "environment.json").write_text('{"packages": 3, "host": ["x"]}')
        case "no-state":
            shutil.rmtree(place.hidden / "outputs")

    assert len(report(place).text) > 200


def test_a_hostile_log_is_harmless(place: ScriptedWorkplace) -> None:
    """Markup, control characters, tokens, broken UTF-8 and endless lines of a log or a journal become plain words."""
    place.lay("text 5", "crash")
    assert place.run_here().returncode == 0
    attempt = place.hidden / "outputs/out" / "attempts" / "000001" / "001"
    hostile = '</pre></style><script>alert(1)</script><img src=x onerror="alert(2)">{{ 7 * 7 }}{% endfor %}'
    (attempt / "worker.log").write_bytes(
        f"{hostile}\n".encode()
        + b"\x1b[2J\x1b]0;title\x07\x00\xff\xfe\xc3(\n"
        + b"token hf_abcdefghijklmnop\n"
        + b"x" * 3_000_000
        + b"\nthe end"
    )
    (attempt / "fault.json").write_text("[" * 100_000)
    with open(place.hidden / "events.jsonl", "a") as events:
        for name in ("halted", "attempt_failed", "quarantined", "waiting", "run_started"):
            values = dict.fromkeys(
                ("what", "why", "remedy", "reason", "output", "outcome", "rule", "place", "row", "device"), hostile
            )
            events.write(json.dumps({"event": name, "t": 1_800_000_000, "run": hostile, "code": 1, **values}) + "\n")

    page = report(place)

    assert "<script>alert(1)</script>" in page.text  # as words
    assert "{{ 7 * 7 }}" in page.text
    assert "the end" in page.text
    assert "img" not in page.tags
    assert "hf_abc" not in page.text
    assert "\x1b" not in page.text
    assert (place.workdir / "report.html").stat().st_size < 300_000


def test_a_journal_cannot_show_files_from_elsewhere(place: ScriptedWorkplace, tmp_path: Path) -> None:
    """Logs are looked up in the workdir by output and number, whatever path a journal gives."""
    place.lay("text 5", "crash")
    assert place.run_here().returncode == 0
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "attempts" / "000000" / "001").mkdir(parents=True)
    (elsewhere / "attempts" / "000000" / "001" / "worker.log").write_text("private words")
    output = "../../../elsewhere"
    event = {"event": "attempt_failed", "t": 1_800_000_000, "run": "r", "output": output, "chunk": 0, "attempt": 1}
    with open(place.hidden / "events.jsonl", "a") as events:
        events.write(json.dumps({**event, "outcome": "crashed", "log": str(elsewhere)}) + "\n")

    assert "private words" not in report(place).text


def test_a_long_story_does_not_hold_up_the_end(place: ScriptedWorkplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a journal beyond the limit the report is left to the command."""
    monkeypatch.setattr(record, "MOST_BYTES", 100)

    assert place.run_here().returncode == 0
    assert not (place.workdir / "report.html").exists()
    assert "complete" in report(place).text


def test_a_failing_report_does_not_fail_the_run(place: ScriptedWorkplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with the report, the run ends as it would without."""
    monkeypatch.setattr("chunkvisor.show.report.render", lambda *_: 1 / 0)

    ended = place.run_here()

    assert ended.returncode == 0
    assert "Reporter is left out" in ended.stderr
