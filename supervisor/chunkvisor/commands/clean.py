"""Removes chunk and attempt files, and the staged texts, of finished outputs.

It never touches a final file, a manifest, or an output that is not finished or has rows in
quarantine.
"""

import shutil
from pathlib import Path

from chunkvisor.assemble.manifest import read_finished
from chunkvisor.errors import no_workdir
from chunkvisor.store.layout import Layout
from chunkvisor.store.slicelock import hold_workdir


def clean(workdir: Path) -> tuple[int, int]:
    """(files removed, bytes freed). Raises Halt: 78 where the folder is no workdir, 75 while somebody works there."""
    layout = Layout(workdir)
    if not layout.outputs.is_dir():
        raise no_workdir(workdir)
    removed = freed_bytes = 0
    with hold_workdir(layout, ""):
        for folder in sorted(layout.outputs.glob("*/")):
            output = layout.output(folder.name)
            manifest = read_finished(output)
            if manifest is None or manifest["quarantined"]:
                continue  # `retry` still needs the good vectors of the chunks
            for unneeded in (output.chunks, output.attempts, output.table):
                sizes = [path.stat().st_size for path in unneeded.rglob("*") if path.is_file()]
                removed, freed_bytes = removed + len(sizes), freed_bytes + sum(sizes)
                shutil.rmtree(unneeded, ignore_errors=True)
    return removed, freed_bytes
