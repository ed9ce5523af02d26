"""What a run leaves alone: the supervisor's own process, and everybody else on the machine."""

import json
import subprocess
import sys

from harness import Workplace, expected

HEAVY = ("torch", "transformers", "sentence_transformers", "tokenizers", "duckdb", "ray")
"""None of these may come into the supervisor's process."""

PROBED = """
import json, sys
from pathlib import Path
from chunkvisor.cli import main
try:
    main()
finally:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(json.dumps({"modules": sorted(sys.modules), "peak_kib": int(status["VmHWM"].split()[0])}))
"""
"""The command, which tells at its end what it has loaded and how much memory it has had at most."""


def test_nothing_heavy_is_loaded(workplace: Workplace) -> None:
    """No heavy library comes into the parent; with 100,000 texts it needs below 150 MB."""
    texts = [f"text {number}" for number in range(100_000)]
    workplace.write_source(texts)
    workplace.write_config("good:make", chunk__size=50_000, encode__batch_size=5000)
    command = [sys.executable, "-c", PROBED, "run", str(workplace.config_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert "chunkvisor.heart.loop" in told["modules"]
    assert not set(HEAVY).intersection(told["modules"])
    assert told["peak_kib"] << 10 < 150e6
    assert workplace.vectors()[::1999].tobytes() == expected(texts[::1999]).tobytes()
