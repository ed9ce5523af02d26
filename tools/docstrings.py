"""The docstrings that stand below attributes, which Python itself does not keep."""

import ast
import functools
import inspect
from types import ModuleType


@functools.cache
def attribute_docs(module: ModuleType) -> dict[tuple[str, str], str]:
    """(class, attribute) -> the docstring below it, on one line.

    Nothing for an attribute without one.
    """
    found = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            for first, second in zip(node.body, node.body[1:], strict=False):
                name = _name(first)
                if name and isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant):
                    found[node.name, name] = " ".join(str(second.value.value).split())
    return found


def _name(node: ast.stmt) -> str | None:
    target = node.target if isinstance(node, ast.AnnAssign) else None
    if isinstance(node, ast.Assign):
        target = node.targets[0] if isinstance(node.targets[0], ast.Name) else None
    return target.id if isinstance(target, ast.Name) else None
