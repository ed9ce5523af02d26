"""Stimuli and instructions in few words, for histories that people read."""

from dataclasses import fields

from chunkvisor.decide.verdict import Verdict
from chunkvisor.devices.health import Opinion
from chunkvisor.errors import Halt
from chunkvisor.supervise.task import Task
from chunkvisor_worker.contract.messages import Limits, Tier


def terse(thing: object) -> str:
    """One line."""
    match thing:
        case Task():
            marks = [f"avoid {thing.avoid.device}{thing.avoid.node}"] if thing.avoid else []
            marks += ["control"] if thing.control else []
            marks += [f"alone {thing.tier.rows}"] if thing.tier else []
            return f"[{thing.output}.{thing.chunk} {thing.start}..{thing.stop}{''.join(' ' + each for each in marks)}]"
        case Verdict():
            what = f" {thing.phase}" if thing.phase else ""
            what += f" {thing.batch_rows}x{thing.batch_tokens // thing.batch_rows}" if thing.batch_rows else ""
            return f"{thing.outcome}{what}{f' bad {thing.bad_rows}' if thing.bad_rows else ''}"
        case Limits():
            tiers = "".join(f" {tier.min_length}+:{tier.rows}/{tier.tokens}" for tier in thing.tiers)
            return f"{thing.rows}/{thing.tokens}{tiers}"
        case Tier():
            return f"{thing.min_length}+:{thing.rows}/{thing.tokens}"
        case Opinion():
            return str(thing.health.value)
        case Halt():
            return f"{thing.code.name} ({thing.what})"
        case tuple():
            return f"({', '.join(map(terse, thing))})"
    if hasattr(thing, "__dataclass_fields__"):
        return f"{type(thing).__name__}({', '.join(terse(getattr(thing, each.name)) for each in fields(thing))})"  # type: ignore[arg-type]  # a dataclass, it was just asked
    return str(thing)
