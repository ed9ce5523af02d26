"""Looks at the versions of the libraries that computed each piece of an output, before it is taken over."""

from dataclasses import dataclass, field

from chunkvisor.errors import KEPT, config_error
from chunkvisor.events.event import Emit
from chunkvisor.events.output import OtherVersions
from chunkvisor.store.versions import VersionNotes, differences
from chunkvisor_worker.contract.messages import Facts


@dataclass(slots=True)
class VersionWatch:
    """The watch over one output."""

    output: str
    notes: VersionNotes
    emit: Emit
    strict: bool = field(kw_only=True)
    """Whether other versions are refused."""
    _told: set[str] = field(default_factory=set)

    def refuses(self, first: Facts | None, now: Facts) -> bool:
        """Whether `saw` would raise Halt."""
        return self.strict and first is not None and bool(differences(first.versions, now.versions))

    def saw(self, start: int, stop: int, first: Facts | None, now: Facts) -> None:
        """Texts start..stop come from a worker with these facts; `first` are those of the output, None = not known yet.

        Raises Halt (78) where they are others and must not be, OSError where they cannot be noted.
        """
        if first is None:
            return
        changed = ", ".join(differences(first.versions, now.versions))
        if changed and self.strict:
            raise config_error(
                f"output {self.output} was begun with other versions of its libraries",
                why=f"{changed}; the config says identity: strict",
                remedy="install the earlier versions, or start over with --from-scratch, or accept the difference: "
                f"identity: standard{KEPT}",
            )
        self.notes.note(start, stop, first.versions, now.versions)
        if changed and changed not in self._told:
            self._told.add(changed)
            self.emit(OtherVersions(self.output, changed))
