"""`chunkvisor explain`: an entry for whatever a failed run can name."""

import pytest

from chunkvisor.commands.explain import entry_names, explain, index_lines
from chunkvisor.messages import ENTRIES, QUARANTINE
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rules import RULES
from harness import halts


def test_every_outcome_and_rule_has_an_entry() -> None:
    """Whatever `see:` can name, `explain` prints, in lines that fit a terminal but for one long
    word.
    """
    assert set(ENTRIES) == {*map(str, Outcome), QUARANTINE}
    assert set(entry_names()) == {*map(str, Outcome), QUARANTINE, *(rule.name for rule in RULES)}
    assert len(entry_names()) == len(set(entry_names()))
    for name in entry_names():
        lines = explain(name).splitlines()
        assert lines[0] == name
        assert len(lines) > 3
        assert all(len(line) <= 96 or len(line.split()) <= 3 for line in lines), name


def test_the_list_says_what_each_is() -> None:
    """Without a name each entry has its own line, with what happened, in lines that fit a terminal."""
    lines = index_lines()
    assert [line.split()[0] for line in lines if line and not line[0].isupper()] == entry_names()
    assert all(len(part) <= 96 for line in lines for part in line.splitlines())
    assert "gpu_oom" + " " * 26 + "The GPU ran out of memory" in lines


def test_an_outcome_names_its_rules() -> None:
    """From the outcome one comes to the faults that lead to it."""
    text = explain("gpu_oom")
    assert "half the batch" in text
    assert "nvml-assert-allocator" in text
    assert explain("GPU-OOM") == text
    assert explain("nvml") == explain("nvml-assert-allocator")


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (
            'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":838',
            "nvml-assert-allocator",
        ),
        (
            "Traceback:\n  File x\nRuntimeError: CUDA error: device-side assert triggered\nCUDA ke",
            "device-side-assert",
        ),
        (
            "terminate called\n  what():  CUDA error: uncorrectable ECC error encountered\n",
            "gpu-ecc-error",
        ),
        ("ModuleNotFoundError: No module named 'x'", "import-failed"),
    ],
)
def test_a_pasted_message_is_recognized(words: str, rule: str) -> None:
    """A message or a log goes through the rules of a run, and the entry of its rule is printed."""
    assert explain(words).startswith(f"{rule}\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [("gpu-oomm", "did you mean gpu_oom?"), ("all is well", "no rule of the handbook knows this")],
)
def test_what_has_no_entry(words: str, told: str) -> None:
    """The nearest name is named, or what to give instead, with code 2."""
    with halts(2) as caught:
        explain(words)
    assert told in str(caught.value)
