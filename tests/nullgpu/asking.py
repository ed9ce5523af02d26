"""Asks torch, on a null GPU: each question has a process of its own, forked from one that has imported torch.

That one is started with the first question and ends with the tests; it never touches a GPU.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
from typing import Any

from harness import MARK
from nullgpu import NullGpu

_PROGRAM = """
import json, os, sys, traceback
exec(sys.argv[1])
for line in sys.stdin:
    code, environment = json.loads(line)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)  # what is printed is no answer
        os.environ.update(environment)
        out = {}
        def say(name, value):
            out[name] = value
        def error(name, function):
            try:
                function()
                out[name] = None
            except Exception as fault:
                out[name] = [type(fault).__name__, str(fault), getattr(fault, "error_code", None)]
        def turn(lines):
            with open(os.environ["NULLGPU_DIR"] + "/control", "a") as control:
                control.write(lines + "\\n")
        try:
            exec(code, globals() | {"say": say, "error": error, "turn": turn})
        except BaseException:
            out["raised"] = traceback.format_exc()
        with open(writing, "w") as pipe:
            json.dump(out, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        answer = pipe.read() or "null"
    os.waitpid(child, 0)
    print(answer, flush=True)
"""


@functools.cache
def _asked(prelude: str, preload: str, library_path: str, base: tuple[tuple[str, str], ...]) -> "subprocess.Popen[str]":
    # It belongs to no test: the one that starts it must not wait for its end.
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    environment |= {"LD_PRELOAD": preload, "LD_LIBRARY_PATH": library_path, **dict(base)}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, prelude],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    atexit.register(process.communicate)  # the end of its input is its end
    return process


def ask_each(
    gpu: NullGpu, code: str, *environments: dict[str, str], prelude: str = "import torch", **base: str
) -> list[dict[str, Any]]:
    """What the lines of `code` said in one process for each environment; `base` is the environment of them all.

    In the code: `say(name, value)`; `error(name, function)` says the (type, text, error code) of what it raises, or
    None; `turn(lines)` adds lines to the control file; and all that the `prelude` imports. A process that dies says
    None.
    """
    known = gpu.environment()
    process = _asked(prelude, known["LD_PRELOAD"], known["LD_LIBRARY_PATH"], tuple(base.items()))
    assert process.stdin is not None
    assert process.stdout is not None
    answers = []
    for environment in environments or ({},):
        process.stdin.write(json.dumps([code, known | environment]) + "\n")
        process.stdin.flush()
        answers.append(json.loads(process.stdout.readline()))
    assert not any(answer and "raised" in answer for answer in answers), answers
    return answers
