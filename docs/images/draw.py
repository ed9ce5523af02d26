"""Draws the pictures of this folder from a real run on the CPU: run.svg and report.png.

    python docs/images/draw.py

The run encodes docstrings of Python's library with all-MiniLM-L6-v2 in two workers, and this script
kills one of them in the middle of its chunk with SIGSEGV. run.svg shows what `chunkvisor status
--watch` shows when that chunk is tried again, report.png the top of the report at the end. Nothing
is made up; only the folders of this machine are left out. It takes some minutes, and needs the
extras `worker` and `minilm`, and a browser for report.png.
"""

import argparse
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from chunkvisor.events.journal import Logged
from chunkvisor.show.snapshot import Snapshot
from chunkvisor.show.status import Follower
from chunkvisor.show.terminal import STYLES, view
from chunkvisor.store.layout import Layout, is_workdir
from chunkvisor.units import human_moment

HERE = Path(__file__).parent
QUICKSTART = HERE.parents[1] / "quickstart"
COLUMNS = 96
WIDTH = 960
HEIGHT = 1250
"""Pixels of report.png: the report up to the end of its first chart."""
PAUSE_S = 0.01
COMPUTING = re.compile(r"chunk (\d+), computing, (\d+)")
CONFIG = """
workdir: docstrings
model: {name: all-MiniLM-L6-v2}
device: cpu
workers: {per_device: 2}
outputs:
  docstrings: {source: docstrings.jsonl, column: doc}
"""


def main() -> None:
    """Run once, and draw both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000, help="texts (default: %(default)s)")
    parser.add_argument("--chunk", type=int, default=50, help="of a chunk (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder (default: that of this)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        prepare(home, arguments.rows)
        news, now = run(home, arguments.rows, arguments.chunk)
        (arguments.out / "run.svg").write_text(drawn(news, now, home), "utf-8")
        photograph(home, arguments.out / "report.png")


def prepare(home: Path, rows: int) -> None:
    """Put source, model and config into the folder."""
    python = [sys.executable]
    source = home / "docstrings.jsonl"
    model = home / "all-MiniLM-L6-v2"
    subprocess.run(
        [*python, QUICKSTART / "harvest.py", "--rows", str(rows), "--out", source], check=True
    )
    subprocess.run([*python, QUICKSTART / "model.py", "--out", model], check=True)
    (home / "docstrings.yaml").write_text(CONFIG)


def run(home: Path, rows: int, chunk: int) -> tuple[list[Logged], Snapshot]:
    """Run to the end, and kill a worker; return the news and the view of the moment to draw."""
    layout = Layout(home / "docstrings")
    command = [sys.executable, "-m", "chunkvisor", "run", "docstrings.yaml", "--quiet"]
    command += ["--set", f"chunk.size={chunk}"]
    news = list[Logged]()
    drawn: tuple[list[Logged], Snapshot] | None = None
    killed: int | None = None
    """Of which chunk the worker was killed."""
    has_progress = False
    with subprocess.Popen(command, cwd=home) as process:
        while not is_workdir(layout) and process.poll() is None:
            time.sleep(PAUSE_S)
        follower = Follower(layout)
        while process.poll() is None:
            now = follower.refresh()
            news += follower.news
            texts_done = {
                int(at): int(done) for at, done in COMPUTING.findall("\n".join(now.workers))
            }
            for worker in now.state.workers.values():
                at = worker.started.chunk
                # It has vectors of some of its texts, which will be kept.
                is_half = chunk // 2 <= texts_done.get(at, 0) < chunk
                if killed is None and is_half and 5 * at >= 2 * rows // chunk:
                    os.kill(worker.started.pid, signal.SIGSEGV)
                    killed = at
                elif at == killed and now.state.failed and now.eta_s and not has_progress:
                    drawn = news[:], now
                    has_progress = bool(texts_done.get(at))
            time.sleep(PAUSE_S)
    if process.returncode or drawn is None:
        sys.exit(f"nothing is drawn: the run ended with {process.returncode}, or too early")
    return drawn


def shortened(words: str, home: Path) -> str:
    """Return the words without the folders of this machine."""
    for folder in (sysconfig.get_paths()["stdlib"], *sorted(map(str, sys.path), key=len)[::-1]):
        if folder:
            words = words.replace(f"{folder}/", "")
    return words.replace(f"{home.resolve()}/", "").replace(f"{home}/", "")


def drawn(news: list[Logged], now: Snapshot, home: Path) -> str:
    """Return the terminal as an SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    for each in news:
        clock = f"{human_moment(each.t).split()[1]} "
        words = shortened(each.event.line, home)
        console.print(Text.assemble((clock, "dim"), (words, STYLES[each.event.weight])))
    for line in view(now):
        console.print(line)
    svg = console.export_svg(title="chunkvisor run docstrings.yaml", theme=MONOKAI, unique_id="run")
    # The fonts would come from another host.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def photograph(home: Path, picture: Path) -> None:
    """Take the top of the report; end with a message if there is no browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("report.png is not drawn: neither chromium nor google-chrome is on the PATH")
    page = home / "docstrings" / "report.html"
    top, _, _ = page.read_text("utf-8").partition("</figure>")
    page.write_text(shortened(top, home), "utf-8")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
    profile = f"--user-data-dir={home / 'profile'}"
    subprocess.run(
        [browser, *options, profile, f"--screenshot={picture}", page.as_uri()],
        check=True,
        capture_output=True,
    )


if __name__ == "__main__":
    main()
