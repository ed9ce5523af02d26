"""Parts of python.md and machine-readable.md.

Signatures of functions, and fields of dataclasses.
"""

import ast
import dataclasses
import inspect
import sys
from collections.abc import Callable
from functools import partial

import chunkvisor.api
import chunkvisor.results
from chunkvisor import messages
from chunkvisor.api import meanings
from chunkvisor.events import state
from chunkvisor.show import status
from configpart import keys as keys_of_config
from docstrings import attribute_docs
from md import code, listing

KEYS = keys_of_config()


def arguments(function: str, *told: str) -> str:
    """Each argument of a function but those `told`: default and meaning.

    Those that are keys by their names alone.
    """
    tree = ast.parse(inspect.getsource(chunkvisor.api))
    (found,) = (
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function
    )
    signature, meant = found.args, meanings(getattr(chunkvisor.api, function))
    rows = [(each, "required") for each in signature.args]
    for each, default in zip(signature.kwonlyargs, signature.kw_defaults, strict=True):
        rows.append((each, "required" if default is None else code(ast.unparse(default))))
    alike = {
        name: [code(each.arg) for each, _ in rows if f"{name}.{each.arg}" in KEYS]
        for name in ("model", "encode")
    }
    alike["encode"] = [each for each in alike["encode"] if each not in alike["model"]]
    named = {each for names in alike.values() for each in names}
    lines = [
        (f"{code(each.arg)} ({said})", meant[each.arg])
        for each, said in rows
        if each.arg not in told and code(each.arg) not in named
    ]
    more = [
        f"As keys of {code(name)}, with their defaults: {', '.join(names)}."
        for name, names in alike.items()
        if names
    ]
    return "\n\n".join([listing(lines), *more])


def keys(kind: type) -> str:
    """Every field with what its docstring says."""
    return listing(_fields(kind))


def fields(kind: type) -> str:
    """Every field and property with what its docstring says."""
    rows = _fields(kind)
    for name, value in vars(kind).items():
        if not name.startswith("_") and (isinstance(value, property) or inspect.isfunction(value)):
            call = "" if isinstance(value, property) else "()"
            rows.append((code(name + call), (inspect.getdoc(value) or "").partition("\n\n")[0]))
    return listing(rows)


def _fields(kind: type) -> list[tuple[str, str]]:
    docs = dict[str, str]()
    for base in reversed(kind.__mro__[:-1]):
        said = attribute_docs(sys.modules[base.__module__])
        docs |= {
            name: messages for (owner, name), messages in said.items() if owner == base.__name__
        }
    return [(code(each.name), docs.get(each.name, "")) for each in dataclasses.fields(kind)]


PARTS: dict[str, Callable[[], str]] = {
    "python encode": partial(arguments, "encode"),
    "python run": partial(
        arguments, "run", "set", "from_scratch", "update", "stop_after", "progress", "on_event"
    ),
    "python Report": partial(fields, chunkvisor.results.Report),
    "python FinalFile": partial(fields, chunkvisor.results.FinalFile),
    "python QuarantinedRow": partial(fields, chunkvisor.results.QuarantinedRow),
    "status": partial(keys, status.Status),
    "status output": partial(keys, status.OutputStatus),
    "status reason": partial(keys, messages.BadReason),
    "status device": partial(keys, state.DeviceTimes),
}
"""Name of a part -> what makes it."""
