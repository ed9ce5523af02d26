"""What a run would do and need, found out without a run: for `chunkvisor plan`.

It never starts a worker, never touches a GPU, and never writes into a workdir.
"""

from chunkvisor.commands.planning.draw import draw
from chunkvisor.commands.planning.forecast import Forecast
from chunkvisor.commands.planning.survey import survey

__all__ = ["Forecast", "draw", "survey"]
