"""What chunkvisor is measured against: one sentence-transformers process, or its own multi-process pool.

python benchmarks/plain.py MODEL TEXTS.json OUT.npy [POOL_WORKERS]
"""

import json
import sys
from pathlib import Path

import numpy as np


def main() -> None:
    """Imports, model load, encode and save: all that a plain script has to do."""
    model_path, texts_path, out_path, *workers = sys.argv[1:]
    from sentence_transformers import SentenceTransformer

    texts = json.loads(Path(texts_path).read_text())
    model = SentenceTransformer(model_path, device="cpu")
    if workers:
        pool = model.start_multi_process_pool(["cpu"] * int(workers[0]))
        vectors = model.encode(texts, pool=pool, batch_size=32)
        model.stop_multi_process_pool(pool)
    else:
        vectors = model.encode(texts, batch_size=32, show_progress_bar=False)
    np.save(out_path, vectors)


if __name__ == "__main__":  # the pool's workers import this module
    main()
