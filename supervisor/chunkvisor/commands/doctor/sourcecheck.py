"""Findings on the config's sources: whether they are there and have what the outputs ask of them. Pure."""

from collections.abc import Iterator

from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.readings import Readings


def check_sources(readings: Readings) -> Iterator[Finding]:
    """A finding `source` for each output, by its first rows."""
    for source in readings.job.sources if readings.job is not None else ():
        if source.problem is None:
            yield Finding("source", State.OK, f"{source.output}: the first rows can be read")
            if source.note:
                yield Finding(
                    "source", State.WARNING, f"{source.output}: {source.note}", "correct the template", Blame.CONFIG
                )
        else:
            what, mend = source.problem
            yield Finding("source", State.FAULT, f"{source.output}: {what}", mend, Blame.CONFIG)
