"""A whole run with the real model, against one plain sentence-transformers encode of the same texts."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness import Workplace

pytestmark = pytest.mark.model

TEXTS = [
    "How do I sort a list?",
    "",
    None,
    "How do I sort a list?",
    "Wie sortiere ich eine Liste?",
    "如何对列表进行排序?",
    "🙂🎉 emoji 🚀",
    "a\nb\tc  d",
    "long " * 3000,
    "   ",
    *(f"Commit number {number}: fix the {number % 7}th bug in module {number % 5}" for number in range(40)),
    "How do I sort a list?",
]


def test_run_equals_plain_encode(workplace: Workplace, minilm_path: Path) -> None:
    """Within 1e-6, with packed weights: duplicates, empty texts, NULLs, texts far over max_length, CJK and emoji, too.

    So is an output that is cut from it.
    """
    from sentence_transformers import SentenceTransformer

    workplace.write_source(TEXTS)
    short = {"source": "rows.jsonl", "column": "text", "encode": {"truncate_dim": 128, "normalize": True}}
    keys = {"chunk__size": 16, "workers": {}, "env__CHUNKVISOR_LINEAR": "onednn", "outputs__a_short": short}
    workplace.write_config("sentence-transformers", model__name=str(minilm_path), **keys)

    ended = workplace.run()

    assert ended.returncode == 0, ended.stderr
    model = SentenceTransformer(str(minilm_path), device="cpu")
    plain = model.encode([text or "" for text in TEXTS], show_progress_bar=False)
    np.testing.assert_allclose(workplace.vectors(), plain, rtol=0, atol=1e-6)
    plain = model.encode(
        [text or "" for text in TEXTS], truncate_dim=128, normalize_embeddings=True, show_progress_bar=False
    )
    np.testing.assert_allclose(np.load(workplace.workdir / "a_short.npy"), plain, rtol=0, atol=1e-6)
    assert json.loads((workplace.workdir / "a_short.json").read_text())["texts_encoded"] == 0
    manifest = workplace.manifest()
    assert manifest["rows"] == len(TEXTS)
    assert manifest["distinct_texts"] == len({text or "" for text in TEXTS})
    assert manifest["model"]["max_length"] == model.max_seq_length
    assert manifest["model"]["revision"].startswith("sha256:")
    assert manifest["linear"] == {"name": "onednn", "time_ratio": 0.0}
