"""Texts for the benchmarks.

Commit messages from a file that is given, or the quickstart's docstrings.

It never downloads anything.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "quickstart" / "data" / "all-MiniLM-L6-v2"


def read_texts(path: Path | None, count: int, *, distinct: bool) -> list[str]:
    """`count` texts, or all there are.

    Subject and body of commits as JSON lines (.gz), else harvested docstrings.
    """
    if path is None:
        path = ROOT / "quickstart" / "data" / "bench_docstrings.jsonl"
        if not path.exists():
            command = [
                sys.executable,
                str(ROOT / "quickstart" / "harvest.py"),
                "--out",
                str(path),
                "--rows",
                "5000",
            ]
            subprocess.run(command, check=True)
    opener = gzip.open if path.suffix == ".gz" else open
    texts: list[str] = []
    seen: set[str] = set()
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            text = (
                "\n\n".join(filter(None, (row.get("subject"), row.get("body"))))
                or row.get("doc")
                or ""
            )
            if distinct and text in seen:
                continue
            seen.add(text)
            texts.append(text)
            if len(texts) == count:
                break
    return texts


def ensure_model() -> Path:
    """The MiniLM folder that the quickstart links and checks."""
    subprocess.run(
        [sys.executable, str(ROOT / "quickstart" / "model.py")],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return MODEL
