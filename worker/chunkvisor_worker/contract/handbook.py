"""Writes docs/failures.md from the tables: `python -m chunkvisor_worker.contract.handbook > docs/failures.md`.

It never says what the tables do not: only the introduction is written by hand.
"""

import re
import sys
from collections.abc import Iterator

from chunkvisor_worker.contract.rule import Evidence, Rule
from chunkvisor_worker.contract.rules import FAMILIES, RULES

_INTRODUCTION = """\
<!-- Written by `python -m chunkvisor_worker.contract.handbook > docs/failures.md`; edit the tables, not this file. -->

# Failures

One entry for each fault that chunkvisor knows, under the name that `status`, `report` and the last lines of a run
show. [Exit codes](exit-codes.md) says what the codes mean.

## How a fault is recognised

A worker that fails leaves `fault.json`: the chain of exceptions with classes, numbers and messages, and the phase it
was in. The rules below are tried in the order of this page, and the first that any exception of the chain falls under
wins. Numbers (CUDA error codes, errno, HTTP status) decide where an exception bears one, since texts differ between
releases; of a message only the first 16 KiB count, without the advice that torch appends and the lines of the driver.
A worker that left no record is judged by the end of its log and by its return code.

The same text can mean different things in different phases. Out of memory in a batch calls for a smaller batch;
before the first batch it means that something else fills the GPU, or that the model is too large, and a smaller batch
cannot help.

SIGKILL (return code -9) has no entry: the kernel's out-of-memory killer, chunkvisor itself and a person all leave the
same trace, which is none. chunkvisor reads the out-of-memory counter of the cgroup before and after.

## Folklore, and what is true

- **`PYTORCH_NO_NVML` changes nothing.** Nothing in torch 2.14 reads it, nor do the core libraries of 2.9, 2.13 and
  2.15; it lives in people's scripts only. The same goes for `C10_DISABLE_NVML`, `CUDA_DISABLE_NVML` and
  `C10_CUDA_USE_NVML` in 2.14.
- **The NVML assertion of `CUDACachingAllocator.cpp` is an out-of-memory in disguise.** Up to torch 2.13 the allocator
  asks NVML for the list of processes while it composes its out-of-memory message, after all its retries, and asserts
  where NVML is broken. The remedy is a smaller batch; mending the driver only mends the message. From 2.14 on it is a
  warning, followed by the ordinary error ([`nvml-assert-allocator`](#nvml-assert-allocator)).
- **The NVML assertion of `PeerToPeerAccess.cpp` is not.** It comes from `expandable_segments:True`, at the first
  mapping, however much memory is free. `TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=0` avoids it. The option that torch itself
  recommends, `expandable_segments_handle_type:posix_fd`, torch 2.14 refuses as unknown
  ([`nvml-assert-expandable-segments`](#nvml-assert-expandable-segments)).
- **`torch.cuda.is_available()` does not tell why not.** With most driver faults it is False with a warning, and
  sentence-transformers then quietly takes the CPU; so chunkvisor always names the device.
- **`PYTORCH_NVML_BASED_CUDA_CHECK` is about counting devices** without initialising CUDA, and has no part in memory
  errors.
- **"We couldn't connect to huggingface.co" is often not about the connection.** transformers says so for a missing
  permission, a rate limit and a model missing from the cache in offline mode alike; the cause is further down the
  chain.

## How far it is confirmed

Each entry says how far its signs are confirmed. Only what was seen on a card is a GPU's word. On the null GPU, torch's
CUDA build runs over a runtime without a device: its host code and its errors are genuine, kernels and times are not.
A stub that returned a code shows what torch makes of it, and no more.

{evidence}

Open in particular: that the CUDA context stays sound after a caught NVML assertion, the exact output of a device-side
assertion on standard error, and the messages of other frameworks than torch. The texts of all CUDA codes are
libcudart's own (13.0.96), and a test holds the rules against them.
"""


def handbook() -> str:
    """The page, as Markdown."""
    evidence = "\n".join(
        f"- {kind}: {sum(rule.evidence is kind for rule in RULES)} of {len(RULES)}" for kind in Evidence
    )
    parts = [_INTRODUCTION.format(evidence=evidence)]
    for family, rules in FAMILIES.items():
        parts.append(f"## {family}\n")
        parts.extend(entry(rule) for rule in rules)
    return "\n".join(parts)


def entry(rule: Rule) -> str:
    """What the page says about one fault."""
    facts = [f"Outcome `{rule.outcome}`"]
    if rule.exit_code is not None:
        facts.append(f"exit code {rule.exit_code} if it ends the run")
    if rule.exit_code_alone is not None:
        facts.append(
            f"exit code {rule.exit_code_alone}, at once, where nobody else is on the GPU: the model is too large"
        )
    facts += _means(rule)
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
        f"- confirmed so far: {', '.join(filter(None, (rule.evidence, rule.seen)))}",
    ]
    return "\n".join(lines) + "\n"


def _means(rule: Rule) -> Iterator[str]:
    if rule.smaller_batch_helps:
        yield "a smaller batch helps"
    if rule.fresh_process_helps:
        yield "a new process can succeed"
    if rule.row_can_cause:
        yield "a row of the input can be the cause"


def _signs(rule: Rule) -> Iterator[str]:
    """How it is recognised, a line for each alternative."""
    for sign in rule.signs:
        numbers = (("CUDA error", sign.codes), ("errno", sign.errnos), ("HTTP status", sign.http_statuses))
        evidence = [f"{label} {', '.join(map(str, values))}" for label, values in numbers if values]
        if sign.pattern is not None:
            evidence.append(f"text {_code(sign.pattern)}")
        classes = "any exception" if not sign.classes else " or ".join(f"`{_short(name)}`" for name in sign.classes)
        yield f"{classes}: {'; or '.join(evidence)}" if evidence else classes
    if rule.log is not None:
        yield f"in the log of a worker without a record: {_code(rule.log)}"
    if rule.returncodes:
        yield "return code of a worker without a record: " + ", ".join(map(str, map(int, rule.returncodes)))


def _short(name: str) -> str:
    return name.removeprefix("builtins.")


def _code(pattern: re.Pattern[str]) -> str:
    """A regular expression as inline code; double fences, since a pattern can hold a backtick."""
    fence = "``" if "`" in pattern.pattern else "`"
    return f"{fence}{pattern.pattern}{fence}"


if __name__ == "__main__":
    sys.stdout.write(handbook())
