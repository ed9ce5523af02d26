"""docs/reference/failures.md: the outcomes of the handbook."""

from chunkvisor.messages import ENTRIES


def outcomes() -> str:
    """What each outcome means, what the run does, what to do."""
    parts = []
    for name, found in ENTRIES.items():
        parts += [
            f"### {name}",
            "",
            found.what,
            "",
            f"- **The run:** {found.then}",
            f"- **You:** {found.do}",
        ]
        parts.append("")
    return "\n".join(parts)
