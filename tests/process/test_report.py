"""`chunkvisor report`: one page from the folder alone, whatever state that is in."""

import html.parser
import json
import re
import shutil
from pathlib import Path

import pytest

from scripted_workplace import ScriptedWorkplace

TEXTS = [f"text {number}" for number in range(12)]
VOID = {"meta", "link"}


class Page(html.parser.HTMLParser):
    """A page as a browser would see it: it is sound, loads nothing and runs nothing."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []
        assert "script" not in self.tags

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.tags.append(tag)
        assert {value for name, value in attrs if name in ("src", "href", "data", "action")} <= {
            "data:,"
        }
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Every tag is closed in order."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note what a person reads."""
        if "style" not in self._open:
            self.words.append(data)

    @property
    def text(self) -> str:
        """All that a person reads, in one line."""
        return " ".join(" ".join(self.words).split())


def page_of(path: Path) -> Page:
    """The page in the file."""
    return Page(path.read_text("utf-8"))


def report(place: ScriptedWorkplace) -> Page:
    """What `chunkvisor report` writes now."""
    assert place.does("report").stdout.strip() == str(place.workdir / "report.html")
    return page_of(place.workdir / "report.html")


@pytest.fixture
def place(tmp_path: Path) -> ScriptedWorkplace:
    """Three chunks."""
    return ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=4)


def test_a_run_writes_its_report(place: ScriptedWorkplace) -> None:
    """At the end of a run the page is there: what became of it, what failed, how long it took, with
    which config.
    """
    place.lay("text 5", "crash")

    place.ends(0)

    page = page_of(place.workdir / "report.html")
    html = (place.workdir / "report.html").read_text()
    assert "complete out: 100 %, 12 of 12 rows, 3 of 3 chunks" in page.text
    assert "nothing to do" in page.text
    assert "out chunk 1, attempt 1: crashed" in page.text
    assert "Segmentation fault" in page.text
    assert "Over time Throughput" in page.text
    assert "Memory of a worker at its peak CPU, resident" in page.text
    assert place.status()["devices"]["CPU"]["memory"]["resident_bytes"] > 1 << 20
    assert page.tags.count("svg") == page.tags.count("figcaption") >= 2
    chart = re.search("Attempts</figcaption>.*?</svg>", html, re.DOTALL)
    assert chart is not None
    ends = [line.rpartition(" ")[2] for line in re.findall(r' d="(.*?)h1"', chart[0])]
    assert ends == ["0.0", "66.7"], "3 attempts of up to 3 committed, and 1 failed"
    headings = [
        "What failed",
        "Over time",
        "What happened",
        "Files",
        str(place.workdir / "out.json"),
    ]
    assert sorted(headings, key=page.text.rindex) == headings, (
        "the failure comes first, the paths last"
    )


def test_a_report_goes_where_it_is_wanted(place: ScriptedWorkplace, tmp_path: Path) -> None:
    """-o names the file; where it cannot be written, the words say so."""
    place.ends(0)

    place.does("report", "-o", str(tmp_path / "night.html"))
    refused = place.call("report", place.workdir, "-o", tmp_path / "nowhere" / "night.html")

    assert "complete" in page_of(tmp_path / "night.html").text
    assert refused.returncode == 74
    assert "cannot be written" in refused.stderr


def test_a_halt_says_what_to_do(place: ScriptedWorkplace) -> None:
    """Rows without a vector are on the page with file and line; after a halt the last words of the
    run.
    """
    place.lay("text 5", "value_error!")
    place.ends(3)
    page = page_of(place.workdir / "report.html")
    assert "complete, but 1 row has no vector" in page.text
    assert f"{place.source}:6" in page.text
    assert "chunkvisor retry" in page.text
    place.write_config("scripted:make", chunk__size=4, recovery__on_bad_row="fail")

    place.ends(78, "--from-scratch", "--yes")
    page = page_of(place.workdir / "report.html")
    assert "halted" in page.text
    assert "do: Correct or remove the row" in page.text


@pytest.mark.parametrize("damage", ["no-journal", "garbage", "no-state"])
def test_a_damaged_folder_has_a_report(place: ScriptedWorkplace, damage: str) -> None:
    """What is missing or damaged is left out of the page."""
    place.lay("text 5", "crash")
    place.ends(0)
    events = place.hidden / "events.jsonl"
    match damage:
        case "no-journal":
            events.unlink()
        case "garbage":
            events.write_bytes(
                bytes(range(256)) * 300
                + b"\n"
                + events.read_bytes()
                + b'\n{"event": 1}\n[]\n{"event": "go"}'
            )
        case "no-state":
            shutil.rmtree(place.hidden / "outputs")

    assert len(report(place).text) > 200


def test_a_hostile_log_is_harmless(place: ScriptedWorkplace) -> None:
    """Markup, control characters, tokens, broken UTF-8 and endless lines of a log or a journal
    become plain words.
    """
    place.lay("text 5", "crash")
    place.ends(0)
    attempt = place.hidden / "outputs/out/0001" / "attempts" / "000001" / "001"
    hostile = (
        '</pre></style><script>alert(1)</script><img src=x onerror="alert(2)">{{ 7 * 7 }}{% endfor '
        "%}"
    )
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
            keys = "what why remedy reason output outcome rule place row device"
            values = dict.fromkeys(keys.split(), hostile)
            events.write(
                json.dumps({"event": name, "t": 1_800_000_000, "run": hostile, "code": 1, **values})
                + "\n"
            )

    page = report(place)

    assert "<script>alert(1)</script>" in page.text  # as words
    assert "{{ 7 * 7 }}" in page.text
    assert "the end" in page.text
    assert "img" not in page.tags
    assert "hf_abc" not in page.text
    assert "\x1b" not in page.text
    assert (place.workdir / "report.html").stat().st_size < 300_000


def test_a_journal_cannot_show_files_from_elsewhere(
    place: ScriptedWorkplace, tmp_path: Path
) -> None:
    """Logs are looked up in the workdir by output and number, whatever path a journal gives."""
    place.lay("text 5", "crash")
    place.ends(0)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "attempts" / "000000" / "001").mkdir(parents=True)
    (elsewhere / "attempts" / "000000" / "001" / "worker.log").write_text("private words")
    output = "../../../elsewhere"
    event = {
        "event": "attempt_failed",
        "t": 1_800_000_000,
        "run": "r",
        "output": output,
        "chunk": 0,
        "attempt": 1,
    }
    with open(place.hidden / "events.jsonl", "a") as events:
        events.write(json.dumps({**event, "outcome": "crashed", "log": str(elsewhere)}) + "\n")

    assert "private words" not in report(place).text


@pytest.mark.parametrize(
    ("owner", "value"), [("invocation.MOST_BYTES", 100), ("report.render", lambda *_: 1 / 0)]
)
def test_a_report_does_not_hold_up_the_end(
    place: ScriptedWorkplace, monkeypatch: pytest.MonkeyPatch, owner: str, value: object
) -> None:
    """With a journal beyond the limit it is left to the command; whatever is wrong with it, the run
    ends as without.
    """
    monkeypatch.setattr(f"chunkvisor.show.{owner}", value)
    ended = place.ends(0)
    assert not (place.workdir / "report.html").exists()
    assert ("Reporter is left out" in ended.stderr) == (owner == "report.render")
