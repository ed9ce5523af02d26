"""The handbook's entry of an outcome or of a rule, as text for a terminal."""

import re
import textwrap

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.judge import Verdict
from chunkvisor.units import did_you_mean
from chunkvisor.words import ENTRIES, last_remedy
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rules import OF_GPUS, RULES, Rule

_WIDTH = 96
_ON_CPU = (
    "In a run on the CPU (`device: cpu`) no GPU is at fault: the encoder raised this error by itself; look at its code."
)


def names() -> list[str]:
    """Return what can be explained: outcomes, then rules, each by the alphabet; the outcome of success comes last."""
    outcomes = sorted(map(str, ENTRIES), key=lambda name: (name == Outcome.COMMITTED, name))
    return [*outcomes, *sorted({rule.name for rule in RULES} - set(outcomes))]


def index() -> list[str]:
    """Return a line for each entry under two headings: its name, and what happened in a sentence."""
    causes = {rule.name: rule.cause for rule in RULES} | {name: found.what for name, found in ENTRIES.items()}
    width = max(map(len, causes))
    lines = []
    for name in names():
        sentence = re.split(r"(?<=[a-z0-9)`])\. ", causes[name], maxsplit=1)[0].rstrip(".")
        lines.append(textwrap.fill(f"{name:<{width}}  {sentence}", _WIDTH, subsequent_indent=" " * (width + 2)))
    outcomes = len(ENTRIES)
    return [
        "What becomes of an attempt",
        *lines[:outcomes],
        "",
        "Faults that are known by name",
        *lines[outcomes:],
    ]


def explain(name: str) -> str:
    """Return the entry, in lines that fit a terminal. Raises Halt (2) for an unknown name, with the nearest."""
    wanted = name.strip().lower()
    for rule in RULES:
        if rule.name == wanted:
            return _of_rule(rule)
    outcome = wanted.replace("-", "_")
    if outcome not in ENTRIES:
        what = f"the handbook has no entry {name}; {did_you_mean(wanted, names())}"
        raise Halt(ExitCode.USAGE, what, remedy="`chunkvisor explain` without a name lists them all")
    found = ENTRIES[outcome]
    parts = [outcome, _wrapped(found.what)]
    parts += [_part("What the run does by itself", found.then), _part("What you can do", found.do)]
    if rules := [rule.name for rule in RULES if rule.outcome == outcome]:
        parts.append(_part("Faults that end so (chunkvisor explain FAULT)", ", ".join(rules)))
    return "\n\n".join(parts)


def _of_rule(rule: Rule) -> str:
    parts = [rule.name, _wrapped(rule.cause), _part("What to do", rule.remedy)]
    last = last_remedy(Verdict(rule.outcome, "", rule.remedy, rule.name, rule.exit_code))
    if last != rule.remedy:
        parts.append(_part("If the run has ended with it", last))
    if rule.name in OF_GPUS:
        parts.append(_wrapped(_ON_CPU))
    if str(rule.outcome) != rule.name:
        called = f"In the lines of the run it is called {rule.outcome}: chunkvisor explain {rule.outcome}"
        parts.append(_wrapped(called))
    return "\n\n".join(parts)


def _part(head: str, text: str) -> str:
    return f"{head}\n{textwrap.indent(_wrapped(text, _WIDTH - 2), '  ')}"


def _wrapped(text: str, width: int = _WIDTH) -> str:
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
