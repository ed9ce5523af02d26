"""An encoder that misbehaves by chance: what it does is a hash of a seed and the attempt.

`chaos.json` in the config's folder holds `seed` and `rate` (share of attempts that misbehave);
without the file the encoder does what good.py does. `model.kwargs` must be {"plan": {}}: the
misbehaviours are those of misbehaving.py, whose own plan stays empty.
"""

import json
import random

import misbehaving
from misbehaving import MISBEHAVIOURS, NOTES, PLACE, SPEC, Call

SELDOM = (
    "sleep",
    "deaf_sleep",
    "hold_the_gil",
    "sigstop",
    "sleep_after",
    "leave_a_thread",
    "fault_huge",
    "endless_log_then_die",
    "disk_full",
    "hub_429",
    "import_error",
    "no_gpu",
    "remove_the_attempt",
)
"""What takes seconds, or ends the run."""
NEVER = "other_dimension"
"""Of the first chunk it could not be told from the truth."""
OF_VECTORS = ("nan", "inf", "float64", "int8", "list", "nothing", "row_missing")
WEIGHTS = {name: 1 if name in SELDOM else 4 for name in sorted(MISBEHAVIOURS.keys() - {NEVER})}


def _chosen():
    """(misbehaviour, moment) of this attempt, or (None, "")."""
    path = NOTES / "chaos.json"
    chaos = json.loads(path.read_text()) if path.exists() else {"seed": 0, "rate": 0}
    key = (chaos["seed"], PLACE, SPEC["start"], SPEC["stop"], SPEC["attempt"])
    chance = random.Random(str(key))
    if chance.random() >= chaos["rate"]:
        return None, ""
    (name,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
    moments = [] if name in OF_VECTORS else ["import", "load", "encode"]
    return name, chance.choice([*moments, "encode", "second"])


def _misbehave(moment, call=None):
    return MISBEHAVIOURS[NAME](call) if moment == WHEN else None


class Encoder(misbehaving.Encoder):
    def encode(self, texts, batch_size):
        vectors = super().encode(texts, batch_size)
        moment = {1: "encode", 2: "second"}.get(self.calls, "later")
        changed = _misbehave(moment, Call(texts, batch_size, vectors))
        return vectors if changed is None else changed


def make(model, device):
    _misbehave("load")
    return Encoder()


NAME, WHEN = _chosen()
_misbehave("import")
