"""A model's folder: its digest tells what a worker would load, and a change during a run ends it
with nothing mixed.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkvisor
from chunkvisor.engine.modelsource import ModelSource, resolve_local
from chunkvisor.errors import Halt
from chunkvisor.events.journal import read_events
from chunkvisor.show.status import read_status
from chunkvisor.store.layout import Layout
from harness import ENCODERS, STAND_IN, Workplace, finish, halts, kill, path_with, wait_for

POOLING = "1_Pooling/config.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a model's, with its pooling behind a link."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "modules.json").write_text("[{}]")
    (made / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "config.json").write_text('{"mean": true}')
    (made / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    return made


def read(folder: Path) -> ModelSource:
    """The folder as a run finds it."""
    return resolve_local(folder, folder.parent / "cache.json")


def switch(folder: Path) -> None:
    """A link that leads elsewhere."""
    other = folder.parent / "other"
    other.mkdir()
    (other / "config.json").write_text('{"cls_": true}')
    (folder / "1_Pooling").unlink()
    (folder / "1_Pooling").symlink_to(other)


@pytest.mark.parametrize(
    "change",
    [switch, lambda folder: (folder / POOLING).write_text('{"mean": null}')],
    ids=["link", "content"],
)
def test_a_change_is_found(folder: Path, change: Callable[[Path], None]) -> None:
    """A file that is replaced, added, removed or switched, also behind a link, is named, with exit
    code 78; its folder has another revision.
    """
    model = read(folder)
    model.check_unchanged()
    change(folder)
    assert read(folder).revision != model.revision
    with halts(78, "changed during the run") as halt:
        model.check_unchanged()
    assert POOLING in halt.value.why
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(Halt, match="changed during the run"):
        model.check_unchanged()


def test_what_changes_nothing(folder: Path) -> None:
    """Other times, hidden files, compiled code and the same bytes again are no change."""
    model = read(folder)
    os.utime(folder / POOLING, ns=(1, 1))
    (folder / ".lock").touch()
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "code.pyc").touch()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(b"weights")
    model.check_unchanged()


TEXTS = [f"Commit number {number}" for number in range(20)]
"""Two chunks of ten."""


def change_pooling(model: Path) -> str:
    """Take the first token's vector instead of the mean; returns what was there."""
    before = (model / POOLING).read_text()
    (model / POOLING).write_text(json.dumps({"pooling_mode": "cls"}))
    return before


@pytest.fixture
def job(workplace: Workplace, folder: Path) -> Workplace:
    """A run with the folder's model, whose workers wait for us (see tests/standin)."""
    workplace.write_source(TEXTS)
    path = path_with(STAND_IN, ENCODERS)
    workplace.write_config("sentence-transformers", model__name=str(folder), env__PYTHONPATH=path)
    return workplace


def test_nothing_of_a_changed_model_is_committed(job: Workplace, folder: Path) -> None:
    """Pooling edited after the first chunk ends the run with 78; put back, the run completes with
    one model's rows.

    The second chunk's worker may have loaded either: what it left is not adopted.
    """
    hold = job.folder / f"hold-{TEXTS[10]}"
    hold.touch()
    process = job.begin()
    wait_for(lambda: list(job.hidden.glob("outputs/out/0001/chunks/000/*.npy")))
    before = change_pooling(folder)
    hold.unlink()
    ended = finish(process, code=78)
    assert "was changed during the run" in ended.stderr
    assert POOLING in ended.stderr
    assert not job.final.exists()

    assert "model.revision" in job.ends(78).stderr

    (folder / POOLING).write_text(before)
    job.gives(TEXTS)


MODULE = '[{"path": "../base", "type": "sentence_transformers.models.Dense"}]'


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("adapter_config.json", '{"base_model_name_or_path": "BASE"}'),
        ("sentence_bert_config.json", '{"tokenizer_name_or_path": "BASE"}'),
        ("modules.json", MODULE),
    ],
)
def test_what_the_files_name_outside_the_folder_counts(
    job: Workplace, folder: Path, file: str, content: str
) -> None:
    """The base of an adapter, say: another content is another model, between runs and during one."""
    settings = folder.with_name("base") / "config.json"
    settings.parent.mkdir()
    settings.write_text("{}")
    (folder / file).write_text(content.replace("BASE", str(settings.parent)))
    job.ends(0)
    (digest,) = job.manifest()["model"]["outside"].values()
    assert digest.startswith("sha256:")
    job.write_source([*TEXTS, "one more"])
    settings.write_text('{"changed": 1}')
    assert "model.outside" in job.ends(78, "--update").stderr

    def change(event: str, _: dict[str, Any]) -> None:
        if event == "output_opened":
            settings.write_text('{"changed": 2}')

    settings.write_text("{}")
    with pytest.raises(Halt, match="changed during the run"):
        chunkvisor.run(job.config_path, update=True, on_event=change)
    settings.write_text("{}")
    job.ends(0, "--update")


def test_what_is_loaded_while_the_digest_is_taken_counts_if_no_file_has_changed(
    job: Workplace, folder: Path
) -> None:
    """The model loads before its digest is known; a file that changes meanwhile has it loaded once
    more.

    `status --json` has the seconds of each.
    """

    def change(name: str, details: dict[str, Any]) -> None:
        if name == "doing" and "files of the model" in details["doing"]:
            change_pooling(folder)

    chunkvisor.run(job.config_path, set="workers.start=warm", on_event=change)
    assert len(job.named("template_started")) == 2
    chunkvisor.run(job.config_path, set=["workers.start=warm", "workdir=again"])
    told = read_events(Layout(job.folder / "again").events)
    order = [entry.event.name for entry in told]
    assert order.index("template_started") < order.index("doing")
    np.testing.assert_array_equal(job.vectors(), np.load(job.folder / "again" / "out.npy"))
    status, _ = read_status(job.folder / "again")
    assert "reading the files of the model" in status.start_s
    assert {"import", "model_load"} <= set(status.phases_s)


def test_a_killed_run_leaves_nothing_of_a_changed_model(job: Workplace, folder: Path) -> None:
    """Where the run is killed before it notices, and the folder is put back, a finished attempt is
    not adopted.
    """
    holds = [job.folder / f"hold-{what}" for what in ("load", TEXTS[0])]
    for hold in holds:
        hold.touch()
    process = job.begin()
    attempt = wait_for(
        lambda: next(job.hidden.glob("outputs/out/0001/attempts/*/*/spec.json"), None)
    ).parent
    before = change_pooling(folder)
    holds[0].unlink()
    wait_for(lambda: any(event["event"] == "go" for event in job.events()))
    process.send_signal(signal.SIGSTOP)
    holds[1].unlink()
    wait_for((attempt / "result.json").exists)
    kill(process)
    (folder / POOLING).write_text(before)
    job.gives(TEXTS)
