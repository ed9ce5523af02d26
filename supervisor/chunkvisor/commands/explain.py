"""Entries of the handbook, as text for a terminal.

An entry explains an outcome (`gpu_oom`), or a rule that recognizes an error (`nvml-assert`).
"""

import builtins
import itertools
import re
import textwrap
from collections.abc import Iterator

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.judge import Verdict
from chunkvisor.messages import ENTRIES, last_remedy
from chunkvisor.units import did_you_mean
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Cause, Fault, Phase
from chunkvisor_worker.contract.rules import OF_GPUS, RULES, Rule
from chunkvisor_worker.contract.taxonomy import diagnose, diagnose_log

_WIDTH = 96
_PHASES = (Phase.FORWARD, Phase.MODEL_LOAD, Phase.CUDA_INIT)
_ON_CPU = (
    "In a run on the CPU (`device: cpu`) no GPU is at fault: the encoder raised this error; look "
    "at its code."
)


def entry_names() -> list[str]:
    """Return the names of all entries: outcomes, the one of success last, then rules."""
    outcomes = sorted(map(str, ENTRIES), key=lambda name: (name == Outcome.COMMITTED, name))
    return [*outcomes, *sorted({rule.name for rule in RULES}.difference(outcomes))]


def index_lines() -> list[str]:
    """Return a line for each entry: its name, and what happened in a sentence."""
    causes = {rule.name: rule.cause for rule in RULES}
    causes |= {name: found.what for name, found in ENTRIES.items()}
    width = max(map(len, causes))
    indent = " ".ljust(width + 2)
    lines = ["What becomes of an attempt"]
    for number, name in enumerate(entry_names()):
        if number == len(ENTRIES):
            lines += ["", "Faults that are known by name"]
        # The first sentence.
        sentence = re.split(r"(?<=[a-z0-9)`])\. ", causes[name], maxsplit=1)[0].rstrip(".")
        line = f"{name:<{width}}  {sentence}"
        lines.append(textwrap.fill(line, _WIDTH, subsequent_indent=indent))
    return lines


def explain(words: str) -> str:
    """Return the entry of that name, or of the rule that recognizes that error message or log.

    Raises Halt (2) if there is none, with the nearest name.
    """
    wanted = words.strip().lower()
    if re.search(r"\s", wanted):
        wanted = _recognized(words)
    elif wanted.replace("-", "_") not in entry_names():  # a part of a name, such as nvml
        wanted = next((name for name in entry_names() if wanted in name), wanted)
    rule = next((each for each in RULES if each.name == wanted), None)
    if rule is None:
        wanted = wanted.replace("-", "_")
        if wanted not in ENTRIES:
            raise Halt(
                ExitCode.USAGE,
                f"the handbook has no entry {words}; {did_you_mean(wanted, entry_names())}",
                "`chunkvisor explain` without a name lists them all.",
            )
    blocks = [wanted]
    for head, text in _of_rule(rule) if rule else _of_outcome(wanted):
        width = _WIDTH - 2 if head else _WIDTH
        body = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
        blocks.append(f"{head}\n{textwrap.indent(body, '  ')}" if head else body)
    return "\n\n".join(blocks)


def _of_rule(rule: Rule) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) of each paragraph; the heading may be empty."""
    yield "", rule.cause
    yield "What the run does automatically", ENTRIES[str(rule.outcome)].then
    yield "What to do", rule.remedy
    last = last_remedy(Verdict(rule.outcome, "", rule.remedy, rule.name, rule.exit_code))
    if last != rule.remedy:
        yield "If the run has ended with it", last
    if rule.name in OF_GPUS:
        yield "", _ON_CPU
    if str(rule.outcome) != rule.name:
        yield "", f"The lines of a run call it {rule.outcome}."


def _of_outcome(name: str) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) of each paragraph, as `_of_rule`."""
    found = ENTRIES[name]
    yield "", found.what
    yield "What the run does automatically", found.then
    yield "What you can do", found.do
    rules = [each.name for each in RULES if each.outcome == name]
    if rules:
        yield "Faults that end so (chunkvisor explain FAULT)", ", ".join(rules)


def _recognized(text: str) -> str:
    """Return the name of the rule that recognizes an error message, or the last 500 lines of a log.

    A line such as `torch.AcceleratorError: CUDA error: …` becomes the cause that a worker would
    have reported, the last line first. Raises Halt (2) if no rule recognizes one.
    """
    lines = text.strip().splitlines()[-500:]
    causes = []
    for line in reversed(lines):
        raised = re.search(r"(?:^|\s)([\w.]*(?:Error|Exception)): (.*)", line)
        if raised is None:
            continue
        name = raised[1] if "." in raised[1] else f"builtins.{raised[1]}"
        number = re.search(r"\[Errno (\d+)\]", line)
        kinds = getattr(builtins, raised[1], RuntimeError).__mro__
        bases = tuple(f"builtins.{kind.__name__}" for kind in kinds)
        causes.append(Cause(name, bases, raised[2], errno=int(number[1]) if number else None))
    if len(lines) == 1:
        causes.append(Cause("builtins.RuntimeError", (), lines[0]))
    for cause, phase in itertools.product(causes, _PHASES):
        rule = diagnose(Fault(phase, (cause,), "")).rule
        if not rule.name.startswith("unknown"):
            return rule.name
    found = diagnose_log(text, 1)
    if found is None:
        raise Halt(
            ExitCode.USAGE,
            "no rule of the handbook knows this message",
            "Give the line with the error itself, or the end of the log: chunkvisor explain - < "
            "worker.log",
        )
    return found.rule.name
