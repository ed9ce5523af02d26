"""`python tests/gpu/describe_nullgpu.py FOLDER`: makes a null GPU in the folder, and describes it for these tests.

Prints the path of the description, which CHUNKVISOR_TEST_GPU is to name; to be run by the interpreter of a null GPU's
environment (README.md).
"""

import importlib
import json
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent

STRUCK = "attempts/000001/001"
"""In the command line of the worker that meets a trouble."""

TROUBLES = {
    "assert_async": "710@kernel:assert_async,sticky",
    "index_out_of_range": "710@kernel:ndexSelect,sticky",
    # The first two fills are those of the product.
    "illegal_address": "700@kernel:FillFunctor:3+,sticky",
    "spin": "hang@kernel:spin",
}
"""What the kernels of tests/gpu/encoders/on_gpu.py would do, as faults of a null GPU."""


def main(folder: Path) -> None:
    """Build it, and print the path."""
    sys.path[:0] = [str(TESTS / "nullgpu"), str(TESTS)]
    nullgpu = importlib.import_module("nullgpu")
    gpu = nullgpu.NullGpu(folder / "gpu", importlib.import_module("build").build(), [8 << 30])
    packages = ":".join(str(ROOT / name) for name in ("supervisor", "worker"))
    description = {
        "python": sys.executable,
        "environment": {**gpu.environment(), "PYTHONPATH": packages},
        "arithmetic": False,
        "troubles": {name: {"NULLGPU_SET": f"fault={fault},argv={STRUCK}"} for name, fault in TROUBLES.items()},
    }
    path = folder / "gpu.json"
    path.write_text(json.dumps(description))
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
