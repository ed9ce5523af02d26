"""The beat: read as a whole or not at all, and what it says of the phases."""

from pathlib import Path

import numpy as np
import pytest

from chunkvisor_worker.contract.messages import Phase
from chunkvisor_worker.contract.wire import read_beat
from chunkvisor_worker.liveness import BeatWriter

TORN = b'{"seq":2,"pid":1,"phase":"forward","end":1}'


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"{}", b"\xff" * 5000, b"[" * 100_000, bytes(33 << 20), TORN]
)
def test_what_is_not_a_beat_is_none(tmp_path: Path, content: bytes) -> None:
    """Whatever a worker leaves there, or is about to write."""
    (tmp_path / "beat.json").write_bytes(content)
    assert read_beat(tmp_path / "beat.json") is None


def test_phases(tmp_path: Path) -> None:
    """A new phase is written at once, one that goes on is not; from `go` to the first batch it is
    `opening_s`.
    """
    path = tmp_path / "beat.json"
    progress = BeatWriter(path)
    for phase in (
        Phase.IMPORT,
        Phase.IMPORT,
        Phase.TOKENIZE,
        Phase.READY,
        Phase.CUDA_INIT,
        Phase.WEIGHTS_COPY,
    ):
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


def test_peaks_of_batches_are_kept_by_powers_of_two(tmp_path: Path) -> None:
    """Of the padded tokens, rounded up; of each size, and of all memory, the highest figure stays."""
    progress = BeatWriter(tmp_path / "beat.json")
    for tokens, peak in ((1, 5), (1025, 70), (2048, 60), (3, 10), (0, 90), (4, 8)):
        stats = {"reserved_bytes.all.peak": 100 - tokens, "allocated_bytes.all.peak": peak}
        progress.note_gpu_memory(stats, tokens)
    assert progress.beat.batch_peaks == {"1": 5, "4": 10, "2048": 70}
    assert progress.beat.memory == {"reserved_bytes": 100, "allocated_bytes": 90}
    progress.write()
    beat = read_beat(tmp_path / "beat.json")
    assert beat is not None
    assert beat.memory["resident_bytes"] > 1 << 20
    assert beat.memory == progress.beat.memory
