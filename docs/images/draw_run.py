"""Draws docs/images/run.svg: what the live view shows of a run that is under way just now.

    python docs/images/draw_run.py WORKDIR

It never draws anything made up: the lines are those of `chunkvisor status --watch WORKDIR`. Only the folder that the
workdir lies in is left out of them.
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from chunkvisor.show.status import Follower
from chunkvisor.show.terminal import view
from chunkvisor.store.layout import require_workdir
from chunkvisor.units import human_moment

COLUMNS = 80
OUT = Path(__file__).with_name("run.svg")


def main(workdir: Path) -> None:
    """Look once, draw once."""
    follower = Follower(require_workdir(workdir))
    snapshot = follower.refresh()
    if not follower.alive:
        sys.exit(f"no run is under way in {workdir}")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    for each in follower.news:
        words = each.event.line.replace(f"{workdir.absolute().parent}/", "")
        console.print(f"{human_moment(each.t).split()[1]} {words}")
    for line in view(snapshot):
        console.print(line)
    svg = console.export_svg(
        title=f"chunkvisor run {workdir.name}.yaml", theme=MONOKAI, unique_id="run"
    )
    # The fonts would come from another host.
    OUT.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
