"""An encoder that misbehaves by chance: what it does is a hash of seed, run and attempt, so a seed
says it all.

`chaos.json` in the config's folder holds `seed`, `run`, `rate` (share of attempts that misbehave)
and `poison` (share of texts that no attempt of the run can encode: half of them crash it, half come
out as NaN); without the file the encoder does what good.py does. `model.kwargs` must be {"plan":
{}}: the misbehaviours are those of misbehaving.py, whose own plan stays empty.
"""

import hashlib
import json
import os
import random
import signal

import misbehaving
import numpy as np
from misbehaving import MISBEHAVIOURS, NOTES, PLACE, SPEC, Call

SELDOM = (
    *("sleep", "deaf_sleep", "hold_the_gil", "sigstop", "sleep_after", "leave_a_thread"),
    *("fault_huge", "endless_log_then_die", "disk_full", "hub_429", "import_error", "no_gpu"),
    "remove_the_attempt",
)
"""What takes seconds, or ends the run."""
NEVER = "other_dimension"
"""Of the first chunk it could not be told from the truth."""
OF_VECTORS = ("nan", "inf", "float64", "int8", "list", "nothing", "row_missing")
WEIGHTS = {name: 1 if name in SELDOM else 4 for name in sorted(MISBEHAVIOURS.keys() - {NEVER})}


try:
    CHAOS = json.loads((NOTES / "chaos.json").read_text())
except FileNotFoundError:
    CHAOS = {"seed": 0, "run": 0, "rate": 0, "poison": 0}


def _chance(*key):
    words = "/".join(map(str, (CHAOS["seed"], CHAOS["run"], *key)))
    return random.Random(hashlib.sha256(words.encode()).digest())


def _chosen():
    """(misbehaviour, moment) of this attempt, or (None, "")."""
    chance = _chance(PLACE, SPEC["start"], SPEC["stop"], SPEC["attempt"])
    if chance.random() >= CHAOS["rate"]:
        return None, ""
    (name,) = chance.choices(list(WEIGHTS), WEIGHTS.values())
    moments = [] if name in OF_VECTORS else ["import", "load", "encode"]
    return name, chance.choice([*moments, "encode", "second"])


def _poison(texts, vectors):
    for row, text in enumerate(texts):
        chance = _chance("text", text)
        if chance.random() < CHAOS["poison"] / 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        elif chance.random() < CHAOS["poison"] / 2:
            vectors[row] = np.nan


def _misbehave(moment, call=None):
    return MISBEHAVIOURS[NAME](call) if moment == WHEN else None


class Encoder(misbehaving.Encoder):
    def encode(self, texts, batch_size):
        vectors = super().encode(texts, batch_size)
        _poison(texts, vectors)
        moment = {1: "encode", 2: "second"}.get(self.calls, "later")
        changed = _misbehave(moment, Call(texts, batch_size, vectors))
        return vectors if changed is None else changed


def make(model, device):
    _misbehave("load")
    return Encoder()


NAME, WHEN = _chosen()
_misbehave("import")
