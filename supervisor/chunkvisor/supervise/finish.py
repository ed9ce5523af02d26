"""Makes the final file of one output, whose chunks are all committed, and its manifest.

A final file that was there before stays valid until one rename replaces it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from chunkvisor.assemble import badrows, sides
from chunkvisor.assemble.before import drop_before, drop_earlier_sides
from chunkvisor.assemble.chunkreader import Taken, TakenDamagedError
from chunkvisor.assemble.form import Form, asked_form, place_of
from chunkvisor.assemble.join import Final, Origin, assemble, build_manifest, texts_without
from chunkvisor.assemble.manifest import announce, publish_manifest, read_recorded
from chunkvisor.assemble.sides import write_sides
from chunkvisor.decide.bisect import BadText
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.attempt import Job
from chunkvisor.store.identity import TEXT_KEYS
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.reuse import Reuse
from chunkvisor.supervise.opening import Begun, Opening
from chunkvisor.supervise.taken import taken_of

_MAX_LINES = 100
"""For so many quarantined rows, the line of the source is looked up."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Called once, when no chunk is left: see `OutputRun.finish`."""

    opening: Opening
    begun: Begun
    ledger: Ledger
    table: StagedTable
    reuse: Reuse | None
    job: Job

    def __call__(self, on_block: Callable[[], None]) -> dict[str, Any]:
        """Rows, dimension and path of the final file, and how many rows were cut.

        Raises Halt, OSError, and what `on_block` raises.
        """
        local, ledger, layout, form = self.opening.source.local, self.ledger, self._layout, self._form
        if local is not None:
            local.check()
        manifest = dict[str, Any]()
        try:
            taken = taken_of(layout, self.reuse, ledger, on_block) if self.reuse is not None else None

            def on_written(final: Final) -> None:
                manifest.update(self._manifest(final, taken, on_block))
                if layout.earlier.done.exists():
                    announce(layout, manifest)

            final = assemble(ledger, self.table, on_block, form, taken, on_written)
        except TakenDamagedError as error:
            raise Halt(
                ExitCode.TRY_AGAIN,
                f"{layout.name}: vectors that were to be taken over are not what they were",
                why=str(error),
                remedy="run the same command again: it looks them up again, and encodes what it does not find",
            ) from error
        drop_earlier_sides(layout)
        write_sides(layout, manifest)
        publish_manifest(layout, manifest, final.stamps)
        drop_before(layout)
        # With rows in quarantine the chunks stay: `retry` has only the bad texts computed again.
        if not self.opening.config.chunk.keep and not manifest["quarantined"]:
            ledger.remove_chunks()
        return {
            "rows": self.begun.staged.rows,
            "dimension": final.dimension,
            "path": str(place_of(layout, form)),
            "truncated": (manifest["truncated"] or {}).get("rows", 0),
            "max_length": manifest["model"]["max_length"] or 0,
        }

    @property
    def _layout(self) -> OutputLayout:
        return self.ledger.layout

    @property
    def _form(self) -> Form:
        return asked_form(self.opening.config.outputs[self._layout.name], self.begun.staged.carried)

    def _manifest(self, final: Final, taken: Taken | None, on_block: Callable[[], None]) -> dict[str, Any]:
        ledger, layout, staged, job = self.ledger, self._layout, self.begun.staged, self.job
        assert ledger.facts is not None
        if layout.earlier.done.exists():  # the list that is there is that of the earlier generation
            badrows.forget(layout.earlier, read_recorded(layout.earlier))
        bad = badrows.record(layout, _quarantined_rows(texts_without(ledger, taken), self.table, final))
        cut = sides.record(ledger, self.table, self.reuse, on_block)
        origin = Origin(staged.rows, staged.distinct, staged.digest, list(staged.files))
        fingerprint = self.begun.fixed.identity.fingerprint
        manifest = build_manifest(
            layout, self._form, fingerprint, final, ledger.facts, job.model, job.encode, origin, bad, cut
        )
        if ledger.other_versions:
            manifest["other_versions"] = ledger.other_versions
        manifest["generation"] = self.begun.fixed.generation
        if self.reuse is not None:
            manifest["reused"] = [
                {"from": each.words, "texts": each.texts, "versions": each.versions}
                for each in self.reuse.places
                if each.texts
            ]
            manifest["texts_encoded"] = self.reuse.encoded
        values = self.begun.fixed.identity.values
        manifest["text"] = {key: values[key] for key in TEXT_KEYS if values.get(key) is not None}
        return manifest


def _quarantined_rows(without: dict[int, BadText], table: StagedTable, final: Final) -> Iterator[dict[str, Any]]:
    for number, (row, text) in enumerate(final.bad_rows):
        bad = without[text]
        # To find a line, the source is read up to it.
        place = table.place_of(row, with_line=number < _MAX_LINES)
        yield {"row": row, "outcome": str(bad.outcome), "reason": bad.reason, "place": place}
