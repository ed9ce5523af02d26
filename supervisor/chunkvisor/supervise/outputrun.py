"""One output while a run works on it; to the scheduler it is the output's `Progress`."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from chunkvisor.assemble.form import Form
from chunkvisor.decide.bisect import BadText
from chunkvisor.engine.modelsource import LocalModel
from chunkvisor.sources.table import StagedTable, rows_of
from chunkvisor.store.attempt import Job
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.seal import DamagedError
from chunkvisor.supervise.endings import texts_damaged
from chunkvisor_worker.contract.messages import Limits, Spec


@dataclass(slots=True)
class OutputRun:
    """One output that is not complete yet."""

    ledger: Ledger
    table: StagedTable
    job: Job
    limits: Limits
    """Batch limits of the config, before any lesson."""
    finish: Callable[[Callable[[], None]], dict[str, Any]]
    """Assembles and publishes; gets a function to call now and then, returns the details of the closing event."""
    form: Form = field(default_factory=Form)
    """Of its final."""
    model: LocalModel | None = None
    """The folder from which its workers load, which must not change meanwhile."""
    rows: int = 0
    taken: int = 0
    """Texts whose vectors are taken over."""
    awaits: frozenset[str] = frozenset()
    """Outputs whose final files have some of them."""
    awaited: tuple["OutputRun", ...] = ()
    """Those of them that are not complete yet: it is joined after these."""
    joined: bool = False
    committed_here: int = 0
    """Chunks committed by this run."""
    texts_here: int = 0
    """Texts in them that it has encoded."""
    saved_before: dict[int, int] = field(default_factory=dict)
    """Texts of chunks that were not committed, which were done before this run began to work."""
    _rows: dict[int, int] = field(default_factory=dict)
    """Of bad texts, by number."""

    @property
    def name(self) -> str:
        """Of the output, as the config has it."""
        return self.ledger.layout.name

    @property
    def chunks(self) -> int:
        """See Progress."""
        return self.ledger.plan.count

    @property
    def left(self) -> int:
        """See Progress."""
        return self.ledger.left

    @property
    def complete(self) -> bool:
        """See Progress."""
        return not self.ledger.left and all(each.joined for each in self.awaited)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: the output is joined."""
        return not self.left and (not self.complete or self.ledger.layout.done.exists())

    @property
    def has_facts(self) -> bool:
        """See Progress."""
        return self.ledger.facts is not None

    @property
    def bad_count(self) -> int:
        """See Progress."""
        return self.ledger.bad_count

    def bad_rows(self) -> int:
        """See Progress."""
        bad = [text.text for text in self.ledger.bad_texts()]
        self._rows.update(rows_of(self.table, [text for text in bad if text not in self._rows]))
        return sum(self._rows[text] for text in bad)

    def rows_of(self, text: int) -> int:
        """See Progress."""
        if text not in self._rows:
            self._rows.update(rows_of(self.table, [text]))
        return self._rows[text]

    @property
    def last_bad(self) -> BadText | None:
        """See Progress."""
        return next(reversed(self.ledger.bad_texts()), None)

    @property
    def texts(self) -> int:
        """See Progress."""
        return self.ledger.plan.distinct

    def check_model(self) -> None:
        """Raises Halt (78) where the model's folder is not what it was: its workers have loaded who knows what."""
        if self.model is not None:
            self.model.check()

    def bounds(self, chunk: int) -> tuple[int, int]:
        """See Progress."""
        return self.ledger.plan.bounds(chunk)

    def next_pending(self, start: int) -> int | None:
        """See Progress."""
        return self.ledger.next_pending(start)

    def missing(self, chunk: int) -> list[tuple[int, int]]:
        """See Progress."""
        return [] if self.ledger.committed(chunk) else self.ledger.parts(chunk).missing()

    def cuts(self, chunk: int) -> Sequence[int]:
        """See Progress."""
        return self.ledger.parts(chunk).cuts

    def shortest(self, chunk: int, without: Collection[int]) -> int | None:
        """See Progress. Raises Halt where the texts are damaged."""
        gaps = self.missing(chunk)
        texts = (each for gap in gaps for each in zip(range(*gap), self.table.each_text(*gap), strict=True))
        sizes = ((not words.strip(), len(words), text) for text, words in texts if text not in without)
        try:
            return min(sizes, default=(False, 0, None))[2]
        except DamagedError as error:
            raise texts_damaged(error) from error

    def known_good(self) -> tuple[int, int] | None:
        """See Progress."""
        return self.ledger.known_good()

    def blank_test(self, spec: Spec) -> Callable[[int], bool]:
        """Whether the i-th text of an attempt has nothing but white space."""

        def is_blank(index: int) -> bool:
            first = spec.start + index
            return not self.table.texts(first, first + 1)[0].strip()

        return is_blank
