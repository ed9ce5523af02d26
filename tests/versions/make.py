"""Makes the workdirs of one version of chunkvisor, as it left them, for all later versions to go on with.

    python tests/versions/make.py NAME CHECKOUT

CHECKOUT is a checkout of that version (`git worktree add --detach FOLDER COMMIT`), whose code this interpreter runs;
tests/versions/NAME gets a small archive of each state. It is called once for each release, before the release.
"""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

HERE = Path(__file__).parent
PLUGIN = HERE.parent / "lostwrites" / "plugin.py"
_CALL = "import socket; socket.gethostname = lambda: 'fixture'; from chunkvisor.cli import main; main()"
_STORY = ("invocations", "report.html", "template")
"""Nothing is resumed from these, and they tell much of the machine."""


@dataclass(frozen=True, slots=True)
class State:
    """A workdir in some state, and what a later version makes of it."""

    texts: tuple[str, ...]
    code: int = 0
    """Of the command that made it."""
    options: tuple[str, ...] = ()
    chunk_size: int = 2
    later: tuple[int, ...] = (0,)
    """Exit codes of `chunkvisor run`, without the options, by a later version."""
    committed: tuple[str, ...] = ()
    """Texts that have their vectors, and are not encoded again."""


_EIGHT = tuple(f"t{number}" for number in range(8))

STATES = {
    "half-done": State((*_EIGHT[:5], "leave0", "t6"), -9, committed=_EIGHT[:4]),
    "taken-apart": State(
        ("t0", "t1", "t2", "t3", "poison0", "t4", "leave0", "t5", "t6", "t7"), -9, chunk_size=8, later=(3,)
    ),
    "quarantined": State((*_EIGHT, "poison0", "t0"), 3, chunk_size=3, later=(3,), committed=_EIGHT),
    "sliced": State((*_EIGHT, "t1"), options=("--slice", "1/2"), committed=_EIGHT[:4]),
    "sharded": State((*_EIGHT, "t1"), options=("--set", "outputs.out.shards=2"), committed=_EIGHT),
    "finished": State((*_EIGHT, "t1"), committed=_EIGHT),
}


def lay_out(state: State, folder: Path) -> None:
    """Config, source and encoder in a new folder."""
    folder.mkdir(parents=True)
    shutil.copy(PLUGIN, folder)
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in state.texts))
    config = {
        "workdir": "work",
        "model": {"name": "test", "encoder": "plugin:make"},
        "device": "cpu",
        "chunk": {"size": state.chunk_size},
        "encode": {"batch_size": 2},
        "workers": {"start": "fresh", "standby": 0},
        "outputs": {"out": {"source": "rows.jsonl", "column": "text"}},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def make(state: State, folder: Path, checkout: Path) -> None:
    """Have that version bring a workdir into the state."""
    lay_out(state, folder)
    path = os.pathsep.join([str(checkout / "supervisor"), str(checkout / "worker")])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "HOME": str(folder)}
    command = [sys.executable, "-c", _CALL, "run", "config.yaml", *state.options]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != state.code:
        sys.exit(f"{command}: {ended}")
    for name in _STORY:
        for path_ in (folder / "work" / name, *(folder / "work").glob(f"slices/*/{name}")):
            shutil.rmtree(path_) if path_.is_dir() else path_.unlink(missing_ok=True)


def pack(workdir: Path, archive: Path) -> None:
    """The workdir, the same bytes from the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(workdir.rglob("*")):
            entry = tar.gettarinfo(path, str(path.relative_to(workdir)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            with open(path, "rb") if path.is_file() else io.BytesIO() as file:
                tar.addfile(entry, file)
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def main() -> None:
    """The program."""
    name, checkout = sys.argv[1], Path(sys.argv[2]).resolve()
    (HERE / name).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-versions-") as scratch:
        for state_name, state in STATES.items():
            folder = Path(scratch, state_name)
            make(state, folder, checkout)
            pack(folder / "work", HERE / name / f"{state_name}.tar.gz")
            print(f"{name}/{state_name}: {(HERE / name / f'{state_name}.tar.gz').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
