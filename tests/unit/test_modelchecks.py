"""What a model's files show is held against the config before a worker is started for it."""

import json
from pathlib import Path
from typing import Any

import pytest

import chunkvisor
from chunkvisor.config.load import from_values
from chunkvisor.engine.modelchecks import refuse_wrong_model

SAVED = {"prompts": {"passage": "passage: "}}


@pytest.mark.parametrize(
    ("name", "files", "model", "known"),
    [
        ("passage", SAVED, {}, True),
        ("query", SAVED, {}, True),
        ("pasage", SAVED, {}, False),
        ("own", SAVED, {"kwargs": {"prompts": {"own": "o: "}}}, True),
        ("own", {}, {}, False),
        ("own", {"prompts": {}}, {}, False),
        ("own", None, {}, True),
        ("own", [], {}, True),
        ("own", SAVED, {"trust_remote_code": True}, True),
        ("own", {"prompts": ["own"]}, {}, True),
        (None, SAVED, {}, True),
    ],
)
def test_names(tmp_path: Path, name: str | None, files: Any, model: dict[str, Any], known: bool) -> None:
    """A name is refused where the files list the prompts and it is not among them; else the worker decides."""
    (tmp_path / "modules.json").write_text("[]")
    if files is not None:
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(files))
    values = {
        "workdir": "w",
        "model": {"name": "m", **model},
        "outputs": {"out": {"source": "s.txt", "encode": {"prompt_name": name}}},
    }
    config = from_values(values, tmp_path)
    refuse_wrong_model(config, None)  # of a plug-in
    if known:
        refuse_wrong_model(config, str(tmp_path))
        return
    has = "prompts are 'passage'" if files is SAVED else "names no prompts"
    with pytest.raises(chunkvisor.ChunkvisorError, match=f"no prompt named '{name}'\nwhy: .*{has}") as caught:
        refuse_wrong_model(config, str(tmp_path))
    assert caught.value.code == 78


def test_before_anything_is_read(tmp_path: Path) -> None:
    """A run is refused before the source is read and a worker started."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config_sentence_transformers.json").write_text(json.dumps(SAVED))
    (tmp_path / "m" / "modules.json").write_text("[]")
    (tmp_path / "s.txt").write_text("a text\n")
    config = tmp_path / "c.yaml"
    config.write_text(
        "workdir: w\nmodel: {name: m}\ndevice: cpu\nencode: {prompt_name: passages}\noutputs: {out: {source: s.txt}}\n"
    )
    with pytest.raises(chunkvisor.ChunkvisorError, match="no prompt named 'passages'"):
        chunkvisor.run(config)
    assert not list((tmp_path / "w").rglob("attempts/*"))
    assert not list((tmp_path / "w").rglob("texts*"))
