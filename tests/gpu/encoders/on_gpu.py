"""An encoder that uses the GPU for real, and there meets the trouble that a test asks for.

`model.kwargs.trouble` maps a chunk's number to one of TROUBLES, met in the first attempt at it. What it sees it writes
to `notes/CHUNK-ATTEMPT.json` in the config's folder. The vectors are those of tests/encoders/good.py, through the GPU's
memory and back.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch


def assert_async():
    torch._assert_async(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()


def spin():
    """One kernel that never ends."""
    torch.cuda._sleep(1 << 62)
    torch.cuda.synchronize()


TROUBLES = {each.__name__: each for each in (assert_async, spin)}


class Encoder:
    def __init__(self, kwargs, device):
        self.kwargs, self.device = kwargs, device
        # In a drill, the name of the fault comes first.
        attempt = next(folder for folder in map(Path, sys.argv[1:]) if (folder / "spec.json").exists())
        spec = json.loads((attempt / "spec.json").read_text())
        self.trouble = kwargs.get("trouble", {}).get(str(spec["chunk"])) if spec["attempt"] == 1 else None
        self.note_path = Path(spec["import_path"][0]) / "notes" / f"{spec['chunk']}-{spec['attempt']}.json"
        self.notes = {"pid": os.getpid(), "initialised_before": torch.cuda.is_initialized()}
        self.notes["allocated_at_start"] = torch.cuda.memory_allocated()

    def note(self, **what):
        self.notes |= what
        temporary = self.note_path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.notes))
        temporary.replace(self.note_path)

    def encode(self, texts, batch_size):
        self.note(
            product=float((torch.ones(64, 64, device=self.device) @ torch.ones(64, 64, device=self.device)).sum())
        )
        if self.trouble:
            self.meet(self.trouble)
        return np.concatenate([self.batch(texts[i : i + batch_size]) for i in range(0, len(texts), batch_size)])

    def batch(self, texts):
        rows = [np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint8)[:8] for text in texts]
        return torch.from_numpy(np.stack(rows).astype(np.float32) + 1).to(self.device).cpu().numpy()

    def meet(self, name):
        self.note(trouble=name)
        try:
            TROUBLES[name]()
        except Exception as error:
            self.note(raised=f"{type(error).__name__}: {error}"[:300], code=getattr(error, "error_code", None))
            self.note(afterwards=self.still_works())
            raise
        self.note(raised="")

    def still_works(self):
        """Whether the context can be used after the fault: what a second, innocent call raises."""
        try:
            torch.ones(8, device=self.device).sum().item()
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:300]
        return ""


def make(model, device):
    return Encoder(model.kwargs, device)
