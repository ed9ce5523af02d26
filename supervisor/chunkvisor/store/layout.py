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
        fetch/  template/  ray/         of the child that asks the hub, of the template process, of the Ray cluster
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
          cut_rows.bin                  int32, tokens before the cut of each row, 0 = whole, once the output is joined
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

from chunkvisor_worker.contract.files import AttemptFiles, FileIn

HIDDEN = ".chunkvisor"
"""Folder of all state in a workdir; only its owner may open it."""

CHUNKS_PER_FOLDER = 1000
"""Chunk files are spread over folders: listing and creating stay fast with 100,000 chunks."""

DIGEST_LENGTH = 32
"""Hex digits of the digest in a chunk file's name: 128 bits."""

_CHUNK_NAME = re.compile(rf"(\d{{6,}})-([0-9a-f]{{{DIGEST_LENGTH}}})\.npy")


class PathIn:
    """An attribute of a layout: a path in the folder that another attribute gives; NAME stands for the output's."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self._name = folder, name

    def __get__(self, layout: "Layout | OutputLayout", _: type) -> Path:
        folder: Path = getattr(layout, self._folder)
        return folder / (self._name.replace("NAME", layout.name) if isinstance(layout, OutputLayout) else self._name)


def unfinished(folder: Path) -> Path:
    """Return where a folder is put together before it gets its name."""
    return folder.with_name(f"{folder.name}.partial")


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Paths of one output, or of one combined final."""

    workdir: Path
    name: str
    kept: Path | None = None
    """Where the state is, if not in its place: of an earlier generation, of the next, or of a combined final."""

    final = PathIn("workdir", "NAME.npy")
    shards = PathIn("workdir", "NAME")
    manifest = PathIn("workdir", "NAME.json")
    quarantined = PathIn("workdir", "NAME.quarantined.jsonl")
    truncated = PathIn("workdir", "NAME.truncated.jsonl")
    ranges = PathIn("workdir", "NAME.ranges.npy")
    rows_table = PathIn("workdir", "NAME.rows.parquet")

    hidden = PathIn("workdir", HIDDEN)
    partial_shards = PathIn("hidden", "NAME.partial")
    # The rows in float32, from which a final of another form is made.
    partial_rows = PathIn("hidden", "NAME.npy.rows")
    before = PathIn("hidden", "NAME.before")

    identity = PathIn("state", "identity.json")
    staged = PathIn("state", "staged.json")
    table = PathIn("state", "table")
    fresh_table = PathIn("state", "table.new")
    reuse = PathIn("state", "reuse")
    facts = PathIn("state", "facts.json")
    cut_rows = PathIn("state", "cut_rows.bin")
    chunks = PathIn("state", "chunks")
    parts = PathIn("state", "parts")
    quarantine = PathIn("state", "quarantine")
    attempts = PathIn("state", "attempts")
    published = PathIn("state", "published.json")
    publishing = PathIn("state", "publishing.json")
    moved = PathIn("state", "moved.json")
    again = PathIn("state", "again")
    done = PathIn("state", "done.json")
    quarantined_twin = PathIn("state", "quarantined.jsonl")

    @property
    def state(self) -> Path:
        """Everything of this output but its final files."""
        return self.kept or self.hidden / "outputs" / self.name

    @property
    def leftovers(self) -> tuple[Path, ...]:
        """Folders that an earlier run was preparing when it ended."""
        return self.fresh_table, unfinished(self.fresh_table), unfinished(self.reuse)

    @property
    def visible(self) -> tuple[Path, ...]:
        """Everything that an output may have outside of the hidden folder."""
        files = self.final, self.file("parquet"), self.shards, self.manifest
        return *files, self.quarantined, self.truncated, self.ranges, self.rows_table

    def file(self, suffix: str) -> Path:
        """Return the final file of the format with that suffix."""
        return self.workdir / f"{self.name}.{suffix}"

    def partial(self, suffix: str) -> Path:
        """Return the final file while it is being made; on the same file system, so that one rename publishes it."""
        return self.hidden / f"{self.name}.{suffix}.partial"

    def replaced(self, place: Path) -> Path:
        """Return the final file, or the folder of shards, while another form of the same rows takes its place."""
        return self.hidden / f"{place.name}.replaced"

    @property
    def earlier(self) -> "OutputLayout":
        """The same, with the state of the generation whose final file is there until this one's is."""
        return OutputLayout(self.workdir, self.name, self.before / "state")

    @property
    def next(self) -> "OutputLayout":
        """The same, with the state that is to take the place of this one."""
        return OutputLayout(self.workdir, self.name, self.hidden / f"{self.name}.next")

    def cut_texts(self, fingerprint: str) -> Path:
        """Return the tokens before the cut of each text that is encoded under that fingerprint; see `take_cut`."""
        return self.state / f"cut-{fingerprint[:DIGEST_LENGTH]}.bin"

    def chunk(self, number: int, digest: str) -> Path:
        """Return the file of a committed chunk; the digest in its name lets one rename commit file and record."""
        folder = self.chunks / f"{number // CHUNKS_PER_FOLDER:03d}"
        return folder / f"{number:06d}-{digest[:DIGEST_LENGTH]}.npy"

    def parts_of(self, chunk: int) -> Path:
        """Return the folder of the parts of one chunk."""
        return self.parts / f"{chunk:06d}"

    def quarantine_of(self, chunk: int) -> Path:
        """Return the record of the bad texts of one chunk."""
        return self.quarantine / f"{chunk:06d}.json"

    def attempts_of(self, chunk: int) -> Path:
        """Return the folder of all attempts at one chunk."""
        return self.attempts / f"{chunk:06d}"

    def attempt(self, chunk: int, attempt: int) -> AttemptFiles:
        """Return the files of one attempt; attempts count from 1."""
        return AttemptFiles(self.attempts_of(chunk) / f"{attempt:03d}")


def parse_chunk_name(name: str) -> tuple[int, str] | None:
    """Return (chunk number, digest) of a committed chunk's file name, or None for any other file."""
    match = _CHUNK_NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


@dataclass(frozen=True, slots=True)
class InvocationFiles:
    """Paths of one invocation of `run`, written for people; nothing is resumed from here."""

    folder: Path

    log = FileIn("output.log")
    """Everything that the terminal showed, as text."""
    config = FileIn("config.yaml")
    """The config with every default and override, without secrets."""
    environment = FileIn("environment.json")
    """Versions, host, kernel, driver and variables of note."""
    sensors = FileIn("sensors.jsonl")
    """What the sensors measured, one JSON object a line."""
    notices = FileIn("notices.jsonl")
    """Which notices were sent, and whether they were delivered, one JSON object a line."""
    summary = FileIn("summary.json")
    """How it ended; absent while it runs, and after a kill."""

    @property
    def name(self) -> str:
        """Of the folder; begins with the invocation's number."""
        return self.folder.name


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of a workdir."""

    workdir: Path

    report = PathIn("workdir", "report.html")
    hidden = PathIn("workdir", HIDDEN)
    mark = PathIn("hidden", "format.json")
    lock = PathIn("hidden", "lock")
    events = PathIn("hidden", "events.jsonl")
    lessons = PathIn("hidden", "lessons.json")
    model = PathIn("hidden", "model.json")
    fetch = PathIn("hidden", "fetch")
    template = PathIn("hidden", "template")
    ray = PathIn("hidden", "ray")
    runs = PathIn("hidden", "runs")
    latest = PathIn("runs", "latest")
    outputs = PathIn("hidden", "outputs")
    all_combined = PathIn("hidden", "combined")

    def owns(self, path: Path) -> bool:
        """Say whether the path is the report or one of the state's, links resolved; final files are not state."""
        inside = Path(os.path.realpath(path))
        hidden = Path(os.path.realpath(self.hidden))
        return inside == Path(os.path.realpath(self.report)) or inside.is_relative_to(hidden)

    def output(self, name: str) -> OutputLayout:
        """Return the paths of one output."""
        return OutputLayout(self.workdir, name)

    def combined(self, name: str) -> OutputLayout:
        """Return the paths of one combined final."""
        return OutputLayout(self.workdir, name, self.all_combined / name)
