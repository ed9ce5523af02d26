"""Names in a workdir that are the state's; in a module of its own, since importing this costs nothing."""

RESERVED_NAMES = frozenset(
    {
        *("lock", "events.jsonl", "model.json", "lessons.json", "report.html", "fetch", "template", "ray"),
        *("combined", "invocations", "outputs"),
    }
)
"""What else is in a workdir (see `store.layout`): no final file or manifest may have such a name."""
