"""What must not grow with rows, chunks or files."""

import hashlib
import json
import tracemalloc
from pathlib import Path

import numpy as np

from chunkvisor.store.attempt import write_attempt
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import EncodeSpec, ModelSpec, Spec
from chunkvisor_worker.contract.wire import read_message
from harness import Workplace, expected


def test_texts_go_to_the_attempt_as_they_come(tmp_path: Path) -> None:
    """The texts of a chunk, however many, are not held in memory while they are written; the spec describes them."""
    files = AttemptFiles(tmp_path)
    draft = Spec("run", "print", "out", 3, 1, 700, 0, "", "cpu", ModelSpec("m"), EncodeSpec())
    count = 50_000
    tracemalloc.start()
    spec = write_attempt(files, draft, (f"text \n{i}" for i in range(count)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 500_000
    data = files.texts.read_bytes()
    assert [json.loads(line) for line in data.splitlines()] == [f"text \n{i}" for i in range(count)]
    assert spec.texts_digest == hashlib.sha256(data).hexdigest()
    assert (spec.start, spec.stop) == (700, 700 + count)
    assert read_message(Spec, files.spec) == spec


def test_a_glob_of_many_files(workplace: Workplace) -> None:
    """Rows of very many files stand in the order of the files' names, and running again finds them done."""
    folder = workplace.folder / "parts"
    folder.mkdir()
    for number in range(300):
        (folder / f"{number:05d}.txt").write_text(f"text {number}\nthe same in each\n")
    workplace.write_config("good:make", chunk__size=500, outputs={"out": {"source": "parts/*.txt", "column": "text"}})
    assert workplace.run().returncode == 0
    truth = [text for number in range(300) for text in (f"text {number}", "the same in each")]
    assert np.array_equal(workplace.vectors(), expected(truth))
    assert len(workplace.manifest()["source"]["files"]) == 300
    again = workplace.run()
    assert again.returncode == 0
    assert "complete already" in again.stderr
