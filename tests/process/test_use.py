"""The examples of docs/how-to/use-the-vectors.md run on finals of a run; those whose library is
missing are skipped.
"""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import yaml

from harness import ROOT, Workplace, said_by, write_lines

PAGE = (ROOT / "docs" / "how-to" / "use-the-vectors.md").read_text()
BLOCKS = re.findall(
    r"^## ([^\n]*)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
)
WIDE = """
import numpy as np, good
class Encoder(good.Encoder):
    def encode(self, texts, batch_size):
        seeds = [int.from_bytes(text.encode()[-4:], "big") for text in texts]
        found = np.stack([np.random.default_rng(seed).standard_normal(384) for seed in seeds])
        return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)
def make(model, device):
    return Encoder()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finals of the page's config; its table only where pyarrow is installed."""
    folder = tmp_path_factory.mktemp("use")
    workplace = Workplace(folder)
    (folder / "wide.py").write_text(WIDE)
    rows: list[dict[str, str | None]] = [
        {"name": f"f{number}", "doc": f"does {number:04d}"} for number in range(60)
    ]
    rows[30:30] = [{"name": "none", "doc": None}, {"name": "blank", "doc": " "}]
    write_lines(folder / "docstrings.jsonl", rows)
    workplace.write_config("wide:make")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    said = yaml.safe_load(block)
    config = yaml.safe_load(workplace.config_path.read_text()) | {
        key: said[key] for key in ("workdir", "outputs")
    }
    if importlib.util.find_spec("pyarrow") is None:
        del config["outputs"]["docs_table"]
    workplace.config_path.write_text(yaml.safe_dump(config))
    workplace.ends(0)
    return folder


@pytest.mark.parametrize(
    ("heading", "block"), [pytest.param(*each, id=each[0].split()[0]) for each in BLOCKS]
)
def test_example(place: Path, heading: str, block: str) -> None:
    """The block finds, for the first row, that row itself, or what else it asserts."""
    for library in re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE):
        pytest.importorskip(library, reason=f"{library} is not installed")
    if "parquet" in block:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    said_by(sys.executable, "-", text=block, cwd=place)


def test_every_library_has_an_example() -> None:
    """What the page promises is there."""
    names = {heading.lower().split()[0] for heading, _ in BLOCKS}
    assert names >= {"numpy", "int8", "files", "duckdb", "pandas", "faiss"}
