"""The beat: overwritten in its place, read as a whole or not at all, and what it says of the phases."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chunkvisor_worker.contract.messages import Beat, Phase
from chunkvisor_worker.contract.wire import read_beat, write_beat
from chunkvisor_worker.progress import BeatWriter

OTHER = Beat(1, 2, Phase.START)
BEAT = Beat(7, 4711, Phase.FORWARD, rows_total=1000, rows_done=32, tokens_done=1999)


def test_a_beat_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """The file stays the same one, so that the disk has nothing to do; its content is the last beat."""
    path = tmp_path / "beat.json"
    write_beat(path, replace(BEAT, tokens_total=123456789))
    inode = path.stat().st_ino
    write_beat(path, BEAT)
    assert read_beat(path) == BEAT
    assert json.loads(path.read_text())["rows_done"] == 32
    assert path.stat().st_ino == inode
    assert [each.name for each in tmp_path.iterdir()] == ["beat.json"]


LATER = [
    replace(BEAT, rows_done=99),
    Beat(9, 1, Phase.DONE),
    *(replace(BEAT, seq=8, tokens_total=10**digits, opening_s=1.5) for digits in range(30)),
]
"""Of all lengths, so that any two of their fields may meet where one ends and the other begins."""


@pytest.mark.parametrize("forward", [True, False])
def test_of_a_beat_half_written_nothing_is_believed(tmp_path: Path, forward: bool) -> None:
    """Wherever the write has got to, from either end: the reader has the one, the other or none, and no mixture."""
    path = tmp_path / "beat.json"
    for later in LATER:
        pair = (BEAT, later) if forward else (later, BEAT)
        before, written = (beats_bytes(path, beat) for beat in pair)
        found = set[Beat | None]()
        for count in range(len(written)):
            with path.open("r+b") as file:
                file.write(written[:count] + before[count:])
            found.add(read_beat(path))
        assert found == {*pair, None}


def beats_bytes(path: Path, beat: Beat) -> bytes:
    """What is in the file of that beat."""
    write_beat(path, beat)
    return path.read_bytes()


def test_a_reader_beside_a_writer_meets_whole_beats(tmp_path: Path) -> None:
    """A process that overwrites the file as fast as it can, and one that reads it meanwhile."""
    path = tmp_path / "beat.json"
    write_beat(path, replace(BEAT, seq=0, rows_done=0))
    pid = os.fork()
    if pid == 0:
        try:
            seq = 0
            while True:
                seq += 1
                write_beat(path, replace(BEAT, seq=seq, rows_done=3 * seq))
        finally:
            os._exit(1)
    try:
        seen = [beat for beat in (read_beat(path) for _ in range(5000)) if beat is not None]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert seen
    assert all(beat.rows_done == 3 * beat.seq for beat in seen)
    assert [beat.seq for beat in seen] == sorted(beat.seq for beat in seen)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"{}", b"\xff" * 5000, b"[" * 100_000, bytes(9 << 20)])
def test_what_is_no_beat_is_none(tmp_path: Path, content: bytes) -> None:
    """And the next beat replaces it."""
    path = tmp_path / "beat.json"
    path.write_bytes(content)
    assert read_beat(path) is None
    write_beat(path, BEAT)
    assert read_beat(path) == BEAT


def test_opening_is_the_time_from_go_to_the_first_batch(tmp_path: Path) -> None:
    """Context and copy of the weights are told from computing, each in its own phase and both in `opening_s`."""
    progress = BeatWriter(tmp_path / "beat.json")
    for phase in (Phase.TOKENIZE, Phase.READY, Phase.CUDA_INIT, Phase.WEIGHTS_COPY):
        progress.phase(phase)
        beat = read_beat(tmp_path / "beat.json")
        assert beat is not None
        assert beat.opening_s == 0.0
    progress._go_s = (progress._go_s or 0.0) - 10  # ten seconds ago
    progress.phase(Phase.FORWARD)
    progress.batch(np.arange(1), 1)
    progress.phase(Phase.DONE)

    beat = read_beat(tmp_path / "beat.json")
    assert beat is not None
    assert 10 <= beat.opening_s < 70
    assert set(progress.phase_s) >= {"cuda_init", "weights_copy", "forward"}


def test_a_phase_that_goes_on_is_not_written_again(tmp_path: Path) -> None:
    """Its time adds up all the same; the next phase is written at once."""
    progress = BeatWriter(tmp_path / "beat.json")
    for phase in (Phase.IMPORT, Phase.IMPORT, Phase.TOKENIZE):
        progress.phase(phase)

    beat = read_beat(tmp_path / "beat.json")
    assert beat is not None
    assert (beat.seq, beat.phase) == (2, Phase.TOKENIZE)
    assert set(progress.phase_s) == {"start", "import"}
