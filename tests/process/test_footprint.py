"""What a run leaves alone: the supervisor's own process, and everybody else on the machine."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

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


def probed(place: Workplace) -> subprocess.Popen[str]:
    """Start the run of the config, which tells about itself at its end."""
    command = [sys.executable, "-c", PROBED, "run", str(place.config_path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> tuple[set[str], int]:
    """(modules in the supervisor at its end, its peak memory in bytes)."""
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    found = json.loads(stdout)
    return set(found["modules"]), found["peak_kib"] << 10


def test_nothing_heavy_is_loaded(workplace: Workplace) -> None:
    """No heavy library comes into the parent or a plug-in worker; with 100,000 texts the parent needs below 150 MB."""
    texts = [f"text {number}" for number in range(100_000)]
    workplace.write_source(texts)
    workplace.write_config("good:make", chunk__size=50_000, encode__batch_size=5000)
    process = probed(workplace)
    looks: dict[int, int] = {}
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        time.sleep(0.02)
        try:
            pids = [process.pid, *map(int, children.read_text().split())]
        except OSError:
            continue
        for pid in pids:
            try:
                maps = Path(f"/proc/{pid}/maps").read_text()
                command = Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:
                continue
            looks[pid] = looks.get(pid, 0) + bool(maps)
            assert not any(name in maps for name in ("libtorch", "libcuda", "libnvidia-ml")), command
    modules, peak_bytes = told(process)
    assert "chunkvisor.heart.loop" in modules
    assert not modules.intersection(HEAVY)
    assert looks[process.pid] > 1
    assert len(looks) > 1
    assert peak_bytes < 150e6
    assert workplace.vectors()[::1999].tobytes() == expected(texts[::1999]).tobytes()


def test_files_are_private(workplace: Workplace) -> None:
    """Whatever the umask, nobody but the user can read or write any state, kept attempts included."""
    workplace.write_source([f"text {number}" for number in range(12)])
    kwargs = {"plan": {"out/1": "segfault@encode", "out/2": "drop_the_mask@import"}, "times": None}
    workplace.write_config(
        "misbehaving:make", model__kwargs=kwargs, chunk__size=4, chunk__keep=True, recovery__attempts=1
    )
    before = os.umask(0)
    try:
        ended = workplace.run()
    finally:
        os.umask(before)
    assert ended.returncode == 3, ended.stderr
    readable = {path.name for path in workplace.workdir.iterdir() if stat.S_IMODE(path.lstat().st_mode) & 0o077}
    assert readable == {"out.json", "out.npy", "report.html"}
    assert stat.S_IMODE(workplace.hidden.stat().st_mode) == 0o700
