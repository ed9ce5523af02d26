"""An encoder that misbehaves by chance: what it does is a hash of seed, run and attempt, so a seed
says it all.

`chaos.json` in the config's folder holds `seed`, `run`, `rate` (share of attempts that misbehave)
and `poison` (share of texts that no attempt of the run can encode: half of them crash it, half come
out as NaN); without the file the encoder does what good.py does. Before anything happens, its name
is appended as a line to `injected` there. `model.kwargs` must be {"plan": {}}: the misbehaviours
are those of misbehaving.py, whose own plan stays empty.
"""

import hashlib
import json
import os
import random
import signal

import misbehaving
import numpy as np
from misbehaving import MISBEHAVIOURS, NOTES, PLACE, SPEC, Call, lie

WEIGHTS = {
    # Many: what a run meets every night.
    **dict.fromkeys(("cuda_oom", "cuda_oom_runtime_error", "nvml_assert", "cublas_alloc"), 4),
    **dict.fromkeys(("segfault", "abort", "sigkill", "sigterm", "exit_0"), 4),
    **dict.fromkeys(("cuda_700", "runtime_error", "memory_error"), 4),
    **dict.fromkeys(("nan", "inf", "row_missing"), 4),
    **dict.fromkeys(
        ("half_a_file", "false_digest", "false_fingerprint", "false_dimension", "false_type"), 3
    ),
    **dict.fromkeys(("exit_20_after", "segfault_after"), 3),
    # Some: bad manners.
    **dict.fromkeys(("value_error", "surrogate_message"), 2),
    **dict.fromkeys(("system_exit_0", "no_file_may_open"), 2),
    **dict.fromkeys(("no_file_may_grow", "list"), 2),
    **dict.fromkeys(("fault_garbage", "fault_is_a_pipe"), 2),
    **dict.fromkeys(("beat_garbage", "close_streams"), 2),
    **dict.fromkeys(("forget_the_texts", "change_the_texts", "child_then_die"), 2),
    **dict.fromkeys(("child_and_finish", "float64"), 2),
    # Few: what takes seconds, or ends the run.
    **dict.fromkeys(("sleep", "deaf_sleep", "hold_the_gil", "sigstop", "disk_full", "hub_429"), 1),
    **dict.fromkeys(
        ("sleep_after", "leave_a_thread", "import_error", "no_gpu", "remove_the_attempt"), 1
    ),
}
"""What happens, by how often. Left out is what nobody could tell from the truth: other vectors in
the right shape."""

FALSE = {
    "false_digest": lie(digest="0" * 64),
    "false_fingerprint": lie(fingerprint="another"),
    "false_dimension": lie(facts={"dimension": 9, "dtype": "", "max_length": None, "versions": {}}),
    "false_type": lie(digest=7),
}
NEEDS_CALL = {"nan", "inf", "zero_row", "float64", "list"} | {
    name for name in WEIGHTS if name.startswith(("row_", "one_", "no_dim"))
}


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
    moments = (
        ["encode", "second"]
        if name in NEEDS_CALL
        else ["import", "load", "encode", "encode", "second"]
    )
    return name, chance.choice(moments)


def _note(name):
    with open(NOTES / "injected", "ab", buffering=0) as file:
        file.write(f"{name}\n".encode())


def _poison(texts, vectors):
    for row, text in enumerate(texts):
        chance = _chance("text", text)
        if chance.random() < CHAOS["poison"] / 2:
            _note("poison_crash")
            os.kill(os.getpid(), signal.SIGSEGV)
        elif chance.random() < CHAOS["poison"] / 2:
            _note("poison_nan")
            vectors[row] = np.nan


def _misbehave(moment, call=None):
    if moment != WHEN:
        return None
    _note(NAME)
    return {**MISBEHAVIOURS, **FALSE}[NAME](call)


class Encoder(misbehaving.Encoder):
    def encode(self, texts, batch_size):
        vectors = super().encode(texts, batch_size)
        _poison(texts, vectors)
        moment = {1: "encode", 2: "second"}.get(self.calls, "")
        changed = _misbehave(moment, Call(texts, batch_size, vectors))
        return vectors if changed is None else changed


def make(model, device):
    _misbehave("load")
    return Encoder()


NAME, WHEN = _chosen()
_misbehave("import")
