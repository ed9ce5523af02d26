"""Every path under a workdir, named once.

It never creates, reads or deletes anything.

    workdir/
      lock                              who runs here; held by flock while a run lives
      model.json                        the resolved revision of each model
      lessons.json                      batch limits learnt from out-of-memory faults
      template/                         what the template process was asked to load, and its log
      ray/bridge.log                    what the bridge to a Ray cluster has to say
      events.jsonl                      the story: one event a line, for people and for `status`
      invocations/001_2026-01-31_235959/  what one invocation of `run` showed, with which config, on what, to which end
      invocations/latest                link to the newest of them
      slices/count                      how many slices the workdir is cut into; held by flock, shared, while one lives
      slices/turn                       held by the slice that prepares, or joins, what belongs to all of them
      slices/3of8/                      lock, journal, lessons, template, fetch and invocations of slice 3/8, as above
      <output>.npy  <output>.json       final file and manifest, each there only when complete
      <output>/0000.npy                 shards instead of the one file, where the config asks for them
      .<output>.before/                 what was there before --from-scratch, until the new final file is
      outputs/<output>/
        identity.json                   what the vectors depend on; fixed by the first run
        staged.json                     what the table was made from
        table/                          the texts, staged and de-duplicated
        facts.json                      what the first worker found out about the model
        versions.json                   which texts other library versions computed, where there are any
        chunks/000/000012-<digest>.npy  vectors of a committed chunk
        parts/000012/                   what is good of a chunk that is being taken apart
        quarantine/000012.json          texts of a committed chunk that have no vector, and why
        attempts/000012/003/            one attempt at a chunk; gone once the chunk is committed
        published.json                  how to know a final file of ours again, written just before it appears
        done.json                       the final file's stamp and the manifest once more
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from chunkvisor.store.slices import Slice
from chunkvisor_worker.contract.files import AttemptFiles

CHUNKS_PER_FOLDER = 1000
"""Chunk files are spread over folders of so many: listing and creating stay fast with 100,000 chunks."""

DIGEST_LENGTH = 32
"""Hex digits of the digest in a chunk file's name: 128 bits."""

_CHUNK_NAME = re.compile(rf"(\d{{6,}})-([0-9a-f]{{{DIGEST_LENGTH}}})\.npy")


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Paths of one output."""

    workdir: Path
    name: str

    @property
    def final(self) -> Path:
        """The final file: float32, rows x dimension."""
        return self.workdir / f"{self.name}.npy"

    @property
    def shards(self) -> Path:
        """Folder of the shards that are there instead of the final file, where the config asks for them."""
        return self.workdir / self.name

    @property
    def manifest(self) -> Path:
        """The final file's description, for people and programs."""
        return self.workdir / f"{self.name}.json"

    @property
    def partial(self) -> Path:
        """The final file while it is being assembled; in the same folder, so that one rename publishes it."""
        return self.workdir / f".{self.name}.npy.partial"

    @property
    def partial_shards(self) -> Path:
        """The folder of the shards while it is being filled."""
        return self.workdir / f".{self.name}.partial"

    def replaced(self, shards: int | None) -> Path:
        """The file, or the folder of so many shards, while another form of the same rows takes its place."""
        return self.workdir / (f".{self.name}.npy.replaced" if shards is None else f".{self.name}.replaced")

    @property
    def before(self) -> Path:
        """Folder of what the output was before it was begun anew, until the new final file is there."""
        return self.workdir / f".{self.name}.before"

    @property
    def state(self) -> Path:
        """Everything else of this output."""
        return self.workdir / "outputs" / self.name

    @property
    def identity(self) -> Path:
        """What the vectors depend on."""
        return self.state / "identity.json"

    @property
    def table(self) -> Path:
        """The staged texts."""
        return self.state / "table"

    @property
    def staged(self) -> Path:
        """Which request and which files the table was staged from."""
        return self.state / "staged.json"

    @property
    def facts(self) -> Path:
        """Dimension, dtype and versions, from the first committed chunk."""
        return self.state / "facts.json"

    def facts_of(self, which: Slice) -> Path:
        """The facts as a slice has found them, for the moment in which it is seen whose are the first."""
        return self.state / f"facts.{which.name}.json"

    @property
    def versions(self) -> Path:
        """Which texts were computed by other versions of the libraries than those of the facts."""
        return self.state / "versions.json"

    def versions_of(self, which: Slice) -> Path:
        """The same, of the texts of a slice."""
        return self.state / f"versions.{which.name}.json"

    @property
    def chunks(self) -> Path:
        """Folder of the committed chunks."""
        return self.state / "chunks"

    @property
    def parts(self) -> Path:
        """Folder of the chunks that are being taken apart to find bad texts."""
        return self.state / "parts"

    @property
    def quarantine(self) -> Path:
        """Folder of the records of bad texts, one a chunk."""
        return self.state / "quarantine"

    @property
    def attempts(self) -> Path:
        """Folder of the attempts under way and of those that failed."""
        return self.state / "attempts"

    @property
    def published(self) -> Path:
        """How to know a final of ours again, whose manifest is not there."""
        return self.state / "published.json"

    @property
    def done(self) -> Path:
        """Record of the finished output."""
        return self.state / "done.json"

    def chunk(self, number: int, digest: str) -> Path:
        """File of a committed chunk; the name carries the digest, so that one rename commits file and record."""
        folder = self.chunks / f"{number // CHUNKS_PER_FOLDER:03d}"
        return folder / f"{number:06d}-{digest[:DIGEST_LENGTH]}.npy"

    def parts_of(self, chunk: int) -> Path:
        """Parts of one chunk."""
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
class InvocationFiles:
    """Paths of one invocation of `run`: its story, for people; nothing is resumed from here."""

    folder: Path

    @property
    def name(self) -> str:
        """Of the folder; begins with the invocation's number."""
        return self.folder.name

    @property
    def log(self) -> Path:
        """Everything that the terminal showed, as text."""
        return self.folder / "output.log"

    @property
    def config(self) -> Path:
        """The config with every default and override, without secrets."""
        return self.folder / "config.yaml"

    @property
    def environment(self) -> Path:
        """Versions, host, kernel, driver and variables of note."""
        return self.folder / "environment.json"

    @property
    def sensors(self) -> Path:
        """What the sensors measured, one JSON object a line."""
        return self.folder / "sensors.jsonl"

    @property
    def notices(self) -> Path:
        """Which notices were sent, and whether they were delivered, one JSON object a line."""
        return self.folder / "notices.jsonl"

    @property
    def summary(self) -> Path:
        """How it ended; absent while it runs, and after a kill."""
        return self.folder / "summary.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of a workdir, as a run of the whole sees it or, with `slice`, one of its slices.

    What a run has for itself lies in its `desk`: two runs at the same time write nothing in the same place.
    """

    workdir: Path
    slice: Slice | None = None

    def of(self, which: Slice | None) -> Self:
        """The same workdir, as that slice sees it; None = as a run of the whole does."""
        return type(self)(self.workdir, which)

    @property
    def slices(self) -> Path:
        """Folder of the slices' desks and of what they agree on."""
        return self.workdir / "slices"

    @property
    def slice_count(self) -> Path:
        """How many slices the workdir is cut into; held by flock, shared, while one of them lives."""
        return self.slices / "count"

    @property
    def turn(self) -> Path:
        """Held by flock by the slice that prepares, or joins, what belongs to all of them."""
        return self.slices / "turn"

    @property
    def desk(self) -> Path:
        """Folder of what this run has for itself."""
        return self.workdir if self.slice is None else self.slices / self.slice.name

    @property
    def lock(self) -> Path:
        """Held by flock while this run lives; says who."""
        return self.desk / "lock"

    @property
    def events(self) -> Path:
        """The journal."""
        return self.desk / "events.jsonl"

    @property
    def lessons(self) -> Path:
        """Batch limits learnt from out-of-memory faults."""
        return self.desk / "lessons.json"

    @property
    def fetch(self) -> Path:
        """Where the child that asks the hub leaves its result or fault."""
        return self.desk / "fetch"

    @property
    def template(self) -> Path:
        """Folder of the template process, from which workers are forked."""
        return self.desk / "template"

    @property
    def ray(self) -> Path:
        """Folder of what the bridge to a Ray cluster has to say."""
        return self.desk / "ray"

    @property
    def invocations(self) -> Path:
        """Folder of the invocations' folders."""
        return self.desk / "invocations"

    @property
    def latest(self) -> Path:
        """Link to the folder of the newest invocation."""
        return self.invocations / "latest"

    @property
    def model(self) -> Path:
        """Which revision of the model this workdir is bound to, and where its files are."""
        return self.workdir / "model.json"

    @property
    def report(self) -> Path:
        """The page of `chunkvisor report`, also written at the end of each run."""
        return self.workdir / "report.html"

    @property
    def outputs(self) -> Path:
        """Folder of the state of all outputs."""
        return self.workdir / "outputs"

    def output(self, name: str) -> OutputLayout:
        """Paths of one output."""
        return OutputLayout(self.workdir, name)


def parse_chunk_name(name: str) -> tuple[int, str] | None:
    """(chunk number, digest) of a committed chunk's file name, or None for any other file."""
    match = _CHUNK_NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None
