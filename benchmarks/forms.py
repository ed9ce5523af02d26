"""Measures what another form of a finished final costs against `cp` and `sync` of it.

Seconds, and memory.

    python benchmarks/forms.py [--folder FOLDER] [--rows ROWS] [--runs N] [FORM …]

Each form is made in a process of its own, of a copy of the same float32 final; the folder needs
room for three of it.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.outputs.forms import Form, VectorType
from chunkvisor.outputs.join import write_final
from chunkvisor.outputs.publish import describe_file, ensure_form, publish
from chunkvisor.outputs.state import OutputState, Stage, final_record_of
from chunkvisor.store.layout import Layout, OutputLayout

FORMS = {
    "float16": Form(dtype=FinalDtype.FLOAT16),
    "parquet": Form(format=FinalFormat.PARQUET),
}
DIMENSION = 384
BLOCK = 4096


def main() -> None:
    """Print a line for each form; or, called by itself, make one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forms", nargs="*", default=list(FORMS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rows", type=int, default=1_333_333)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--make", choices=("float32", *FORMS))
    wanted = parser.parse_args()
    if wanted.make is not None:
        make(Layout(wanted.folder).output("out").at_generation(1), wanted.rows, wanted.make)
        return
    print(f"{wanted.rows:,} x {DIMENSION}, {wanted.rows * DIMENSION * 4 / 1e9:.2f} GB of float32")
    for form in wanted.forms:
        ours, theirs, memory_mb = [], [], 0.0
        for _ in range(wanted.runs):
            with tempfile.TemporaryDirectory(dir=wanted.folder) as folder:
                call(folder, wanted.rows, "float32")
                began_s = time.monotonic()
                subprocess.run(
                    ["sh", "-c", "cp out.npy copy.npy && sync copy.npy"], cwd=folder, check=True
                )
                theirs.append(time.monotonic() - began_s)
                Path(folder, "copy.npy").unlink()
                seconds, memory = call(folder, wanted.rows, form).split()
                ours.append(float(seconds))
                memory_mb = max(memory_mb, float(memory))
        mine, other = statistics.median(ours), statistics.median(theirs)
        print(
            f"{form}: {mine:.2f} s, cp {other:.2f} s: {other / mine:.2f} of cp; at most "
            f"{memory_mb:.0f} MB",
            flush=True,
        )


def call(folder: str, rows: int, form: str) -> str:
    """Have a form made in a process of its own; returns what it prints."""
    command = [sys.executable, __file__, "--folder", folder, "--rows", str(rows), "--make", form]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def make(layout: OutputLayout, rows: int, form: str) -> None:
    """Write a finished float32 final, or make another form of the one that is there and print seconds and megabytes."""
    if form == "float32":
        layout.state.mkdir(parents=True)
        block = np.random.default_rng(0).standard_normal((BLOCK, DIMENSION), dtype=np.float32)
        found = (block[: rows - first] for first in range(0, rows, BLOCK))
        vector_type = VectorType(FinalDtype.FLOAT32, DIMENSION)
        partial = layout.partial(FinalFormat.NPY)
        digest = write_final(layout, partial, rows, vector_type, Form(), found)
        described = describe_file(layout, Form(), digest)
        known = {
            "rows": rows,
            "dimension": DIMENSION,
            "fingerprint": "f",
            "quarantined": [],
            "quarantined_rows": 0,
            "zero_rows": 0,
        }
        publish(layout, known | described)
        return
    complete = OutputState(Stage.COMPLETE, layout, None, final_record_of(layout))
    began_s = time.monotonic()
    assert (
        ensure_form(complete, FORMS[form], {}, lambda _: None, lambda: None).final_record
        is not None
    )
    print(time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)


if __name__ == "__main__":
    main()
