"""The example of a plug-in encoder on OpenVINO, where that package is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness import Workplace

EXAMPLE = Path(__file__).parents[2] / "examples" / "openvino" / "openvino_encoder.py"


@pytest.mark.model
@pytest.mark.soak(only=True)
def test_it_gives_the_vectors_of_torch(workplace: Workplace, minilm_path: Path) -> None:
    """A converted model encodes texts of every length in a run, each to the vector that sentence-transformers gives."""
    pytest.importorskip("openvino")
    texts = ["", "one word", *(f"text {number} " + "and more " * number * 9 for number in range(60))]
    shutil.copy2(EXAMPLE, workplace.folder)
    converted = workplace.folder / "converted"
    command = [sys.executable, str(EXAMPLE), str(minilm_path), str(converted)]
    subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    workplace.write_source(texts)
    workplace.write_config("openvino_encoder:make", model__name=str(converted), chunk__size=40)
    ended = workplace.run()
    assert ended.returncode == 0, ended.stderr

    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(str(minilm_path), device="cpu").encode(texts)
    np.testing.assert_allclose(workplace.vectors()[1:], plain[1:], atol=1e-5)
