"""What a run would do and need, found out without a worker or a GPU: for `chunkvisor plan`."""

from chunkvisor.commands.planning.draw import draw
from chunkvisor.commands.planning.forecast import Forecast
from chunkvisor.commands.planning.survey import survey

__all__ = ["Forecast", "draw", "survey"]
