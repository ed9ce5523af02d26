"""A whole run with the real model, against one plain sentence-transformers encode of the same
texts.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkvisor
from chunkvisor import QuarantineWarning, testing
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
    "long " * 700,
    "   ",
    *(
        f"Commit number {number}: fix the {number % 7}th bug in module {number % 5}"
        for number in range(40)
    ),
    "How do I sort a list?",
]


ALIKE: dict[str, Any] = {"batch_size": 1, "show_progress_bar": False}
"""For the library: one by one it pads nothing, which would be most of its work here."""


def test_run_equals_plain_encode(workplace: Workplace, minilm_path: Path) -> None:
    """Within 1e-6, with packed weights: duplicates, empty texts, NULLs, texts far over max_length,
    CJK and emoji, too.

    So is an output of fewer dimensions.
    """
    from sentence_transformers import SentenceTransformer

    workplace.write_source(TEXTS)
    short = {
        "source": "rows.jsonl",
        "column": "text",
        "encode": {"truncate_dim": 128, "normalize": True},
    }
    keys = {
        "chunk__size": 16,
        "workers": {},
        "env__CHUNKVISOR_LINEAR": "onednn",
        "outputs__a_short": short,
    }
    workplace.write_config("sentence-transformers", model__name=str(minilm_path), **keys)

    workplace.ends(0)
    model = SentenceTransformer(str(minilm_path), device="cpu")
    plain = model.encode([text or "" for text in TEXTS], **ALIKE)
    np.testing.assert_allclose(workplace.vectors(), plain, rtol=0, atol=1e-6)
    plain = model.encode(
        [text or "" for text in TEXTS], truncate_dim=128, normalize_embeddings=True, **ALIKE
    )
    np.testing.assert_allclose(np.load(workplace.workdir / "a_short.npy"), plain, rtol=0, atol=1e-6)
    manifest = workplace.manifest()
    assert manifest["rows"] == len(TEXTS)
    assert manifest["distinct_texts"] == len({text or "" for text in TEXTS})
    assert manifest["model"]["max_length"] == model.max_seq_length
    assert manifest["model"]["revision"].startswith("sha256:")
    assert manifest["linear"] == "onednn"
    assert (workplace.workdir / ".chunkvisor" / "linear").read_text() == "onednn"


def test_a_row_that_kills_workers_with_several_batches_under_way(
    workplace: Workplace, minilm_path: Path
) -> None:
    """Of the batches that are under way when a row kills their worker, only that row is lost."""
    from sentence_transformers import SentenceTransformer

    texts = [f"Commit number {number}: " + "fix the parser " * (number % 5) for number in range(24)]
    workplace.write_source(texts)
    keys = {"chunk__size": 24, "encode__batch_size": 2, "workers": {}, "env__OMP_NUM_THREADS": "2"}
    workplace.write_config("sentence-transformers", model__name=str(minilm_path), **keys)

    with testing.fault("poison-row", chunk=0), pytest.warns(QuarantineWarning):
        chunkvisor.run(workplace.config_path)

    plain = SentenceTransformer(str(minilm_path), device="cpu").encode(texts, **ALIKE)
    vectors = workplace.vectors()
    assert np.flatnonzero(np.isnan(vectors).any(axis=1)).tolist() == [0]
    np.testing.assert_allclose(vectors[1:], plain[1:], rtol=0, atol=1e-6)
    logs = [log.read_text(errors="replace") for log in workplace.workdir.rglob("worker.log")]
    assert any("2 batches at a time" in log for log in logs)
