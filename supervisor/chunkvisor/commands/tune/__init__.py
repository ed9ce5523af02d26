"""`tune`: tries what this machine offers on a sample of the config's own texts, and says what is fastest.

`candidates` and `compare` are pure; `measure` goes through the rounds; `bench` runs the workers, each in a process of
its own; `table` shows the result.
"""

from chunkvisor.commands.tune.measure import tune
from chunkvisor.commands.tune.table import draw, to_json

__all__ = ["draw", "to_json", "tune"]
