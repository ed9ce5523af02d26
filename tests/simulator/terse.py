"""Events and commands in few words, for histories that people read."""

from dataclasses import fields
from functools import partial

from chunkvisor.devices.stations import Opinion
from chunkvisor.heart.work import Work
from chunkvisor.judge import Verdict
from chunkvisor_worker.contract.messages import Limits


def terse(thing: object) -> str:
    """One line."""
    match thing:
        case Work():
            marks = [f"avoid {thing.avoid}"] if thing.avoid is not None else []
            marks += [each for each in ("doubt", "part", "one_by_one", "fresh") if getattr(thing, each)]
            texts = f"{thing.texts[0]}..{thing.texts[-1] + 1}"
            texts += f" ({len(thing.texts)})" if len(thing.texts) < thing.texts[-1] + 1 - thing.texts[0] else ""
            return f"[{thing.output}.{thing.chunk} {texts}{''.join(' ' + each for each in marks)}]"
        case Verdict():
            what = f" {thing.phase}" if thing.phase else ""
            what += f" {thing.batch_rows}x{thing.batch_tokens // thing.batch_rows}" if thing.batch_rows else ""
            return f"{thing.outcome}{what}{f' bad {thing.bad_rows}' if thing.bad_rows else ''}"
        case Limits():
            return f"{thing.rows}/{thing.tokens}"
        case Opinion():
            return str(thing.health.value)
        case partial():
            given = [*map(terse, thing.args), *(f"{name} {terse(each)}" for name, each in thing.keywords.items())]
            return f"{thing.func.__name__}({', '.join(given)})"
        case frozenset():
            return f"{{{','.join(map(str, sorted(thing)))}}}"
        case tuple():
            return f"({', '.join(map(terse, thing))})"
    if hasattr(thing, "__dataclass_fields__"):
        return f"{type(thing).__name__}({', '.join(terse(getattr(thing, each.name)) for each in fields(thing))})"  # type: ignore[arg-type]  # a dataclass, it was just asked
    return str(thing)
