"""The edge of a call from Python: unknown arguments are answered by name, errors come without our frames.

A notebook shows the signature of every frame and the code around it: what went wrong is to be in the last lines.
"""

import functools
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from chunkvisor.arguments import meanings, problem_of_call
from chunkvisor.callwords import in_python, options_in_python
from chunkvisor.errors import ChunkvisorError

P = ParamSpec("P")
T = TypeVar("T")

_HANGING: dict[str, Any] = {"initial_indent": "- ", "subsequent_indent": "  ", "break_on_hyphens": False}


def called_from_python(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with arguments that it has not answered by what does the same, and errors without our frames.

    The call raises TypeError for such arguments, and what the function raises.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # in pytest
        end: BaseException
        if problem := problem_of_call(function, args, kwargs):
            end = TypeError(problem)
        else:
            try:
                return function(*args, **kwargs)
            except ChunkvisorError as error:
                error.what, error.remedy = options_in_python(error.what), in_python(error.remedy)
                end = error
            except (Exception, KeyboardInterrupt) as error:
                if not isinstance(error, KeyboardInterrupt) or not error.args:  # it is no end of ours
                    if (theirs := _within(sys._getframe(1).f_globals, error.__traceback__)) is None:
                        raise
                    raise error.with_traceback(theirs)  # noqa: B904 - it is the same one
                end = error
        if "IPython" in sys.modules:
            vars(end)["_render_traceback_"] = functools.partial(_shown, end)
        raise end.with_traceback(None) from None

    call.__doc__ = _with_meanings(function)
    return call


def _within(module: dict[str, Any], traceback: TracebackType | None) -> TracebackType | None:
    """From where on the caller's own functions have raised it: a generator of texts, or `on_event`."""
    while traceback is not None and traceback.tb_frame.f_globals is not module:
        traceback = traceback.tb_next
    return traceback


def _shown(error: BaseException) -> list[str]:
    """What IPython and Jupyter show of the error, by their protocol: the caller's lines and the message.

    Frames with `__tracebackhide__` they leave out as well, but not the last one.
    """
    from IPython import get_ipython

    each, frames = error.__traceback__, list[TracebackType]()
    while each is not None:
        frames.append(each)
        each = each.tb_next
    callers = None
    for each in reversed(frames):
        if each.tb_frame.f_globals is not globals():
            callers = TracebackType(callers, each.tb_frame, each.tb_lasti, each.tb_lineno)
    shown: list[str] = get_ipython().InteractiveTB.structured_traceback(type(error), error, callers)
    return shown


def _with_meanings(function: Callable[..., Any]) -> str:
    """Its docstring, and what each argument means: `help` is to be enough."""
    lines = [textwrap.fill(f"{name}: {words}", 100, **_HANGING) for name, words in meanings(function).items()]
    return "\n".join([inspect.getdoc(function) or "", "", "Arguments:", "", *lines])
