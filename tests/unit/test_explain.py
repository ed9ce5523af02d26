"""`chunkvisor explain`: an entry for whatever a failed run can name."""

import pytest

from chunkvisor.commands.explain import explain, index, names
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.words import ENTRIES, QUARANTINE
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rules import RULES


def test_every_outcome_and_rule_has_an_entry() -> None:
    """Whatever `see:` can name, `explain` prints, in lines that fit a terminal but for one long word."""
    assert set(ENTRIES) == {*map(str, Outcome), QUARANTINE}
    assert set(names()) == {*map(str, Outcome), QUARANTINE, *(rule.name for rule in RULES)}
    assert len(names()) == len(set(names()))
    for name in names():
        lines = explain(name).splitlines()
        assert lines[0] == name
        assert len(lines) > 3
        assert all(len(line) <= 96 or len(line.split()) <= 3 for line in lines), name


def test_the_list_says_what_each_is() -> None:
    """Without a name each entry has its own line, with what happened, in lines that fit a terminal."""
    lines = index()
    assert [line.split()[0] for line in lines if line and not line[0].isupper()] == names()
    assert all(len(part) <= 96 for line in lines for part in line.splitlines())
    assert "gpu_oom" + " " * 26 + "The GPU ran out of memory" in lines


def test_an_outcome_names_its_rules() -> None:
    """From the outcome one comes to the faults that lead to it."""
    text = explain("gpu_oom")
    assert "half of it" in text
    assert "nvml-assert-allocator" in text
    assert explain("GPU-OOM") == text


def test_a_name_that_is_none() -> None:
    """The nearest one is named, with code 2."""
    with pytest.raises(Halt) as caught:
        explain("gpu-oomm")
    assert caught.value.code is ExitCode.USAGE
    assert "did you mean gpu_oom?" in str(caught.value)
