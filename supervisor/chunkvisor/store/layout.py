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
      invocations/001_2026-01-31_235959/  what one invocation of `run` showed, with which config, on what, to which end
      invocations/latest                link to the newest of them
      model.json                        the resolved revision of each model, and where its files are
      report.html                       the page of `chunkvisor report`, also written at the end of each run
      <output>.npy  <output>.json       final file and manifest, each there only when complete
      <output>.quarantined.jsonl        the rows without a vector, where they are too many for the manifest
      <output>.truncated.jsonl          the rows whose texts were cut, where there are any
      <output>/0000.npy                 shards instead of the one file, where the config asks for them
      <output>.parquet                  instead of the .npy, where the config asks for it
      <output>.ranges.npy               beside an int8 final: least and greatest value of each dimension
      <output>.rows.parquet             beside an array: the columns that are carried along
      .<output>.before/                 what was there before --from-scratch or --update, until the new final file is
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
        cut-<fingerprint>.bin           which of the encoded texts were cut, where there are any
        cut_rows.bin                    the same by row, once the output is joined
        chunks/000/000012-<digest>.npy  vectors of a committed chunk
        parts/000012/                   what is good of a chunk that is being taken apart to find bad texts
        quarantine/000012.json          texts of a committed chunk that have no vector, and why
        attempts/000012/003/            one attempt at a chunk; removed once the chunk is committed
        published.json                  how to know a final file of ours again, written just before it appears
        publishing.json                 the manifest of a final file that is about to appear
        moved.json                      where `chunkvisor encode` has put the final file
        again                           `retry` has asked for the rows without a vector
        done.json                       the final file's stamp and the manifest once more
        quarantined.jsonl               the same as <output>.quarantined.jsonl
"""

import os
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.config.reserved import RESERVED_NAMES
from chunkvisor.store.entry import Entry
from chunkvisor.store.outputlayout import CombinedLayout, OutputLayout


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

    mark = Entry("workdir", ".chunkvisor")
    model = Entry("workdir", "model.json")
    report = Entry("workdir", "report.html")
    outputs = Entry("workdir", "outputs")
    lock = Entry("workdir", "lock")
    events = Entry("workdir", "events.jsonl")
    lessons = Entry("workdir", "lessons.json")
    fetch = Entry("workdir", "fetch")
    template = Entry("workdir", "template")
    ray = Entry("workdir", "ray")
    invocations = Entry("workdir", "invocations")
    latest = Entry("invocations", "latest")

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
