"""What chunkvisor is measured against.

One sentence-transformers process, or its own multi-process pool.

python benchmarks/plain.py MODEL TEXTS.json OUT.npy [--pool WORKERS] [--device cpu] [--batch-size
32] [--backend torch]
"""

import argparse
import json
from pathlib import Path

import numpy as np


def main() -> None:
    """Imports, model load, encode and save: all that a plain script has to do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("texts", type=Path)
    parser.add_argument("out")
    parser.add_argument("--pool", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--backend", default="torch")
    options = parser.parse_args()
    from sentence_transformers import SentenceTransformer

    texts = json.loads(options.texts.read_text())
    model = SentenceTransformer(options.model, device=options.device, backend=options.backend)
    if options.pool:
        pool = model.start_multi_process_pool([options.device] * options.pool)
        vectors = model.encode(texts, pool=pool, batch_size=options.batch_size)
        model.stop_multi_process_pool(pool)
    else:
        vectors = model.encode(texts, batch_size=options.batch_size, show_progress_bar=False)
    np.save(options.out, vectors)


if __name__ == "__main__":  # the pool's workers import this module
    main()
