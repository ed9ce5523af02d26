"""Every path under a workdir, named once.

Nothing is created, read or deleted here.

    workdir/
      .chunkvisor                       the mark: a folder without it is not touched
      lock                              who runs here; held by flock while a run lives
      events.jsonl                      the journal: one event a line, for people and for `status`
      lessons.json                      batch limits learnt from out-of-memory faults
      fetch/                            where the child that asks the hub leaves its result or fault
      template/                         what the template process was asked to load, and its log
      ray/bridge.log                    what the bridge to a Ray cluster has to say
      .upload/                          what the process that uploads is asked, and its log
      invocations/001_2026-01-31_235959/  what one invocation of `run` showed, with which config, on what, to which end
      invocations/latest                link to the newest of them
      model.json                        the resolved revision of each model, and where its files are
      openvino/                         the model as converted for model.backend: openvino, a folder for each form
      report.html                       the page of `chunkvisor report`, also written at the end of each run
      slices/count                      how many slices the workdir is cut into; held by flock, shared, while one lives
      slices/turn                       held by flock by the slice that prepares, or joins, what belongs to all of them
      slices/3of8/                      lock, journal, lessons, fetch, template, ray and invocations of slice 3/8
      <output>.npy  <output>.json       final file and manifest, each there only when complete
      <output>.quarantined.jsonl        the rows without a vector, where they are too many for the manifest
      <output>/0000.npy                 shards instead of the one file, where the config asks for them
      <output>.parquet                  instead of the .npy, where the config asks for it
      <output>.ranges.npy               beside an int8 final: least and greatest value of each dimension
      <output>.rows.parquet             beside an array: the columns that are carried along
      .<output>.before/                 what was there before --from-scratch or --update, until the new final file is
      .<output>.uploaded.json           what was uploaded where, and its state there
      .<output>.next/                   the state of the next generation while --update prepares it
      combined/<name>/                  of finals put side by side: published.json and done.json, as of an output
      outputs/<output>/
        identity.json                   what the vectors depend on; fixed by the first run
        staged.json                     which request and which files the table was made from
        table/                          the texts, staged and de-duplicated, and an index of their hashes
        table.new/                      the same of a source that is read anew, until it takes the place of table/
        reuse/                          which texts have a vector elsewhere, where, and which are encoded
        indexes/                        of the texts of other workdirs that have no index, while they are looked up
        facts.json                      what the first worker found out about the model: dimension, dtype, versions
        versions.json                   which texts other library versions computed, where there are any
        chunks/000/000012-<digest>.npy  vectors of a committed chunk
        parts/000012/                   what is good of a chunk that is being taken apart to find bad texts
        quarantine/000012.json          texts of a committed chunk that have no vector, and why
        attempts/000012/003/            one attempt at a chunk; removed once the chunk is committed
        published.json                  how to know a final file of ours again, written just before it appears
        publishing.json                 the manifest of a final file that is about to appear
        again                           `retry` has asked for the rows without a vector
        done.json                       the final file's stamp and the manifest once more
        quarantined.jsonl               the same as <output>.quarantined.jsonl
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from chunkvisor.config.reserved import RESERVED_NAMES
from chunkvisor.store.slices import Slice
from chunkvisor_worker.contract.files import AttemptFiles

CHUNKS_PER_FOLDER = 1000
"""Chunk files are spread over folders: listing and creating stay fast with 100,000 chunks."""

DIGEST_LENGTH = 32
"""Hex digits of the digest in a chunk file's name: 128 bits."""

_CHUNK_NAME = re.compile(rf"(\d{{6,}})-([0-9a-f]{{{DIGEST_LENGTH}}})\.npy")


def unfinished(folder: Path) -> Path:
    """Where a folder is put together before it gets its name."""
    return folder.with_name(f"{folder.name}.partial")


@dataclass(frozen=True, slots=True)
class Entry:
    """A path of a layout, as a class attribute: `name` in the folder that the layout's attribute `folder` gives."""

    folder: str
    name: str

    def __get__(self, layout: object, _: type | None = None) -> Path:
        return cast("Path", getattr(layout, self.folder)) / self.name


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
    versions = Entry("state", "versions.json")
    chunks = Entry("state", "chunks")
    parts = Entry("state", "parts")
    quarantine = Entry("state", "quarantine")
    attempts = Entry("state", "attempts")
    reuse = Entry("state", "reuse")
    published = Entry("state", "published.json")
    publishing = Entry("state", "publishing.json")
    again = Entry("state", "again")
    exact_rows = Entry("state", "rows.npy")
    """The rows in float32 of which a final of another form was made, where `retry` would miss some of them."""
    exact_stamp = Entry("state", "rows.json")
    done = Entry("state", "done.json")
    quarantined_twin = Entry("state", "quarantined.jsonl")

    @property
    def state(self) -> Path:
        """Everything of this output but its final files."""
        return self.kept or self.workdir / "outputs" / self.name

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
    def ranges(self) -> Path:
        """Beside an int8 final: float32, 2 x dimension, the least and the greatest value of each dimension."""
        return self.workdir / f"{self.name}.ranges.npy"

    @property
    def rows_table(self) -> Path:
        """Beside an array: the columns that are carried along, and which row of the source each row is."""
        return self.workdir / f"{self.name}.rows.parquet"

    def partial(self, suffix: str) -> Path:
        """The final file while it is being made; in the same folder, so that one rename publishes it."""
        return self.workdir / f".{self.name}.{suffix}.partial"

    @property
    def partial_rows(self) -> Path:
        """The rows in float32, from which a final of another form is made."""
        return self.workdir / f".{self.name}.npy.rows"

    @property
    def partial_shards(self) -> Path:
        """The folder of the shards while it is being filled."""
        return self.workdir / f".{self.name}.partial"

    def replaced(self, place: Path) -> Path:
        """The final file, or the folder of shards, while another form of the same rows takes its place."""
        return self.workdir / f".{place.name}.replaced"

    @property
    def uploaded(self) -> Path:
        """What was uploaded where, of this generation and of those before; combined finals have one as well."""
        return self.workdir / f".{self.name}.uploaded.json"

    @property
    def before(self) -> Path:
        """Folder of what the output was before it was begun anew, until the new final file is there."""
        return self.workdir / f".{self.name}.before"

    @property
    def earlier(self) -> "OutputLayout":
        """The same, with the state of the generation whose final file is there until this one's is."""
        return OutputLayout(self.workdir, self.name, self.before / "state")

    @property
    def next(self) -> "OutputLayout":
        """The same, with the state that is to take the place of this one."""
        return OutputLayout(self.workdir, self.name, self.workdir / f".{self.name}.next")

    def facts_of(self, which: Slice) -> Path:
        """The facts as a slice has found them, for the moment in which it is seen whose are the first."""
        return self.state / f"facts.{which.name}.json"

    def versions_of(self, which: Slice) -> Path:
        """The versions as a slice has found them, of its own texts."""
        return self.state / f"versions.{which.name}.json"

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
        return self.workdir / "combined" / self.name


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
    """Paths of a workdir, as a run of the whole sees it or, with `slice`, one of its slices.

    Each of them has a folder of its own, `run`: two that run at the same time write nothing in the same place.
    """

    workdir: Path
    slice: Slice | None = None

    mark = Entry("workdir", ".chunkvisor")
    model = Entry("workdir", "model.json")
    converted = Entry("workdir", "openvino")
    report = Entry("workdir", "report.html")
    outputs = Entry("workdir", "outputs")
    slices = Entry("workdir", "slices")
    slice_count = Entry("slices", "count")
    turn = Entry("slices", "turn")
    lock = Entry("run", "lock")
    events = Entry("run", "events.jsonl")
    lessons = Entry("run", "lessons.json")
    fetch = Entry("run", "fetch")
    template = Entry("run", "template")
    ray = Entry("run", "ray")
    upload = Entry("run", ".upload")
    invocations = Entry("run", "invocations")
    latest = Entry("invocations", "latest")

    @property
    def run(self) -> Path:
        """Folder of what this run has for itself."""
        return self.workdir if self.slice is None else self.slices / self.slice.name

    def of(self, which: Slice | None) -> Self:
        """The same workdir, as that slice sees it; None = as a run of the whole does."""
        return type(self)(self.workdir, which)

    def owns(self, path: Path) -> bool:
        """Whether the path is one of the state's, links resolved; final files are not state."""
        workdir, inside = os.path.realpath(self.workdir), os.path.realpath(path)
        if not inside.startswith(f"{workdir}{os.sep}"):
            return False
        first = inside[len(workdir) + 1 :].split(os.sep, 1)[0]
        return first in RESERVED_NAMES or first.startswith(".")

    def output(self, name: str) -> OutputLayout:
        """Paths of one output."""
        return OutputLayout(self.workdir, name)

    @property
    def all_combined(self) -> Path:
        """Folder of what is known of combined finals."""
        return self.workdir / "combined"

    def combined(self, name: str) -> CombinedLayout:
        """Paths of one combined final."""
        return CombinedLayout(self.workdir, name)


def parse_chunk_name(name: str) -> tuple[int, str] | None:
    """(chunk number, digest) of a committed chunk's file name, or None for any other file."""
    match = _CHUNK_NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None
