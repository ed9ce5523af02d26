"""What a run would do and need, found out without a run: for `chunkvisor plan`.

It never starts a worker, never touches a GPU, and never writes into a workdir.
"""

from chunkvisor.planning.draw import draw
from chunkvisor.planning.forecast import Forecast
from chunkvisor.planning.survey import survey

__all__ = ["Forecast", "draw", "survey"]
