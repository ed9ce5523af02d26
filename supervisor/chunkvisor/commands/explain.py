"""The handbook's entry of an outcome or of a rule, as text for a terminal."""

import re
import textwrap

from chunkvisor.decide.handbook import ENTRIES
from chunkvisor.decide.remedies import last_remedy
from chunkvisor.decide.verdict import OF_GPUS, Verdict
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.units import did_you_mean
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.handbook import entry
from chunkvisor_worker.contract.rules import RULES

_WIDTH = 96
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
            last = last_remedy(Verdict(rule.outcome, "", rule.remedy, rule.name, rule.exit_code))
            ended = "" if last == rule.remedy else f"\n\n{_wrapped(f'If the run has ended with it: {last}')}"
            if rule.name in OF_GPUS:
                ended += f"\n\n{_wrapped(_ON_CPU)}"
            return _plain(entry(rule)) + ended
    outcome = wanted.replace("-", "_")
    if outcome not in ENTRIES:
        raise Halt(
            ExitCode.USAGE,
            f"the handbook has no entry {name}; {did_you_mean(wanted, names())}",
            remedy="`chunkvisor explain` without a name lists them all",
        )
    found = ENTRIES[outcome]
    parts = [outcome, "", _wrapped(found.what), ""]
    parts += [
        "What the run does by itself",
        _wrapped(found.then, "  "),
        "",
        "What you can do",
        _wrapped(found.do, "  "),
    ]
    if rules := rules_of(outcome):
        parts += ["", "Rules with this outcome (chunkvisor explain RULE):", _wrapped(", ".join(rules), "  ")]
    return "\n".join(parts)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[a-z0-9)`])\. ", text, maxsplit=1)[0].rstrip(".")


def rules_of(outcome: str) -> list[str]:
    """Names of the rules by which the outcome is recognised, in the order in which they are tried."""
    return [rule.name for rule in RULES if rule.outcome == outcome]


def _plain(markdown: str) -> str:
    """The entry of a rule without its Markdown."""
    lines = []
    for line in markdown.strip().splitlines():
        text = re.sub(r"\*\*(.+?)\*\*", r"\1", line.removeprefix("### "))
        lines.append(_wrapped(text, "  ") if line.startswith("- ") else _wrapped(text))
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  " * text.startswith("- "),
        break_long_words=False,
        break_on_hyphens=False,
    )
