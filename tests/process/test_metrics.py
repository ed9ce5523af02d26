"""Metrics: what a monitoring system reads of a run."""

from pathlib import Path
from typing import Any

import pytest

from chunkvisor.config.model import Config
from chunkvisor.errors import Halt
from chunkvisor.observe import extras
from chunkvisor.observe.extras import require_extras
from chunkvisor.observe.metrics import Metrics
from harness import Workplace

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed (extra: metrics)")


def figures(path: Path) -> dict[tuple[str, ...], float]:
    """(name, label values…) -> value, as prometheus_client's own parser reads the file."""
    from prometheus_client.parser import text_string_to_metric_families

    families = list(text_string_to_metric_families(path.read_text()))
    assert all(family.documentation and family.type in ("gauge", "counter") for family in families)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


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


@pytest.mark.parametrize(
    ("keys", "package", "extra"),
    [
        ({"metrics": {"textfile": "m.prom"}}, "prometheus_client", "metrics"),
        ({"notify": ["json://h"]}, "apprise", "notify"),
    ],
)
def test_a_missing_extra_is_named(
    keys: dict[str, Any], package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the library of a key is not installed, the run is refused with the extra to install."""
    monkeypatch.setattr(extras, "find_spec", lambda name: None)

    with pytest.raises(Halt) as refused:
        require_extras(config(tmp_path, **keys))

    assert refused.value.code == 78
    assert package in refused.value.what
    assert f"chunkvisor[{extra}]" in refused.value.remedy


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """Figures that nobody would ever see are refused before the run, not lost during it."""
    with pytest.raises(Halt, match="there is no folder"):
        require_extras(config(tmp_path, metrics={"textfile": "nowhere/m.prom"}))
