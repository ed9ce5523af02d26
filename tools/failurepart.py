"""docs/reference/failures.md and failure-rules.md, from the handbook and the rules by which faults are recognised."""

from chunkvisor.commands.explain import rules_of
from chunkvisor.decide.handbook import ENTRIES
from chunkvisor_worker.contract.handbook import entry
from chunkvisor_worker.contract.rule import Evidence
from chunkvisor_worker.contract.rules import FAMILIES, RULES

RULES_PAGE = "failure-rules.md"


def outcomes() -> str:
    """What each outcome means, what the run does, what to do."""
    parts = []
    for name, found in ENTRIES.items():
        parts += [f"### {name}", "", found.what, "", f"- **By itself:** {found.then}", f"- **Do:** {found.do}"]
        if rules := ", ".join(f"[`{rule}`]({RULES_PAGE}#{rule})" for rule in rules_of(name)):
            parts.append(f"- Rules: {rules}")
        parts.append("")
    return "\n".join(parts)


def marks() -> str:
    """How many rules have which mark."""
    return "\n".join(f"- {kind}: {sum(rule.evidence is kind for rule in RULES)} of {len(RULES)}" for kind in Evidence)


def rules() -> str:
    """All rules by family, in the order in which they are tried."""
    parts = []
    for family, members in FAMILIES.items():
        parts += [f"## {family}\n", "\n".join(entry(rule) for rule in members)]
    return "\n".join(parts)
