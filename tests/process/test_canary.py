"""An attempt in doubt begins with a canary: a text by itself, which shows whether device and model
work at all.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chunkvisor.store.attempt import AttemptFolder, Salvage, write_attempt
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec, Spec
from chunkvisor_worker.contract.wire import read_batch_log
from harness import ENCODERS, expected, path_with

TEXTS = ["a long text", "short", "poison", "the last one"]


def attempt(
    folder: Path,
    *,
    faults: dict[str, str] | None = None,
    canary: str | None = None,
    canary_row: int | None = None,
) -> tuple[AttemptFiles, Salvage]:
    """Run a worker by hand over the texts, with the plug-in that plays these faults; what it left,
    as a resume finds it.
    """
    shutil.copy(ENCODERS / "scripted.py", folder)
    (folder / "faults").mkdir()
    for text, name in (faults or {}).items():
        (folder / "faults" / hashlib.sha256(text.encode()).hexdigest()[:16]).write_text(name)
    files = AttemptFiles(folder / "1")
    files.folder.mkdir()
    model = ModelSpec("m", encoder="scripted:make")
    draft = Spec(
        *("print", "out", 0, 1, 0, 0, "", "cpu", model, EncodeSpec()),
        import_path=(str(folder),),
        limits=Limits(rows=8),
        canary_row=canary_row,
    )
    spec = write_attempt(files, draft, TEXTS, canary)
    env = {**os.environ, "PYTHONPATH": path_with(ENCODERS)}
    subprocess.run(
        [sys.executable, "-P", "-m", "chunkvisor_worker", files.folder],
        env=env,
        check=False,
        timeout=60,
    )
    return files, AttemptFolder(files, spec, lambda: None, lambda _: False).salvage()


@pytest.mark.parametrize("canary", ["known good", "é" * (2 << 20)], ids=len)
def test_the_vector_of_a_known_text_is_thrown_away(tmp_path: Path, canary: str) -> None:
    """The attempt's own vectors are those without a canary, however long that is."""
    files, _ = attempt(tmp_path, canary=canary)
    np.testing.assert_array_equal(np.load(files.vectors), expected(TEXTS))
    assert read_batch_log(files.batches).canary is not None


def test_a_resume_takes_no_canary_for_a_text(tmp_path: Path) -> None:
    """What a worker leaves that dies after its canary is nothing but the proof that the device
    works.
    """
    files, left = attempt(tmp_path, faults={"poison": "kill_worker!"}, canary="known good")
    assert read_batch_log(files.batches).canary is not None
    assert left.done == ()
    assert left.under_way == (0, 1, 2, 3)


def test_a_text_of_its_own_stays(tmp_path: Path) -> None:
    """While no good text is known, the shortest makes a batch by itself, whose vector is taken
    over.
    """
    files, left = attempt(tmp_path, faults={"poison": "kill_worker!"}, canary_row=1)
    assert read_batch_log(files.batches).canary is None
    assert left.done == (1,)
    assert left.under_way == (0, 2, 3)


def test_a_text_of_its_own_is_encoded_once(tmp_path: Path) -> None:
    """The others follow it, in one file."""
    files, _ = attempt(tmp_path, canary_row=3)
    np.testing.assert_array_equal(np.load(files.vectors), expected(TEXTS))
    calls = (tmp_path / "calls.jsonl").read_text().splitlines()
    assert calls == ['["the last one"]', '["a long text", "short", "poison"]']


def test_a_canary_without_a_good_vector_has_not_passed(tmp_path: Path) -> None:
    """A device that gives NaN for what was good before is at fault, and no text of the attempt is
    touched.
    """
    files, left = attempt(tmp_path, faults={"known good": "nan!"}, canary="known good")
    assert read_batch_log(files.batches).canary is None
    assert left == Salvage()
