"""Makes the final file of one output, whose chunks are all committed, and its manifest.

A final file that was there before stays valid until one rename replaces it.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from chunkvisor.assemble import badrows, sides
from chunkvisor.assemble.before import drop_before, drop_earlier_sides
from chunkvisor.assemble.forms import Form, asked_form, place_of
from chunkvisor.assemble.join import Final, Origin, assemble, build_manifest, texts_without
from chunkvisor.assemble.manifest import announce, publish_manifest, read_recorded
from chunkvisor.assemble.reader import Taken, TakenDamagedError
from chunkvisor.assemble.sides import write_sides
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.reuse import taken_of
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.identity import TEXT_KEYS, BadText
from chunkvisor.store.ledger import Ledger, Reuse
from chunkvisor_worker.contract.files import remove_folder
from chunkvisor_worker.contract.messages import Spec

if TYPE_CHECKING:
    from chunkvisor.supervise.opening import Begun, Opening

_MAX_LINES = 100
"""For that many quarantined rows, the line of the source is looked up."""


class Finish:
    """Called once, when no chunk is left: see `OutputRun.finish`."""

    def __init__(
        self, opening: "Opening", made: "Begun", ledger: Ledger, table: StagedTable, reuse: Reuse | None, job: Spec
    ) -> None:
        self._opening, self._made, self._ledger, self._table = opening, made, ledger, table
        self._reuse, self._job, self._layout = reuse, job, ledger.layout

    def __call__(self, on_block: Callable[[], None]) -> dict[str, Any]:
        """Return rows, dimension and path of the final file, and how many rows were cut.

        Raises Halt, OSError, and what `on_block` raises.
        """
        local, config, layout = self._opening.source.local, self._opening.config, self._layout
        form = asked_form(config.outputs[layout.name], self._made.staged.carried)
        if local is not None:
            local.check()
        manifest = dict[str, Any]()
        try:
            taken = taken_of(layout, self._reuse, self._ledger, on_block) if self._reuse is not None else None

            def on_written(final: Final) -> None:
                manifest.update(self._manifest(form, final, taken, on_block))
                if layout.earlier.done.exists():
                    announce(layout, manifest)

            final = assemble(self._ledger, self._table, on_block, form, taken, on_written)
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
        if not config.chunk.keep and not manifest["quarantined"]:
            remove_folder(self._ledger.layout.chunks)
        return {
            "rows": self._made.staged.rows,
            "dimension": final.dimension,
            "path": str(place_of(layout, form)),
            "truncated": (manifest["truncated"] or {}).get("rows", 0),
            "max_length": manifest["model"]["max_length"] or 0,
        }

    def _manifest(self, form: Form, final: Final, taken: Taken | None, on_block: Callable[[], None]) -> dict[str, Any]:
        ledger, layout, staged, job, fixed = self._ledger, self._layout, self._made.staged, self._job, self._made.fixed
        assert ledger.facts is not None
        if layout.earlier.done.exists():  # the list that is there is that of the earlier generation
            badrows.forget(layout.earlier, read_recorded(layout.earlier))
        bad = badrows.record(layout, _quarantined_rows(texts_without(ledger, taken), self._table, final))
        cut = sides.record(ledger, self._table, self._reuse, on_block)
        origin = Origin(staged.rows, staged.distinct, staged.digest, list(staged.files))
        manifest = build_manifest(
            layout, form, fixed.identity.fingerprint, final, ledger.facts, job.model, job.encode, origin, bad, cut
        )
        if ledger.other_versions:
            manifest["other_versions"] = ledger.other_versions
        manifest["generation"] = fixed.generation
        if self._reuse is not None:
            manifest["reused"] = [
                {"from": each.words, "texts": each.texts, "versions": each.versions}
                for each in self._reuse.places
                if each.texts
            ]
            manifest["texts_encoded"] = self._reuse.encoded
        values = fixed.identity.values
        manifest["text"] = {key: values[key] for key in TEXT_KEYS if values.get(key) is not None}
        return manifest


def _quarantined_rows(without: dict[int, BadText], table: StagedTable, final: Final) -> Iterator[dict[str, Any]]:
    for number, (row, text) in enumerate(final.bad_rows):
        bad = without[text]
        # To find a line, the source is read up to it.
        place = table.place_of(row, with_line=number < _MAX_LINES)
        yield {"row": row, "outcome": str(bad.outcome), "reason": bad.reason, "place": place}
