"""`chunkvisor plan` as a person runs it: reads, counts, says; changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.commands.plan import plan_lines
from harness import Workplace
from late import needs
from modelkinds import decoder
from scripted_workplace import ScriptedWorkplace

TEXTS = ["one", "two two", None, "one", "a longer text " * 40, ""]


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below, with size and time of change."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def plan_of(place: Workplace, *arguments: str, **environment: str) -> dict[str, Any]:
    """What `plan --json` says."""
    ended = place.does("plan", "--json", *arguments, env=environment)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_before_the_first_run(workplace: Workplace, tmp_path: Path) -> None:
    """Before any run, rows, texts and chunks are known; nothing is left behind, and no workdir is
    made.
    """
    workplace.prepare(TEXTS, "good:make", chunk__size=2)
    (tmp_path / "tmp").mkdir()
    found = plan_of(workplace, TMPDIR=str(tmp_path / "tmp"))
    out = found["outputs"]["out"]
    assert (out["rows"], out["distinct_texts"], out["chunks"], out["chunks_done"]) == (6, 4, 2, 0)
    assert out["rows_empty"] == 2
    assert out["duplicate_share"] == pytest.approx(1 / 3)
    assert (out["lengths"]["count"], out["dimension"]) == (0, None)
    assert (found["time_s"], found["peak_disk_bytes"], found["host_memory_bytes"]) == (
        None,
        None,
        None,
    )
    assert "only the plug-in encoder itself knows its tokens" in found["notes"][0]
    said = workplace.does("plan").stdout
    assert said.startswith(
        "out: 6 rows, 4 distinct texts, 2 chunks\ntime: unknown until a run has a rate"
    )
    assert "  empty    2 rows, with one vector for all; `where` leaves them out\n" in said
    assert "6 rows; the dimension is unknown until a run has made a chunk\n" in said
    assert not workplace.workdir.exists()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_beside_a_finished_run(workplace: Workplace) -> None:
    """After a run its table, dimension and rate are made use of; the workdir is not touched."""
    workplace.prepare(TEXTS, "good:make", chunk__size=2)
    workplace.ends(0)
    before = tree(workplace.workdir)
    ended = workplace.does("plan")
    assert "nothing is left to be done" in ended.stdout
    assert "reading the source" not in ended.stderr
    found = plan_of(workplace)
    assert (found["outputs"]["out"]["dimension"], found["peak_disk_bytes"], found["time_s"]) == (
        8,
        0,
        0.0,
    )
    assert found["texts_per_s"] > 0
    assert found["final_disk_bytes"] == workplace.final.stat().st_size
    assert tree(workplace.workdir) == before


def test_in_the_middle(workplace: Workplace) -> None:
    """With some chunks done, only the rest counts; a change of the chunk size has no effect any
    more.
    """
    workplace.write_source([f"text {number}" for number in range(10)])
    kwargs = {"plan": {"out/1": "segfault@encode"}, "times": None}
    workplace.write_config(
        "misbehaving:make", model__kwargs=kwargs, chunk__size=4, recovery__on_bad_row="fail"
    )
    workplace.ends(78)
    found = plan_of(workplace, "--set", "chunk.size=1")
    out = found["outputs"]["out"]
    left = out["texts_left"]
    assert (out["chunks"], out["chunk_size"]) == (3, 4)
    assert (out["chunks_done"], left) in (
        (1, 6),
        (2, 4),
    )  # the last chunk may be done before the fault ends the run
    assert found["time_s"] == pytest.approx(left / found["texts_per_s"])
    assert found["peak_disk_bytes"] == 4 * 8 * (left + 10)


def test_another_source_than_before(workplace: Workplace) -> None:
    """Where the source has changed since, the plan is of the new one, and says that a run wants
    --update.
    """
    workplace.prepare(["a", "b"], "good:make")
    workplace.ends(0)
    workplace.write_source(["a", "b", "c"])
    found = plan_of(workplace)
    assert (found["outputs"]["out"]["rows"], found["outputs"]["out"]["chunks_done"]) == (3, 0)
    assert any("`run --update` takes over" in note for note in found["notes"])
    limited = plan_of(workplace, "--max-rows", "2", "--set", "chunk.size=1")
    assert not any("--update" in note for note in limited["notes"])  # it is of no run here
    assert limited["outputs"]["out"]["rows"] == 2


@needs("huggingface_hub")
def test_a_tokenizer_that_cannot_be_had(workplace: Workplace) -> None:
    """Where tokens cannot be counted, the plan says why, and tells the rest."""
    workplace.prepare(TEXTS, "sentence-transformers", model__name="no-such-owner/no-such-model")
    found = plan_of(workplace, HF_HUB_OFFLINE="1", HF_HOME=str(workplace.folder / "hub"))
    assert found["outputs"]["out"]["distinct_texts"] == 4
    notes = "\n".join(found["notes"])
    assert "tokens could not be counted: The model is not" in notes
    assert "variable. Run `HF_HUB_OFFLINE=0 hf download no-such-owner/no-such-model`" in notes


@needs("tokenizers")
@pytest.mark.model
def test_blanks_at_the_end(workplace: Workplace, tmp_path: Path) -> None:
    """Where the last token makes the vector, the plan notes how many texts end with a blank."""
    workplace.prepare(
        ["a", "b ", "c\t"], "sentence-transformers", model__name=str(decoder("Qwen2")(tmp_path))
    )
    assert any("at the end of 2 texts" in note for note in plan_of(workplace)["notes"])


@pytest.mark.model
def test_with_a_real_tokenizer(workplace: Workplace, minilm_path: Path) -> None:
    """With a model folder, tokens, truncation, padding, dimension, disk and memory are known before
    any run.
    """
    workplace.prepare(
        [*(f"commit number {number}" for number in range(50)), "word " * 999],
        "sentence-transformers",
        model__name=str(minilm_path),
        workers__standby=1,
        chunk__size=1000,
    )
    found = plan_of(workplace)
    out = found["outputs"]["out"]
    assert (out["length_unit"], out["max_length"], out["dimension"]) == ("tokens", 256, 384)
    assert (out["lengths"]["median"], out["lengths"]["longest"], out["lengths"]["truncated"]) == (
        5,
        1001,
        1,
    )
    assert 0 <= out["padding_share"] < 1
    assert out["batches"] == 2
    assert found["weights_bytes"] == (minilm_path / "model.safetensors").stat().st_size
    assert found["host_memory_bytes"] == 2 * (found["weights_bytes"] + (1 << 30))
    assert found["final_disk_bytes"] == 51 * 384 * 4 + 128
    assert found["peak_disk_bytes"] > 2 * 51 * 384 * 4
    assert found["notes"] == []
    lines = list(plan_lines(found))  # a second plan would load the tokenizer again
    assert "  2.0 % of the texts are longer than 256 and are cut: 59.6 % of all tokens" in lines
    bars = [line[21:60].strip() for line in lines if " - " in line]
    assert (len(max(bars)), bars[-1]) == (39, "#"), "one text shows as well"


def test_an_automatic_size_of_chunks_is_fixed_by_the_first_run(tmp_path: Path) -> None:
    """`plan` proposes with the reason, the first run takes that size, and no later rate changes it."""
    texts = [f"t{number}" for number in range(520)]
    place = ScriptedWorkplace.make(tmp_path, texts, chunk__size="auto", chunk__keep=True)
    figures = plan_of(place)["outputs"]["out"]
    assert (figures["chunk_size"], figures["chunks"]) == (500, 2)
    assert "2 of 500 texts; usual for cpu" in place.does("plan").stdout
    place.lay("t510", "damage!")
    first = place.ends(75, "--set", "recovery.attempts=1")
    assert "out: chunks of 500 texts, usual for cpu" in first.stderr
    place.lift("t510")
    again = place.gives(texts)
    assert "chunks of" not in again.stderr.replace("chunks of up to 500, 1 done", "")
    figures = plan_of(place)["outputs"]["out"]
    assert (figures["chunk_size"], figures["chunk_size_reason"]) == (500, None)
