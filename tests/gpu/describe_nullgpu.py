"""`python tests/gpu/describe_nullgpu.py FOLDER`: makes a null GPU in the folder, and describes it for these tests.

Prints the path of the description, which CHUNKVISOR_TEST_GPU is to name; to be run by the interpreter of a null GPU's
environment (docs/gpu.md).
"""

import json
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent


def main(folder: Path) -> None:
    """Build it, and print the path."""
    sys.path[:0] = [str(TESTS / "nullgpu"), str(TESTS)]
    from build import build
    from nullgpu import GIB, NullGpu

    gpu = NullGpu(folder / "gpu", build(), [8 * GIB])
    packages = ":".join(str(ROOT / name) for name in ("supervisor", "worker"))
    description = {
        "python": sys.executable,
        "environment": {**gpu.environment(), "PYTHONPATH": packages},
        "arithmetic": False,
    }
    path = folder / "gpu.json"
    path.write_text(json.dumps(description))
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
