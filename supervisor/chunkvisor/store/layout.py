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
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.store.entry import Entry
from chunkvisor.store.outputlayout import HIDDEN, CombinedLayout, OutputLayout


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
