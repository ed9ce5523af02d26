"""`python -m chunkvisor_worker.fetch FOLDER NAME REVISION BACKEND` downloads a model once.

What went wrong is in the folder's fault.json, without tokens.
"""

import json
import sys
from pathlib import Path

from chunkvisor_worker.contract.files import SMALL_FILES, AttemptFiles, write_atomic
from chunkvisor_worker.contract.messages import NO_WEIGHTS, ONLY_ASK, Phase
from chunkvisor_worker.faults import recorded

_OTHER_FRAMEWORKS = [
    "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.gguf", "*.onnx", "*.onnx_data", "onnx/*",
    "openvino/*",
    "coreml/*",
]  # fmt: skip
_OLD_WEIGHTS = ["pytorch_model*.bin", "*.pt", "*.pth"]


def fetch(name: str, revision: str | None, backend: str) -> tuple[str, str]:
    """Return (local folder, commit hash) of the model; raises whatever huggingface_hub raises.

    Offline, the newest snapshot in the local cache is taken. Weights in old formats are left out if
    there are new ones. `backend` is that of sentence-transformers: for another than torch all files
    are taken; with NO_WEIGHTS, code, settings and tokenizers; with ONLY_ASK, none.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    ignored = list(_OTHER_FRAMEWORKS) if backend == "torch" else []
    if not HF_HUB_OFFLINE:
        info = HfApi().model_info(name, revision=revision)
        if backend == ONLY_ASK:
            return "", str(info.sha)
        if backend == "torch" and any(
            sibling.rfilename.endswith(".safetensors") for sibling in info.siblings or []
        ):
            ignored += _OLD_WEIGHTS
    wanted = SMALL_FILES if backend == NO_WEIGHTS else None
    path = Path(
        snapshot_download(name, revision=revision, allow_patterns=wanted, ignore_patterns=ignored)
    )
    # A snapshot's folder bears the hash of its commit.
    return str(path), path.name


def main() -> None:
    """Fetch, and leave result.json or fault.json in the folder."""
    folder, name, revision, backend = sys.argv[1:]
    files = AttemptFiles(Path(folder))
    with recorded(files.fault, Phase.MODEL_LOAD):
        path, commit = fetch(name, revision or None, backend)
        write_atomic(files.result, [json.dumps({"path": path, "revision": commit}).encode()])


if __name__ == "__main__":
    main()
