"""The examples of docs/how-to/use-the-vectors.md run on finals of a run; those whose library is
missing are skipped.
"""

import re
import sys
from pathlib import Path

import pytest
import yaml

from docpages import blocks
from harness import ROOT, Workplace, said_by, write_lines

PAGE = ROOT / "docs" / "how-to" / "use-the-vectors.md"
BLOCKS = [block.text for block in blocks(PAGE, "python")]
WIDE = """
import numpy as np, good
class Encoder(good.Encoder):
    def encode(self, texts, batch_size):
        seeds = [int.from_bytes(text.encode()[-4:], "big") for text in texts]
        found = np.stack([np.random.default_rng(seed).standard_normal(384) for seed in seeds])
        found[[i for i, text in enumerate(texts) if text == "bad"]] = np.nan
        return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)
def make(model, device):
    return Encoder()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finals of the page's config, one row of which is in quarantine."""
    pytest.importorskip("pyarrow")
    workplace = Workplace(tmp_path_factory.mktemp("use"))
    (workplace.folder / "wide.py").write_text(WIDE)
    docs = [f"does {number:04d}" for number in range(60)]
    docs[30:30] = ["", " ", "bad"]
    rows = [{"name": f"f{number}", "doc": doc} for number, doc in enumerate(docs)]
    write_lines(workplace.folder / "docstrings.jsonl", rows)
    (block,) = blocks(PAGE, "yaml")
    said = yaml.safe_load(block.text)
    workplace.write_config("wide:make", workdir=said["workdir"], outputs=said["outputs"])
    workplace.ends(3)
    return workplace.folder


@pytest.mark.parametrize("block", BLOCKS)
def test_example(place: Path, block: str) -> None:
    """The block finds, for the first row, that row itself, or what else it asserts."""
    for library in re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE):
        pytest.importorskip(library, reason=f"{library} is not installed")
    said_by(sys.executable, "-", text=block, cwd=place)


def test_every_library_has_an_example() -> None:
    """What the page promises is there."""
    for name in ("numpy", "sentence_transformers", "duckdb", "pandas", "faiss", "lancedb"):
        assert any(name in block for block in BLOCKS)
