"""What a run leaves alone: the supervisor's own process, and everybody else on the machine."""

import json
import sys

from harness import Workplace, expected, said_by
from unit.test_hygiene import HEAVY

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
    workplace.prepare(texts, "good:make", chunk__size=50_000, encode__batch_size=5000)
    told = json.loads(said_by(sys.executable, "-c", PROBED, "run", workplace.config_path))
    assert "chunkvisor.core.loop" in told["modules"]
    assert not set(HEAVY).intersection(told["modules"])
    assert told["peak_kib"] << 10 < 150e6
    assert workplace.vectors()[::1999].tobytes() == expected(texts[::1999]).tobytes()
