"""What failed, in words, with what can be done and the end of a log.

Whatever the journal says, no file outside the workdir is read, and no token or control character gets into the page.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chunkvisor.decide.remedies import last_remedy
from chunkvisor.decide.verdict import Verdict, without_cause
from chunkvisor.events.attempt import FailureEvent
from chunkvisor.observe.report.history import Failure, History
from chunkvisor.store.attemptlogs import read_tail
from chunkvisor.store.layout import Layout
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.masking import masked
from chunkvisor_worker.contract.messages import Cause, Fault
from chunkvisor_worker.contract.rule import Rule
from chunkvisor_worker.contract.rules import RULES
from chunkvisor_worker.contract.wire import read_message

_LINES, _CHARS = 14, 180
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Terminal sequences, control characters, and marks that turn the direction of writing."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Failed attempts of one kind."""

    failure: Failure
    rule: Rule | None
    """That knows the fault."""
    reason: str
    remedy: str
    log: str
    """Path of the last one's log, relative to the workdir; empty where it is gone."""
    excerpt: tuple[str, ...]


def troubles(history: History, layout: Layout, outputs: Iterable[str], *, ended: bool) -> Iterator[Trouble]:
    """The failures, most frequent first; `outputs` are those that the workdir has.

    `ended`: the run has halted, so that what a rule says of what it does next is of no use.
    """
    known = set(outputs)
    rules = {rule.name: rule for rule in RULES}
    on_cpu = bool(history.runs) and history.runs[-1].device == "cpu"
    for failure in sorted(history.failures.values(), key=lambda each: -each.count):
        last, rule = failure.last, rules.get(failure.last.rule)
        verdict = _verdict(last, rule, on_cpu=on_cpu)
        files = layout.output(last.output).attempt(last.chunk, last.attempt)
        there = last.output in known and files.folder.is_dir()
        yield Trouble(
            failure,
            None if verdict is not None and verdict.gpu_error_on_cpu else rule,
            without_cause(last.reason, last.rule),
            rule.remedy if rule and not ended else last_remedy(verdict) if verdict else "Read the log.",
            str(files.log.relative_to(layout.workdir)) if there else "",
            tuple(_excerpt(files)) if there else (),
        )


def clean(value: object, chars: int = 1000) -> str:
    """Words of a log or a message as a page may show them: no tokens, no control characters, not endless."""
    text = _CONTROLS.sub("", masked(str(value)[: 16 * chars]).encode(errors="replace").decode())
    return text if len(text) <= chars else f"{text[:chars]} …"


def _verdict(last: FailureEvent, rule: Rule | None, *, on_cpu: bool) -> Verdict | None:
    """As far as the journal has it; None where the outcome is of another version."""
    if last.outcome not in list(Outcome):
        return None
    remedy, code = (rule.remedy, rule.exit_code) if rule else ("", None)
    return Verdict(Outcome(last.outcome), last.reason, remedy, rule.name if rule else "", code, on_cpu=on_cpu)


def _excerpt(files: AttemptFiles) -> list[str]:
    """The fault in a line, and the end of the log; where the log is empty, of the traceback."""
    fault = read_message(Fault, files.fault)
    lines = _last_lines(read_tail(files.log))
    if fault is None:
        return lines
    lines = lines or _last_lines(fault.traceback)
    cause = fault.chain[0] if fault.chain else Cause("", (), "")
    if any(line.startswith(f"{cause.name}:") for line in lines):  # the traceback ends with the message
        return [f"in phase {fault.phase}:", *lines]
    return [clean(" ".join(f"in phase {fault.phase}: {cause.name}: {cause.message}".split()), 2 * _CHARS), *lines]


def _last_lines(text: str) -> list[str]:
    lines = [clean(line.rstrip(), _CHARS) for line in text.splitlines()[-4 * _LINES :]]
    return [line for line in lines if line.strip()][-_LINES:]
