"""Outputs on their way to work: what they have in common, and one whose source is staged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import Config
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.events.event import Emit
from chunkvisor.store.identity import Fixed, Staged
from chunkvisor.store.layout import OutputLayout
from chunkvisor.supervise.planreuse import Planner

if TYPE_CHECKING:
    from chunkvisor.supervise.means import Means


@dataclass(slots=True)
class Opening:
    """What all outputs of a run have in common while they are opened."""

    loaded: LoadedConfig
    source: ModelSource
    device_kind: str
    run_id: str
    max_rows: int | None
    arithmetic: Mapping[str, str]
    """Variables of the workers that choose other arithmetic."""
    means: "Means"
    emit: Emit
    on_wait: Callable[[], None]
    """Called while a source is read; raises to stop."""
    planner: Planner
    load_ahead: Callable[[], None]
    """Called before a source is read: what workers need can be loaded beside that."""
    update: bool = False
    """A source that has changed is taken as it is now."""
    from_scratch: bool = False

    @property
    def config(self) -> Config:
        """The validated config."""
        return self.loaded.config


@dataclass(slots=True)
class Begun:
    """One output whose source is staged."""

    layout: OutputLayout
    fixed: Fixed
    """Of the next generation, where there is to be one."""
    staged: Staged
    manifest: dict[str, Any] | None = None
    """Of a complete one."""
    moves_on: bool = False
    """Its next generation is prepared in `layout.next`, but for the plan; its table is there only if it is another."""

    @property
    def name(self) -> str:
        """Of the output, as the config has it."""
        return self.layout.name

    @property
    def complete(self) -> bool:
        """Whether there is nothing to do."""
        return self.manifest is not None and not self.moves_on
