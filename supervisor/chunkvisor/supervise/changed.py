"""The words that refuse a config of which the vectors would be others than those that are there. Pure."""

from collections.abc import Sequence

from chunkvisor.config.load import Given
from chunkvisor.errors import Halt, config_error

_ELSEWHERE = {
    Given.FILE: "choose another workdir",
    Given.OPTIONS: "name another file by -o (or another --workdir, if you gave one)",
    Given.ARGUMENTS: "choose another workdir",
}
GROWING = "if the source grows, write a config and use `chunkvisor run --update`, which encodes only what is new"
"""What to do instead of `chunkvisor encode`."""


def refuse_changes(output: str, changes: Sequence[str], given: Given, *, serve: bool) -> Halt:
    """The end (78) of a run whose output was begun with other settings, or from another source.

    `changes` has a line for each difference. `serve`: the vectors that are there would serve an update.
    """
    python = given is Given.ARGUMENTS
    begun = "the vectors in this workdir were made" if python else f"output {output} was begun"
    what, undo = f"{begun} with other settings", "undo the change"
    new = "encodes only texts that have no vector yet"
    if of_source := all(change.startswith("source: ") for change in changes):
        what, undo = f"the source of output {output} has changed since it was begun", "restore the source"
        if python:
            what, undo = "the vectors in this workdir were made from other texts", "give the texts of before"
    remedy = f"{undo}, or {_ELSEWHERE[given]}, or discard what is done by adding --from-scratch"
    if serve and given is not Given.OPTIONS:
        remedy = f"add --update, which {new}, or {remedy}"
    elif of_source and given is Given.OPTIONS:
        remedy += f"; {GROWING}"
    return config_error(
        f"{what}:\n" + "\n".join(f"  {change}" for change in changes),
        why="vectors of both would be mixed in one file; nothing has been touched",
        remedy=remedy,
    )
