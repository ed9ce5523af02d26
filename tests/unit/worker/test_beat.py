"""The beat: overwritten in its place, read as a whole or not at all, and what it says of the phases."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chunkvisor_worker.contract.messages import Beat, Phase
from chunkvisor_worker.contract.wire import read_beat, write_beat
from chunkvisor_worker.liveness import BeatWriter

BEAT = Beat(7, 4711, Phase.FORWARD, rows_total=1000, rows_done=32, tokens_done=1999)


def test_a_beat_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """The file stays the same one, so that the disk has nothing to do; its content is the last beat."""
    path = tmp_path / "beat.json"
    write_beat(path, replace(BEAT, padded_tokens=123456789))
    inode = path.stat().st_ino
    write_beat(path, BEAT)
    assert read_beat(path) == BEAT
    assert json.loads(path.read_text())["rows_done"] == 32
    assert path.stat().st_ino == inode
    assert [each.name for each in tmp_path.iterdir()] == ["beat.json"]


@pytest.mark.parametrize("forward", [True, False])
def test_of_a_beat_half_written_nothing_is_believed(tmp_path: Path, forward: bool) -> None:
    """Wherever the write has got to, from either end: the reader has the one, the other or none, and no mixture."""
    path = tmp_path / "beat.json"

    def content(beat: Beat) -> bytes:
        write_beat(path, beat)
        return path.read_bytes()

    # Of all lengths, so that any two of their fields may meet where one ends and the other begins.
    for later in [
        Beat(9, 1, Phase.DONE),
        *(replace(BEAT, seq=8, padded_tokens=10**digits, opening_s=1.5) for digits in range(0, 30, 3)),
    ]:
        pair = (BEAT, later) if forward else (later, BEAT)
        before, written = map(content, pair)
        found = set[Beat | None]()
        for count in range(len(written)):
            path.write_bytes(written[:count] + before[count:])
            found.add(read_beat(path))
        assert found == {*pair, None}


@pytest.mark.parametrize("content", [b"", b"\n\n", b"{}", b"\xff" * 5000, b"[" * 100_000, bytes(9 << 20)])
def test_what_is_not_a_beat_is_none(tmp_path: Path, content: bytes) -> None:
    """Whatever a worker leaves there."""
    (tmp_path / "beat.json").write_bytes(content)
    assert read_beat(tmp_path / "beat.json") is None


def test_phases(tmp_path: Path) -> None:
    """A new phase is written at once, one that goes on is not; from `go` to the first batch it is `opening_s`."""
    path = tmp_path / "beat.json"
    progress = BeatWriter(path)
    for phase in (Phase.IMPORT, Phase.IMPORT, Phase.TOKENIZE, Phase.READY, Phase.CUDA_INIT, Phase.WEIGHTS_COPY):
        progress.phase(phase)
        beat = read_beat(path)
        assert beat is not None
        assert (beat.phase, beat.opening_s) == (phase, 0.0)
    assert progress.beat.seq == 5
    progress._go_s = (progress._go_s or 0.0) - 10  # ten seconds ago
    progress.phase(Phase.FORWARD)
    progress.batch(np.arange(1), 1)
    beat = read_beat(path)
    assert beat is not None
    assert beat.opening_s >= 10
    assert beat.batch_rows == 1
    progress.phase(Phase.DONE)
    assert set(progress.phase_s) >= {"start", "import", "cuda_init", "weights_copy", "forward"}
