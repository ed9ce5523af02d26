"""docs/reference/failures.md: the outcomes of the handbook, with the names of the rules that lead to each."""

from chunkvisor.commands.explain import rules_of
from chunkvisor.decide.handbook import ENTRIES
from md import code


def outcomes() -> str:
    """What each outcome means, what the run does, what to do."""
    parts = []
    for name, found in ENTRIES.items():
        parts += [f"### {name}", "", found.what, "", f"- **By itself:** {found.then}", f"- **Do:** {found.do}"]
        if rules := ", ".join(code(rule) for rule in rules_of(name)):
            parts.append(f"- Rules: {rules}")
        parts.append("")
    return "\n".join(parts)
