"""The handbook's entry of an outcome or of a rule, as text for a terminal."""

import re
import textwrap

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.judge import Verdict
from chunkvisor.units import did_you_mean
from chunkvisor.words import ENTRIES, last_remedy
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import Rule
from chunkvisor_worker.contract.rules import OF_GPUS, RULES

_WIDTH = 96
_BY_ITSELF, _BY_YOU = "What the run does by itself", "What you can do"
_ON_CPU = (
    "In a run on the CPU (`device: cpu`) no GPU is at fault: the encoder raised this error by itself; look at its code."
)


def names() -> list[str]:
    """What can be explained: outcomes, then rules, each by the alphabet; the last outcome is the one of success."""
    return [*_outcomes(), *_rules()]


def _outcomes() -> list[str]:
    return sorted(map(str, ENTRIES), key=lambda name: (name == Outcome.COMMITTED, name))


def _rules() -> list[str]:
    return sorted({rule.name for rule in RULES} - set(map(str, ENTRIES)))


def index() -> list[str]:
    """A line for each entry under two headings: its name, and what happened in a sentence."""
    causes = {rule.name: rule.cause for rule in RULES} | {name: found.what for name, found in ENTRIES.items()}
    width = max(map(len, causes))
    lines = {
        name: textwrap.fill(f"{name:<{width}}  {_first_sentence(cause)}", _WIDTH, subsequent_indent=" " * (width + 2))
        for name, cause in causes.items()
    }
    outcomes, rules = ([lines[name] for name in found] for found in (_outcomes(), _rules()))
    return ["What becomes of an attempt", *outcomes, "", "Faults that are known by name", *rules]


def explain(name: str) -> str:
    """The entry, in lines that fit a terminal. Raises Halt (2) for a name that is none, with the nearest."""
    wanted = name.strip().lower()
    for rule in RULES:
        if rule.name == wanted:
            return _of_rule(rule)
    outcome = wanted.replace("-", "_")
    if outcome not in ENTRIES:
        raise Halt(
            ExitCode.USAGE,
            f"the handbook has no entry {name}; {did_you_mean(wanted, names())}",
            remedy="`chunkvisor explain` without a name lists them all",
        )
    found = ENTRIES[outcome]
    text = "\n\n".join([outcome, _wrapped(found.what), _part(_BY_ITSELF, found.then), _part(_BY_YOU, found.do)])
    if rules := rules_of(outcome):
        text += "\n\n" + _part("Faults that end so (chunkvisor explain FAULT)", ", ".join(rules))
    return text


def _of_rule(rule: Rule) -> str:
    """Without how it is recognized, which is for those who change the rules."""
    parts = [rule.name, _wrapped(rule.cause), _part("What to do", rule.remedy)]
    last = last_remedy(Verdict(rule.outcome, "", rule.remedy, rule.name, rule.exit_code))
    if last != rule.remedy:
        parts.append(_part("If the run has ended with it", last))
    if rule.name in OF_GPUS:
        parts.append(_wrapped(_ON_CPU))
    if str(rule.outcome) != rule.name:
        parts.append(
            _wrapped(f"In the lines of the run it is called {rule.outcome}: chunkvisor explain {rule.outcome}")
        )
    return "\n\n".join(parts)


def _part(head: str, text: str) -> str:
    return f"{head}\n{_wrapped(text, '  ')}"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[a-z0-9)`])\. ", text, maxsplit=1)[0].rstrip(".")


def rules_of(outcome: str) -> list[str]:
    """Names of the rules by which the outcome is recognised, in the order in which they are tried."""
    return [rule.name for rule in RULES if rule.outcome == outcome]


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
