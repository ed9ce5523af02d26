"""An encoder that runs out of GPU memory as `model.kwargs` say, with torch's own words.

`message` is raised `at` load (by the factory) or encode, there for calls of more than `fits` rows a
batch, and as long as the file `full` lies in the folder `notes` (where there is no `notes`:
always).
"""

from pathlib import Path

from good import Encoder

OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})


def run_out(kwargs):
    if "notes" not in kwargs or (Path(kwargs["notes"]) / "full").exists():
        raise OutOfMemoryError(kwargs["message"])


class Narrow(Encoder):
    def __init__(self, kwargs):
        self.kwargs = kwargs

    def encode(self, texts, batch_size):
        if self.kwargs["at"] == "encode" and min(batch_size, len(texts)) > self.kwargs.get(
            "fits", 0
        ):
            run_out(self.kwargs)
        return super().encode(texts, batch_size)


def make(model, device):
    if model.kwargs["at"] == "load":
        run_out(model.kwargs)
    return Narrow(model.kwargs)
