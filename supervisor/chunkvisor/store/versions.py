"""Which versions of the libraries computed which texts of an output, where not all of them had those of the first.

The config's `identity` decides whether that may be. Where all were the same, there is no file.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.seal import DamagedError, read_record, write_sealed

_TELLING = ("torch", "cuda", "transformers", "sentence-transformers", "int8")
"""The last is no library: with which instructions of the processor a model in int8 was computed."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Texts that other versions than the first computed."""

    start: int
    stop: int
    """One past the last."""
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Record:
    stretches: tuple[Stretch, ...]


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """In words: the libraries that shape vectors and are not the same in both."""
    pairs = [(name, before.get(name), now.get(name)) for name in _TELLING]
    return [
        f"{name} {was or 'absent'} before, {is_now or 'absent'} now" for name, was, is_now in pairs if was != is_now
    ]


class VersionNotes:
    """What is noted of one output."""

    def __init__(self, layout: OutputLayout) -> None:
        self._path = layout.versions
        self._stretches = read_stretches(layout)

    def note(self, start: int, stop: int, first: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Note by which versions texts start..stop were computed, `first` being those of the output. Raises OSError."""
        fresh = [Stretch(start, stop, dict(now))] if differences(first, now) else []
        if fresh or any(each.start < stop and start < each.stop for each in self._stretches):
            self._stretches = _joined([*_without(self._stretches, start, stop), *fresh])
            write_sealed(self._path, asdict(_Record(tuple(self._stretches))))


def read_stretches(layout: OutputLayout) -> list[Stretch]:
    """All that is noted of the output."""
    try:
        record = read_record(_Record, layout.versions)
    except (DamagedError, OSError):
        return []
    return [each for each in record.stretches if 0 <= each.start < each.stop] if record is not None else []


def _without(stretches: list[Stretch], start: int, stop: int) -> list[Stretch]:
    kept = []
    for each in stretches:
        kept += [
            Stretch(first, last, each.versions)
            for first, last in ((each.start, min(each.stop, start)), (max(each.start, stop), each.stop))
            if first < last
        ]
    return kept


def _joined(stretches: list[Stretch]) -> list[Stretch]:
    joined: list[Stretch] = []
    for each in sorted(stretches, key=lambda stretch: stretch.start):
        if joined and joined[-1].stop == each.start and joined[-1].versions == each.versions:
            joined[-1] = Stretch(joined[-1].start, each.stop, each.versions)
        else:
            joined.append(each)
    return joined
