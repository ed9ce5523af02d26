"""The handbook's entry of a rule, as Markdown: for `chunkvisor explain` and docs/reference/failure-rules.md."""

from collections.abc import Iterator

from chunkvisor_worker.contract.rule import NEW_PROCESS, ROW, SMALLER_BATCH, Rule

_HINTS = {
    SMALLER_BATCH: "a smaller batch helps",
    NEW_PROCESS: "a new process can succeed",
    ROW: "a row of the input can be the cause",
}


def entry(rule: Rule) -> str:
    """What the page says about one fault."""
    facts = [f"Outcome `{rule.outcome}`"]
    if rule.exit_code is not None:
        facts.append(f"exit code {rule.exit_code} if it ends the run")
    if rule.exit_code_alone is not None:
        facts.append(
            f"exit code {rule.exit_code_alone}, at once, where nobody else is on the GPU: the model is too large"
        )
    facts += [words for hint, words in _HINTS.items() if hint in rule.hints]
    if rule.phases:
        facts.append("in the phases " + ", ".join(f"`{phase}`" for phase in rule.phases))
    lines = [
        f"### {rule.name}",
        "",
        f"{rule.cause} **Do:** {rule.remedy}",
        "",
        "; ".join(facts) + ".",
        "",
        *(f"- {sign}" for sign in _signs(rule)),
        f"- confirmed so far: {rule.evidence}",
    ]
    return "\n".join(lines) + "\n"


def _signs(rule: Rule) -> Iterator[str]:
    """How it is recognised, a line for each alternative."""
    for sign in rule.signs:
        numbers = (("CUDA error", sign.codes), ("errno", sign.errnos), ("HTTP status", sign.http_statuses))
        evidence = [f"{label} {', '.join(map(str, values))}" for label, values in numbers if values]
        if sign.pattern is not None:
            evidence.append(f"text {_code(sign.pattern)}")
        classes = " or ".join(f"`{name.removeprefix('builtins.')}`" for name in sign.classes) or "any exception"
        yield f"{classes}: {'; or '.join(evidence)}" if evidence else classes
    if rule.log is not None:
        yield f"in the log of a worker without a record: {_code(rule.log)}"
    if rule.returncodes:
        yield "return code of a worker without a record: " + ", ".join(map(str, map(int, rule.returncodes)))


def _code(pattern: str) -> str:
    """A regular expression as inline code; double fences, since a pattern can hold a backtick."""
    fence = "``" if "`" in pattern else "`"
    return f"{fence}{pattern}{fence}"
