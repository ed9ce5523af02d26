"""Metrics: what a monitoring system reads of a run."""

import re
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.config.model import Config
from chunkvisor.errors import Halt
from chunkvisor.show.metrics import Metrics
from chunkvisor.supervise import session
from chunkvisor.supervise.session import require_extras
from harness import Workplace


def figures(path: Path) -> dict[tuple[str, ...], float]:
    """(name, label values…) -> value; each sample has a help line and a type line above it."""
    found, described = dict[tuple[str, ...], float](), set[tuple[str, str]]()
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            _, kind, name, words = line.split(" ", 3)
            assert kind == "HELP" or words in ("gauge", "counter")
            described.add((kind, name))
            continue
        match = re.fullmatch(r'(\w+)(?:\{\w+="(.*)"\})? (\S+)', line)
        assert match is not None, line
        assert {("HELP", match[1]), ("TYPE", match[1])} <= described
        found[(match[1],) if match[2] is None else (match[1], match[2])] = float(match[3])
    return found


def test_a_run_leaves_its_figures(workplace: Workplace) -> None:
    """Rows, attempts by outcome, the devices' time and the exit code are in the file when a run has ended."""
    texts = [f"text {number}" for number in range(40)]
    workplace.write_source([*texts, *texts])
    plan = {"out/1": "segfault@encode"}
    workplace.write_config(
        "misbehaving:make", model__kwargs={"plan": plan, "times": 1}, metrics__textfile="chunkvisor.prom"
    )

    ended = workplace.run()

    assert ended.returncode == 0, ended.stderr
    found = figures(workplace.folder / "chunkvisor.prom")
    assert found["chunkvisor_rows", "out"] == found["chunkvisor_rows_done", "out"] == 80
    assert found["chunkvisor_chunks", "out"] == found["chunkvisor_chunks_done", "out"] == 4
    assert found["chunkvisor_texts_total", "out"] == 40
    assert found["chunkvisor_attempts_total", "committed"] == 4
    assert found["chunkvisor_attempts_total", "crashed"] == 1
    assert found["chunkvisor_quarantined_rows", "out"] == 0
    assert found["chunkvisor_device_busy_seconds_total", "0"] > 0
    assert found["chunkvisor_exit_code",] == 0
    assert found["chunkvisor_running",] == 0
    assert list(workplace.folder.glob("chunkvisor.prom?*")) == []
    again = workplace.run("--set", "metrics.textfile=other.prom")
    assert again.returncode == 0, again.stderr  # it shapes no vector, and may change at any time
    assert figures(workplace.folder / "other.prom")["chunkvisor_rows_done", "out"] == 80


def test_a_file_that_cannot_be_written_hurts_nobody(tmp_path: Path) -> None:
    """A folder that vanishes costs the figures, not the run."""
    folder = tmp_path / "gone"
    folder.mkdir()
    metrics = Metrics(folder / "chunkvisor.prom")
    folder.rmdir()

    metrics.tick()
    metrics.close()


def config(tmp_path: Path, **keys: Any) -> Config:
    """A config with these keys."""
    values = {"workdir": "w", "model": {"name": "m"}, "outputs": {"o": {"source": "s.csv", "column": "c"}}}
    return Config.model_validate({**values, **keys}, context={"folder": tmp_path})


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the library of a key is not installed, the run is refused with the extra to install."""
    monkeypatch.setattr(session, "find_spec", lambda name: None)

    with pytest.raises(Halt) as refused:
        require_extras(config(tmp_path, notify=["json://h"]))

    assert refused.value.code == 78
    assert "apprise" in refused.value.what
    assert "chunkvisor[notify]" in refused.value.remedy


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """Figures that nobody would ever see are refused before the run, not lost during it."""
    with pytest.raises(Halt, match="there is no folder"):
        require_extras(config(tmp_path, metrics={"textfile": "nowhere/m.prom"}))
