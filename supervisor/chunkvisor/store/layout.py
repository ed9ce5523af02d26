"""Every path under a workdir, named once.

Nothing is created, read or deleted here.

    workdir/
      <output>.npy  <output>.json       final file and manifest, each there only when complete
      <output>.parquet                  instead of the .npy, if the config asks for it
      <output>/0000.npy                 shards instead of the one file, if the config asks for them
      <output>.ranges.npy               next to an int8 final: least and greatest value of each dimension
      <output>.rows.parquet             next to an array: the columns that are carried along
      <output>.quarantined.jsonl        the rows without a vector, if they are too many for the manifest
      <output>.truncated.jsonl          the rows whose texts were cut, if there are any
      report.html                       the page of `chunkvisor report`, also written at the end of each run
      .chunkvisor/                      all state; private to the owner of the workdir
        format.json                     the mark: number of the format of all that is in here
        lock                            who runs here; held by flock while a run lives
        events.jsonl                    the journal: one event a line, for people and for `status`
        runs/001_2026-01-31_235959/     what one call of `run` showed, with which config, on what, to which end
        runs/latest                     link to the newest of them
        lessons.json                    batch limits learned from out-of-memory faults
        model.json                      the resolved revision of each model, and where its files are
        fetch/                          where the child that asks the hub leaves its result or fault
        template/                       what the template process was asked to load, and its log
        ray/bridge.log                  what the bridge to a Ray cluster has to say
        <output>.npy.partial            a final file that is being made; it is renamed out of here when it is complete
        <output>.npy.replaced           a final file while another form of the same rows takes its place
        <output>.before/                what was there before --from-scratch or --update, until the new final file is
        <output>.next/                  the state of the next generation while --update prepares it
        combined/<name>/                of finals put side by side: published.json and done.json, as of an output
        outputs/<output>/
          identity.json                 what the vectors depend on; fixed by the first run
          staged.json                   which request and which files the table was made from
          table/                        the texts, staged and de-duplicated, and an index of their hashes
          table.new/                    the same of a source that is read anew, until it takes the place of table/
          reuse/                        which texts have a vector elsewhere, where, and which are encoded
          facts.json                    what the first worker found out about the model: dimension, dtype, versions
          cut-<fingerprint>.bin         which of the encoded texts were cut, if there are any
          cut_rows.bin                  the same by row, once the output is joined
          chunks/000/000012-<digest>.npy  vectors of a committed chunk
          parts/000012/                 what is good of a chunk that is being taken apart to find bad texts
          quarantine/000012.json        texts of a committed chunk that have no vector, and why
          attempts/000012/003/          one attempt at a chunk; removed once the chunk is committed
          published.json                how to know a final file of ours again, written just before it appears
          publishing.json               the manifest of a final file that is about to appear
          moved.json                    where `chunkvisor encode` has put the final file
          again                         `retry` has asked for the rows without a vector
          done.json                     the final file's stamp and the manifest once more
          quarantined.jsonl             the same as <output>.quarantined.jsonl
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from chunkvisor_worker.contract.files import AttemptFiles


@dataclass(frozen=True, slots=True)
class Entry:
    """A path of a layout, as a class attribute: `name` in the folder that the layout's attribute `folder` gives."""

    folder: str
    name: str

    def __get__(self, layout: object, _: type | None = None) -> Path:
        return cast("Path", getattr(layout, self.folder)) / self.name


HIDDEN = ".chunkvisor"
"""Folder of all state in a workdir; only its owner may open it."""

CHUNKS_PER_FOLDER = 1000
"""Chunk files are spread over folders: listing and creating stay fast with 100,000 chunks."""

DIGEST_LENGTH = 32
"""Hex digits of the digest in a chunk file's name: 128 bits."""

_CHUNK_NAME = re.compile(rf"(\d{{6,}})-([0-9a-f]{{{DIGEST_LENGTH}}})\.npy")


def unfinished(folder: Path) -> Path:
    """Where a folder is put together before it gets its name."""
    return folder.with_name(f"{folder.name}.partial")


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Paths of one output."""

    workdir: Path
    name: str
    kept: Path | None = None
    """Where the state is, if not in its place: that of an earlier generation, or of the next."""

    identity = Entry("state", "identity.json")
    table = Entry("state", "table")
    fresh_table = Entry("state", "table.new")
    """The source as it is now, read beside what an earlier run has staged."""
    staged = Entry("state", "staged.json")
    facts = Entry("state", "facts.json")
    chunks = Entry("state", "chunks")
    parts = Entry("state", "parts")
    quarantine = Entry("state", "quarantine")
    attempts = Entry("state", "attempts")
    reuse = Entry("state", "reuse")
    published = Entry("state", "published.json")
    publishing = Entry("state", "publishing.json")
    moved = Entry("state", "moved.json")
    """Where `chunkvisor encode` has put the final file."""
    again = Entry("state", "again")
    done = Entry("state", "done.json")
    quarantined_twin = Entry("state", "quarantined.jsonl")
    cut_rows = Entry("state", "cut_rows.bin")
    """The same as <output>.truncated.jsonl, as int32: tokens before the cut of each row, 0 for one that is whole."""

    @property
    def hidden(self) -> Path:
        """Folder of all state of the workdir."""
        return self.workdir / HIDDEN

    @property
    def state(self) -> Path:
        """Everything of this output but its final files."""
        return self.kept or self.hidden / "outputs" / self.name

    @property
    def leftovers(self) -> tuple[Path, ...]:
        """Folders that an earlier run was preparing when it ended."""
        return self.fresh_table, unfinished(self.fresh_table), unfinished(self.reuse)

    @property
    def final(self) -> Path:
        """The final file, unless it is in another format or in shards: rows x dimension."""
        return self.file("npy")

    def file(self, suffix: str) -> Path:
        """The final file of the format with that suffix."""
        return self.workdir / f"{self.name}.{suffix}"

    @property
    def shards(self) -> Path:
        """Folder of the shards that are there instead of the final file, where the config asks for them."""
        return self.workdir / self.name

    @property
    def manifest(self) -> Path:
        """The final file's description, for people and programs."""
        return self.workdir / f"{self.name}.json"

    @property
    def quarantined(self) -> Path:
        """The rows without a vector, one a line, where they are too many for the manifest."""
        return self.workdir / f"{self.name}.quarantined.jsonl"

    @property
    def truncated(self) -> Path:
        """The rows whose texts were cut at the model's maximum length, one a line."""
        return self.workdir / f"{self.name}.truncated.jsonl"

    @property
    def ranges(self) -> Path:
        """Beside an int8 final: float32, 2 x dimension, the least and the greatest value of each dimension."""
        return self.workdir / f"{self.name}.ranges.npy"

    @property
    def rows_table(self) -> Path:
        """Beside an array: the columns that are carried along, and which row of the source each row is."""
        return self.workdir / f"{self.name}.rows.parquet"

    @property
    def visible(self) -> tuple[Path, ...]:
        """Everything that an output may have outside of the hidden folder."""
        files = self.final, self.file("parquet"), self.shards, self.manifest
        return *files, self.quarantined, self.truncated, self.ranges, self.rows_table

    def partial(self, suffix: str) -> Path:
        """The final file while it is being made; on the same file system, so that one rename publishes it."""
        return self.hidden / f"{self.name}.{suffix}.partial"

    @property
    def partial_rows(self) -> Path:
        """The rows in float32, from which a final of another form is made."""
        return self.hidden / f"{self.name}.npy.rows"

    @property
    def partial_shards(self) -> Path:
        """The folder of the shards while it is being filled."""
        return self.hidden / f"{self.name}.partial"

    def replaced(self, place: Path) -> Path:
        """The final file, or the folder of shards, while another form of the same rows takes its place."""
        return self.hidden / f"{place.name}.replaced"

    @property
    def before(self) -> Path:
        """Folder of what the output was before it was begun anew, until the new final file is there."""
        return self.hidden / f"{self.name}.before"

    @property
    def earlier(self) -> "OutputLayout":
        """The same, with the state of the generation whose final file is there until this one's is."""
        return OutputLayout(self.workdir, self.name, self.before / "state")

    @property
    def next(self) -> "OutputLayout":
        """The same, with the state that is to take the place of this one."""
        return OutputLayout(self.workdir, self.name, self.hidden / f"{self.name}.next")

    def cut_texts(self, fingerprint: str) -> Path:
        """Tokens before the cut of each text that is encoded under that fingerprint; see `take_cut`."""
        return self.state / f"cut-{fingerprint[:DIGEST_LENGTH]}.bin"

    def chunk(self, number: int, digest: str) -> Path:
        """File of a committed chunk; the name carries the digest, so that one rename commits file and record."""
        folder = self.chunks / f"{number // CHUNKS_PER_FOLDER:03d}"
        return folder / f"{number:06d}-{digest[:DIGEST_LENGTH]}.npy"

    def parts_of(self, chunk: int) -> Path:
        """Folder of the parts of one chunk."""
        return self.parts / f"{chunk:06d}"

    def quarantine_of(self, chunk: int) -> Path:
        """Record of the bad texts of one chunk."""
        return self.quarantine / f"{chunk:06d}.json"

    def attempts_of(self, chunk: int) -> Path:
        """Folder of all attempts at one chunk."""
        return self.attempts / f"{chunk:06d}"

    def attempt(self, chunk: int, attempt: int) -> AttemptFiles:
        """Files of one attempt; attempts count from 1."""
        return AttemptFiles(self.attempts_of(chunk) / f"{attempt:03d}")


@dataclass(frozen=True, slots=True)
class CombinedLayout(OutputLayout):
    """Paths of a final that is put together from those of several outputs."""

    @property
    def state(self) -> Path:
        """What is known of its files."""
        return self.hidden / "combined" / self.name


def parse_chunk_name(name: str) -> tuple[int, str] | None:
    """(chunk number, digest) of a committed chunk's file name, or None for any other file."""
    match = _CHUNK_NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


@dataclass(frozen=True, slots=True)
class InvocationFiles:
    """Paths of one invocation of `run`, written for people; nothing is resumed from here."""

    folder: Path

    log = Entry("folder", "output.log")
    """Everything that the terminal showed, as text."""
    config = Entry("folder", "config.yaml")
    """The config with every default and override, without secrets."""
    environment = Entry("folder", "environment.json")
    """Versions, host, kernel, driver and variables of note."""
    sensors = Entry("folder", "sensors.jsonl")
    """What the sensors measured, one JSON object a line."""
    notices = Entry("folder", "notices.jsonl")
    """Which notices were sent, and whether they were delivered, one JSON object a line."""
    summary = Entry("folder", "summary.json")
    """How it ended; absent while it runs, and after a kill."""

    @property
    def name(self) -> str:
        """Of the folder; begins with the invocation's number."""
        return self.folder.name


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of a workdir."""

    workdir: Path

    hidden = Entry("workdir", HIDDEN)
    report = Entry("workdir", "report.html")
    mark = Entry("hidden", "format.json")
    lock = Entry("hidden", "lock")
    events = Entry("hidden", "events.jsonl")
    lessons = Entry("hidden", "lessons.json")
    model = Entry("hidden", "model.json")
    fetch = Entry("hidden", "fetch")
    template = Entry("hidden", "template")
    ray = Entry("hidden", "ray")
    runs = Entry("hidden", "runs")
    latest = Entry("runs", "latest")
    outputs = Entry("hidden", "outputs")
    all_combined = Entry("hidden", "combined")
    """Folder of what is known of combined finals."""

    def owns(self, path: Path) -> bool:
        """Whether the path is the report or one of the state's, links resolved; final files are not state."""
        inside = os.path.realpath(path)
        hidden = os.path.realpath(self.hidden)
        return inside in (hidden, os.path.realpath(self.report)) or inside.startswith(f"{hidden}{os.sep}")

    def output(self, name: str) -> OutputLayout:
        """Paths of one output."""
        return OutputLayout(self.workdir, name)

    def combined(self, name: str) -> CombinedLayout:
        """Paths of one combined final."""
        return CombinedLayout(self.workdir, name)
