"""What an attempt has encoded outlives it: the file of vectors, the log of batches, and the look at
both.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from chunkvisor.config.model import ChunkConfig
from chunkvisor.store.artifact import inspect
from chunkvisor.store.attempt import AttemptFolder, Salvage
from chunkvisor_worker.contract.files import READ_LIMIT_BYTES, AttemptFiles
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, ModelSpec, Spec
from chunkvisor_worker.job import VectorFile
from chunkvisor_worker.plugin import BadOutputError

Opened = Callable[..., VectorFile]

FACTS = Facts(dimension=3, dtype="float32")
VECTORS = np.arange(1, 31, dtype=np.float32).reshape(10, 3)


def spec(skip: tuple[int, ...] = ()) -> Spec:
    """Ten texts, of which those in `skip` have their vectors."""
    return Spec("print", "o", 0, 1, 40, 50, "", "cpu", ModelSpec("m"), EncodeSpec(), skip=skip)


@pytest.fixture
def opened() -> Iterator[Callable[..., VectorFile]]:
    """Opens the file as the worker does; closed at the end, which a worker that dies leaves to the
    kernel.
    """
    with ExitStack() as stack:

        def open_one(files: AttemptFiles, skip: tuple[int, ...] = ()) -> VectorFile:
            file = VectorFile(files, 10, skip, lambda: FACTS)
            stack.callback(file.close)
            return file

        yield open_one


def write(file: VectorFile, *batches: list[int], vectors: np.ndarray = VECTORS) -> None:
    """Batches of these positions, from begin to end."""
    for batch in batches:
        file.begin_batch(np.array(batch))
        file.write_block(np.array(batch), vectors[batch])


_CLOSED = """
import os, sys
from pathlib import Path
import numpy as np
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Facts, Phase
from chunkvisor_worker.job import VectorFile
from chunkvisor_worker.liveness import BeatWriter

folder = Path(sys.argv[1])
for fd in (0, 1, 2):
    os.close(fd)
BeatWriter(AttemptFiles(folder).beat).phase(Phase.FORWARD)
file = VectorFile(AttemptFiles(folder), 1, (), lambda: Facts(3))
file.begin_batch(np.array([0]))
file.write_block(np.array([0]), np.ones((1, 3), dtype=np.float32))
names = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in map(int, os.listdir("/proc/self/fd"))}
mine = [fd for fd, name in names.items() if name.startswith(str(folder))]
sys.exit(f"descriptors {mine}" if len(mine) != 3 or min(mine) < 3 else 0)
"""


def test_files_of_a_worker_never_have_the_number_of_a_standard_stream(tmp_path: Path) -> None:
    """If an encoder's code has closed standard input, output and error, what it prints later goes
    into none of the worker's files.
    """
    assert (
        subprocess.run([sys.executable, "-c", _CLOSED, str(tmp_path)], check=False).returncode == 0
    )


def never_blank(_index: int) -> bool:
    """No text of these tests is blank."""
    return False


def test_a_finished_file_is_what_numpy_reads(tmp_path: Path, opened: Opened) -> None:
    """Batches come in any order; the digest is that of the file."""
    files = AttemptFiles(tmp_path)
    file = opened(files)
    write(file, [9, 0, 3], [1, 2, 4, 5], [8, 7, 6])

    digest, size_bytes = file.complete()

    np.testing.assert_array_equal(np.load(files.vectors), VECTORS)
    assert digest == inspect(files.vectors).digest
    assert size_bytes == files.vectors.stat().st_size
    assert not files.partial.exists()


@pytest.mark.parametrize(
    ("batches", "block", "match"),
    [
        ([[0, 1]], VECTORS[:2], "left 8 of 10 texts"),
        ([[0, 1]], VECTORS[2:4, :2], "2 dimensions follow vectors of 3"),
    ],
)
def test_what_is_no_vector_a_text_is_refused(
    tmp_path: Path, opened: Opened, batches: list[list[int]], block: np.ndarray, match: str
) -> None:
    """A text without a vector, or a batch of another dimension, is the encoder's fault."""
    file = opened(AttemptFiles(tmp_path))
    write(file, *batches)
    with pytest.raises(BadOutputError, match=match):
        file.write_block(np.array([2, 3]), block) if "follow" in match else file.complete()


def test_what_was_written_is_found_after_a_death(tmp_path: Path, opened: Opened) -> None:
    """Finished batches are there; those that had begun are suspects; the rest is untouched."""
    files = AttemptFiles(tmp_path)
    file = opened(files)
    write(file, [9, 0], [3, 4])
    for batch in ([1, 2], [5]):
        file.begin_batch(np.array(batch))

    assert AttemptFolder(files, spec(), lambda: None, never_blank).salvage() == Salvage(
        (0, 3, 4, 9), (1, 2, 5)
    )


def corrupt(files: AttemptFiles) -> None:
    """A row of the second batch is other than it was written."""
    with files.partial.open("r+b") as file:
        file.seek(-4 * 3 * 6, 2)
        file.write(b"\x01")


def tear(files: AttemptFiles) -> None:
    """The log ends in the middle of its last line."""
    data = files.batches.read_bytes()
    files.batches.write_bytes(data[:-9])


def shorten(files: AttemptFiles) -> None:
    """The file of vectors is cut."""
    with files.partial.open("r+b") as file:
        file.truncate(140)


def lie(files: AttemptFiles) -> None:
    """The log says things that are no positions."""
    with files.batches.open("ab") as file:
        file.write(b'{"batch":7,"rows":[1,99,-3]}\n{"batch":7,"digest":"0"}\n')


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (corrupt, Salvage((0, 9))),
        (tear, Salvage((0, 9), (3, 4))),
        (shorten, Salvage()),
        (lie, Salvage((0, 3, 4, 9))),
        (lambda files: files.partial.unlink(), Salvage()),
        (lambda files: files.batches.unlink(), Salvage()),
        (
            lambda files: files.batches.write_bytes(b"\xff\n" + files.batches.read_bytes()),
            Salvage(),
        ),
    ],
)
def test_what_is_damaged_is_not_taken_over(
    tmp_path: Path, opened: Opened, damage: Callable[[AttemptFiles], object], expected: Salvage
) -> None:
    """Only batches that match their checksums count, whatever became of the rest."""
    files = AttemptFiles(tmp_path)
    write(opened(files), [9, 0], [3, 4])

    damage(files)

    assert AttemptFolder(files, spec(), lambda: None, never_blank).salvage() == expected


def test_the_longest_log_is_read(tmp_path: Path) -> None:
    """A chunk of as many texts as a config may ask for can be in as many batches; no config asks
    for more.
    """
    texts = 100_000
    ChunkConfig(size=texts)
    with pytest.raises(ValidationError):
        ChunkConfig(size=texts + 1)
    files = AttemptFiles(tmp_path)
    file = VectorFile(files, texts, (), lambda: FACTS)
    sizes = [0]
    for row in (texts - 2, texts - 1):
        file.begin_batch(np.array([row]))
        file.write_block(np.array([row]), VECTORS[:1])
        sizes.append(files.batches.stat().st_size)
    file.close()
    assert sizes[1] + (sizes[2] - sizes[1]) * texts < READ_LIMIT_BYTES


def test_bad_vectors_are_left_to_the_next_attempt(tmp_path: Path, opened: Opened) -> None:
    """NaN and, but for blank texts, zero throughout: the policy has to see them in a result."""
    files, vectors = AttemptFiles(tmp_path), VECTORS.copy()
    vectors[3, 1], vectors[[4, 9]] = np.nan, 0
    write(opened(files), [9, 0], [3, 4], vectors=vectors)

    assert AttemptFolder(files, spec(), lambda: None, lambda text: text == 49).salvage().done == (
        0,
        9,
    )


@pytest.mark.parametrize(
    ("known", "skip"), [(Facts(4, "float32"), ()), (Facts(3, "bfloat16"), ()), (None, (0, 3, 4, 9))]
)
def test_vectors_that_do_not_fit_are_left(
    tmp_path: Path, opened: Opened, known: Facts | None, skip: tuple[int, ...]
) -> None:
    """Of another dimension or dtype than the chunks before, or of texts that were not asked for."""
    files = AttemptFiles(tmp_path)
    write(opened(files), [9, 0], [3, 4])

    assert AttemptFolder(files, spec(skip), lambda: known, never_blank).salvage().done == ()
