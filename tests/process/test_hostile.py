"""Hostile configs, sources and state files: an answer in words each time, and never a wrong vector.

`make test` tries a few, the same each time; `make soak` hundreds, others each time.
"""

import contextlib
import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor.commands.housekeeping import verify
from chunkvisor.config.load import load
from chunkvisor.config.model import Config
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.journal import read_events
from chunkvisor.outputs.state import read as read_output
from chunkvisor.show.status import read_status
from chunkvisor.sources.readers import read_rows
from chunkvisor.sources.resolve import resolve
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.identity import read_facts, read_fixed
from chunkvisor.store.layout import Layout, read_holder
from chunkvisor.store.records import (
    DamagedError,
    LessonFile,
    ModelRecord,
    Pin,
    read_models,
    write_record,
)
from chunkvisor.store.reuse import ledger_of
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Beat, Fault, Result, Spec
from chunkvisor_worker.contract.wire import read_beat, read_message
from hostile import VALUES, another, damaged
from ingest_files import unwrap, wrap
from scripted_workplace import ScriptedWorkplace
from soaked import soaked

pytestmark = pytest.mark.soak


def in_words(halt: Halt, code: ExitCode | None = None) -> None:
    """Whatever is refused is refused for a reason that can be printed."""
    assert halt.what
    assert code in (None, halt.code)
    "\n".join(halt.lines()).encode(errors="surrogateescape")


# Configs


def _keys(model: Any = Config, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, info in model.model_fields.items():
        yield (*prefix, name)
        if hasattr(info.annotation, "model_fields"):
            yield from _keys(info.annotation, (*prefix, name))


KEYS = sorted(
    {*_keys(), ("outputs", "a", "column"), ("outputs", "a", "source"), ("outputs", "a", "encode")}
)
ODD = [
    b"\0",
    b"\xff\xfe",
    b"!!python/object:os.system ",
    b"&a [*a]",
    b"<<: *b\n",
    b"? ",
    b"%YAML 9\n",
    b"\t",
    b"\r",
]
ODD += [b"{" * 2000, b"- " * 500, b"'", b'"\\ud83d"', b"1:30", b".inf", b": "]


def loads_or_says_why(path: Path, *overrides: str) -> None:
    """The one property of configs."""
    try:
        assert load(path, overrides).config.outputs
    except Halt as halt:
        in_words(halt, ExitCode.CONFIG)


@soaked(350)
@given(st.lists(st.sampled_from(ODD) | st.binary(max_size=20)))
def test_config_of_any_bytes(tmp_path: Path, pieces: list[bytes]) -> None:
    """A config file of any bytes, or a good one with such bytes in its middle, is read or refused
    in words.
    """
    path, noise = tmp_path / "config.yaml", b"".join(pieces)
    good = b"workdir: w\nmodel: {name: org/model}\noutputs:\n  a: {source: a.csv, column: text}\n"
    at = int.from_bytes(hashlib.sha256(noise).digest()[:2], "big") % len(good)
    for content in (noise, good[:at] + noise + good[at:]):
        path.write_bytes(content)
        loads_or_says_why(path)


@soaked(350)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=4), VALUES)
def test_config_of_any_values(
    tmp_path: Path, changes: dict[tuple[str, ...], Any], value: Any
) -> None:
    """Any values under the keys that there are, in the file or by --set, make a config or are
    refused in words.
    """
    config: dict[str, Any] = {
        "workdir": "w",
        "model": {"name": "m"},
        "outputs": {"a": {"source": "a.csv"}},
    }
    for key, change in changes.items():
        node = config
        for part in key[:-1]:
            if not isinstance(node.get(part), dict):
                node[part] = {}
            node = node[part]
        node[key[-1]] = change
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config), errors="surrogatepass")
    loads_or_says_why(path, f"{'.'.join(next(iter(changes)))}={value}")


# Sources

TEXT = st.text(max_size=12) | st.sampled_from(
    ["", " ", 'a "quoted" one', "a\nb", "a\r\nb", ",", "\ufeff", "é" * 50]
)


@st.composite
def source(draw: st.DrawFn) -> tuple[str, bytes]:
    """(suffix, content): rows of a text format, damaged before or after they are compressed."""
    suffix, texts = (
        draw(st.sampled_from([".csv", ".jsonl", ".csv.gz", ".jsonl.zst"])),
        draw(st.lists(TEXT, max_size=5)),
    )
    out = io.StringIO()
    if suffix.startswith(".csv"):
        csv.writer(out).writerows(
            [["n", "text"], *([str(n), text] for n, text in enumerate(texts))]
        )
    else:
        out.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    plain = draw(damaged(out.getvalue().encode(errors="replace")))
    data = wrap(suffix, plain)
    return suffix, draw(damaged(data)) if data != plain and draw(st.booleans()) else data


@soaked(600)
@given(source())
def test_source_of_any_bytes(tmp_path: Path, made: tuple[str, bytes]) -> None:
    """A damaged text source is refused with file and line, or gives the very rows that the standard
    library reads.
    """
    suffix, data = made
    path = tmp_path / f"source{suffix}"
    path.write_bytes(data)
    try:
        (file,) = resolve([str(path)])
        cells = [cells[0] for _, cells in read_rows(file, ["text"])]
    except Halt as halt:
        in_words(halt, ExitCode.CONFIG)
        return
    text = unwrap(suffix, data).removeprefix(b"\xef\xbb\xbf").decode()
    if suffix.startswith(".csv"):
        assert cells == [
            row["text"] for row in csv.DictReader(io.StringIO(text, newline=""), strict=True)
        ]
    elif all(
        type(cell) is str or cell is None for cell in cells
    ):  # other JSON values are for templates
        found = [
            json.loads(line).get("text") or "" for line in text.split("\n") if line.strip(" \t\r")
        ]
        assert [cell or "" for cell in cells] == found


# State files


class Made:
    """A workdir with every kind of state file, and its contents in memory."""

    def __init__(self, place: ScriptedWorkplace) -> None:
        self.place = place
        self.files = {
            path: path.read_bytes() for path in sorted(place.workdir.rglob("*")) if path.is_file()
        }

    def restore(self) -> None:
        """As it was made."""
        for path in self.place.workdir.rglob("*"):
            if path.is_file() and path not in self.files:
                path.unlink()
        for path, content in self.files.items():
            if not path.is_file() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One output complete but for a quarantined row, another in pieces, and an attempt with every
    record.
    """
    folder = tmp_path_factory.mktemp("hostile") / "place"
    outputs = {name: {"source": f"{name}.jsonl", "column": "text"} for name in ("out", "more")}
    place = ScriptedWorkplace.make(
        folder,
        [],
        chunk__size=4,
        chunk__keep=True,
        recovery__attempts=1,
        encode__batch_size=4,
        outputs=outputs,
    )
    for name in outputs:
        place.write_source([f"{name}{number}" for number in range(6)], name)
    place.lay("out5", "value_error!")
    place.lay("out1", "oom")
    place.lay("more1", "value_error!")
    place.lay("more2", "damage!")
    place.ends(75)
    layout = Layout(place.workdir)
    write_record(layout.model, ModelRecord((Pin("org/model", None, str(folder), "abc"),)))
    attempt = next(path.parent for path in place.workdir.rglob("spec.json"))
    result = {
        "fingerprint": "f",
        "output": "out",
        "chunk": 0,
        "start": 0,
        "stop": 1,
        "digest": "d",
        "size_bytes": 1,
    }
    result |= {"facts": {"dimension": 8}, "limits": {"rows": 1}}
    (attempt / "result.json").write_text(json.dumps(result))
    names = {path.name for path in place.workdir.rglob("*.json")}
    assert names >= {
        "final.json",
        "lessons.json",
        "table.json",
        "beat.json",
        "verdict.json",
        "fault.json",
    }
    return Made(place)


def readers(made: Made) -> Iterator[Callable[[], Any]]:
    """Everything that reads state files, as the commands do."""
    workdir, layout = made.place.workdir, Layout(made.place.workdir)

    def ledger(name: str) -> None:
        found = ledger_of(layout.output(name))
        if found is not None:
            found.load()
            for chunk in found.taken_apart():
                found.parts(chunk).pending_texts()
                with contextlib.suppress(OSError):
                    if found.facts is not None and not found.parts(chunk).pending_texts():
                        found.commit_parts(chunk)
            assert 0 <= found.texts_done <= found.plan.distinct

    def finished(name: str) -> None:
        output = layout.output(name)
        if (manifest := read_output(output).manifest) is not None:
            assert hashlib.sha256(output.final.read_bytes()).hexdigest() == made_digest
            assert isinstance(manifest["quarantined"], list)

    def table(name: str) -> None:
        opened = StagedTable.open(layout.output(name).table)
        texts = opened.texts(0, opened.distinct)
        opened.row_text(0, opened.rows), opened.first_row(0, opened.distinct)
        opened.places_of(range(opened.rows))
        assert texts == [f"{name}{number}" for number in range(len(texts))]

    made_digest = hashlib.sha256(made.files[workdir / "out.npy"]).hexdigest()
    yield lambda: (holder := read_holder(layout.lock)) is not None and holder.alive()
    yield lambda: list(read_events(layout.events))
    yield lambda: json.dumps(read_status(workdir)[0].to_dict())
    yield lambda: list(verify(workdir))
    yield lambda: read_models(layout.model)
    yield lambda: LessonFile(layout.lessons, "x").get("")
    for name in ("out", "more"):
        output = layout.output(name)
        for read in (read_fixed, read_facts, partial(read_output, check_file=False)):
            yield partial(read, output)
        for look in (table, finished, ledger):
            yield partial(look, name)
    for path in workdir.rglob("spec.json"):
        files = AttemptFiles(path.parent)
        records: dict[type[Any], Path] = {
            Spec: files.spec,
            Beat: files.beat,
            Fault: files.fault,
            Result: files.result,
        }
        for kind, record in records.items():
            yield partial(read_message, kind, record)
        yield partial(read_beat, files.beat)


@soaked(600)
@given(st.data())
def test_state_of_any_content(made: Made, data: st.DataObject) -> None:
    """Whatever damage a state file has taken: who reads it reads it, or says that it is damaged."""
    named = {
        path.relative_to(made.place.workdir).as_posix(): path
        for path in made.files
        if path.suffix != ".npy"
    }
    kinds = sorted({path.name for path in named.values()})
    kind = data.draw(st.sampled_from(kinds))
    path = data.draw(st.sampled_from([each for each in named.values() if each.name == kind]))
    try:
        path.write_bytes(data.draw(another(made.files[path])))
        for read in readers(made):
            with contextlib.suppress(DamagedError):
                try:
                    read()
                except Halt as halt:
                    in_words(halt)
    finally:
        made.restore()
