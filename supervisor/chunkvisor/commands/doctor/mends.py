"""What to do about a fault before a run.

Pure. A rule's remedy also says what a run does by itself (`the chunk is tried again`), which helps nobody who has not
begun one.
"""

import re

_OF_A_RUN = re.compile(
    r"chunk is tried again|run goes on|(?:next|new) worker (?:runs|tries)|bisected|fault\.json|failed tries",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"^if it (?:returns|comes back), ", re.IGNORECASE)


def before_a_run(remedy: str) -> str:
    """The clauses of a rule's remedy that a person can act on now; empty where there are none."""
    clauses = (clause.strip() for clause in re.split(r";\s|(?<=[a-z)`])\.(?:\s|$)", remedy))
    return "; ".join(_CONDITION.sub("", clause) for clause in clauses if clause and not _OF_A_RUN.search(clause))
