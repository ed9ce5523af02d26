"""Everything that the events of a journal have come to so far, as one value that goes into JSON and back.

Pure: it never reads a file; `journal` writes it down now and then, so that nobody has to read a long story from its
beginning.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chunkvisor.events.fold import Fold
from chunkvisor.events.foldrecord import FoldRecord
from chunkvisor.events.tally import Tally
from chunkvisor.events.words import Weight, weight_of, words_of
from chunkvisor_worker.contract.messages import from_json

LAST_NEWS = 5


@dataclass(frozen=True, slots=True)
class _News:
    weight: int
    t: float
    words: str


@dataclass(frozen=True, slots=True)
class _Record:
    tally: Tally
    fold: FoldRecord
    news: tuple[_News, ...]


class SoFar:
    """The sums of a journal, and what there is to see of its last run."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.fold = Fold()
        self.news: deque[tuple[Weight, float, str]] = deque(maxlen=LAST_NEWS)
        """The last lines for people of the last run: weight, time, words."""

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take in one event of the journal."""
        name, t = event["event"], event.get("t")
        self.tally.feed(event)
        if not isinstance(t, int | float):
            return
        self.fold.feed(name, event, t)
        if name == "invoked":
            self.news.clear()
        if line := words_of(name, event):
            self.news.append((weight_of(name), t, line))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        news = tuple(_News(int(weight), t, words) for weight, t, words in self.news)
        return asdict(_Record(self.tally, self.fold.record(), news))

    @classmethod
    def restored(cls, mark: str | bytes) -> "SoFar | None":
        """What `to_json` was made of, from its JSON text; None where it is not that."""
        record = from_json(_Record, mark)
        if record is None:
            return None
        found = cls()
        try:
            found.tally, found.fold = record.tally, Fold.restored(record.fold)
            found.news.extend((Weight(each.weight), each.t, each.words) for each in record.news)
        except ValueError:
            return None
        return found
