"""Reads from the folder of an output which stage it has reached; nothing here writes.

    ABSENT ──stage──► STAGED ──plan──► ENCODING ──publish──► PUBLISHING
        of other texts or settings, the next generation is STAGED; the final file stays
    PUBLISHING ──complete_publication──► COMPLETE
    COMPLETE ──ensure_form──► PUBLISHING (another form)
    COMPLETE ──reopen──► ENCODING (`retry`; vectors that a rounded file does not have)
    DAMAGED ──set_damaged_aside──► ENCODING, or STAGED if its vectors are gone

Joining chunks is not a stage: a join that was killed begins again.
"""

import os
import re
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from chunkvisor.outputs.forms import Manifest, digest_in, file_of
from chunkvisor.store.identity import Fixed, read_fixed
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import DamagedError, Stamp, has_digest, read_if_whole, read_sealed
from chunkvisor.store.reuse import is_planned
from chunkvisor_worker.contract.frozen import frozen

Stage = StrEnum(
    "Stage", ["ABSENT", "LOST", "STAGED", "ENCODING", "PUBLISHING", "DAMAGED", "COMPLETE"]
)


@frozen
class FinalRecord:
    """What is recorded of the final file in place, which may be of an earlier generation."""

    manifest: Manifest
    stamp: Stamp | None
    """None: the record was lost, and this one is made from the manifest next to the file."""
    reopened: bool = False
    """The file is to be made again, in the same generation; it stays until then."""

    def holds(self, layout: OutputLayout) -> bool:
        """Say whether the file in place is the published one; reads it only if it was touched.

        Raises OSError.
        """
        path = file_of(layout, self.manifest)
        if self.stamp:
            return self.stamp.holds(path)
        return has_digest(path, digest_in(self.manifest))


@frozen
class OutputState:
    """The state of an output, as its folder shows it."""

    stage: Stage
    layout: OutputLayout
    """Of the newest generation."""
    fixed: Fixed | None = None
    """None: the output was never begun, or the record is lost."""
    final_record: FinalRecord | None = None

    @property
    def manifest(self) -> Manifest | None:
        """Of a COMPLETE output; None in any other stage."""
        if self.stage is Stage.COMPLETE and self.final_record:
            return self.final_record.manifest
        return None

    @property
    def final_generation(self) -> int:
        """The generation of the final file that is in place; 0 if there is none."""
        return int(self.final_record.manifest.get("generation", 0)) if self.final_record else 0

    @property
    def earlier(self) -> OutputLayout | None:
        """The generation whose final file is in place, if it is not the newest."""
        number = self.final_generation
        return self.layout.at_generation(number) if 0 < number < self.layout.generation else None


def read(layout: OutputLayout, *, check_file: bool = True) -> OutputState:
    """Read which stage an output has reached. Raises OSError.

    It is COMPLETE if its final file is whole; without `check_file`, if that is there.
    """
    layout = layout.newest
    try:
        fixed = read_fixed(layout) if layout.generation else None
    except DamagedError:
        fixed = None
    if fixed and fixed.place:
        place = os.path.normpath(layout.workdir / fixed.place)
        layout = replace(layout, place=Path(place))
    record = final_record_of(layout)
    if not fixed:
        lost = layout.generation or layout.done.exists()
        return OutputState(Stage.LOST if lost else Stage.ABSENT, layout, None, record)
    stage = Stage.ENCODING if is_planned(layout) else Stage.STAGED
    if layout.publishing.exists():
        stage = Stage.PUBLISHING
    elif record and not record.reopened and _is_of(record, layout, fixed):
        whole = record.holds(layout) if check_file else file_of(layout, record.manifest).exists()
        if whole:
            stage = Stage.COMPLETE
        elif record.stamp:  # a manifest alone does not prove that the file was ever whole
            stage = Stage.DAMAGED
    return OutputState(stage, layout, fixed, record)


def _is_of(record: FinalRecord, layout: OutputLayout, fixed: Fixed) -> bool:
    # A record that was copied from elsewhere may have the same number.
    said = record.manifest.get("generation"), record.manifest["fingerprint"]
    return said == (layout.generation, fixed.identity.fingerprint)


def final_record_of(layout: OutputLayout) -> FinalRecord | None:
    """Return the record of the final file, or one made of its manifest; None if both are lost."""
    found = read_if_whole(FinalRecord, layout.done)
    manifest = None if found else manifest_of(layout)
    return FinalRecord(manifest, None) if manifest else found


def manifest_of(layout: OutputLayout) -> Manifest | None:
    """Return the manifest next to the final file; None if it is lost."""
    try:
        return read_sealed(layout.manifest)
    except (DamagedError, OSError):
        return None


def is_manifest(head: bytes) -> bool:
    """Say whether a file that begins like this is a manifest of ours, whole or damaged."""
    return bool(re.match(rb'\{\s*"rows": \d+,\s*"dimension": \d+,', head))
