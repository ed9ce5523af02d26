"""Asks torch, on a null GPU: torch is imported once, and each question has a forked process of its own."""

import json
from typing import Any

from nullgpu import NullGpu

_PROGRAM = """
import json, os, sys, warnings
import torch
code, environments = json.loads(os.environ.pop("QUESTION"))
program = compile(code, "question", "exec")
for environment in environments:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
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
            exec(program, {"say": say, "error": error, "turn": turn, "torch": torch, "os": os})
        except BaseException as fault:
            out["raised"] = repr(fault)
        with open(writing, "w") as pipe:
            json.dump(out, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        print("ANSWER" + (pipe.read() or "null"), flush=True)
    os.waitpid(child, 0)
"""


def ask_each(gpu: NullGpu, code: str, *environments: dict[str, str], **base: str) -> list[dict[str, Any]]:
    """What the lines of `code` said in one process for each environment; `base` is the environment of them all.

    In the code: `say(name, value)`; `error(name, function)` says the (type, text, error code) of what it raises, or
    None; `turn(lines)` adds lines to the control file. A process that dies says None.
    """
    ended = gpu.python(_PROGRAM, env={**base, "QUESTION": json.dumps([code, environments or [{}]])})
    answers = [json.loads(line[6:]) for line in ended.stdout.splitlines() if line.startswith("ANSWER")]
    assert len(answers) == len(environments or [{}]), ended
    assert not any(answer and "raised" in answer for answer in answers), (answers, ended.stderr)
    return answers


def ask(gpu: NullGpu, code: str, **environment: str) -> dict[str, Any]:
    """`ask_each` of one process."""
    return ask_each(gpu, code, **environment)[0]
