"""What the beat says of the time before the first batch."""

from pathlib import Path

import numpy as np

from chunkvisor_worker.contract.messages import Beat, Phase
from chunkvisor_worker.contract.wire import from_json, read_beat
from chunkvisor_worker.progress import BeatWriter


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


def test_a_beat_of_an_earlier_release_is_read() -> None:
    """Without the field it is 0."""
    beat = from_json(Beat, '{"seq": 1, "pid": 2, "phase": "forward"}')
    assert beat is not None
    assert beat.opening_s == 0.0


def test_a_phase_that_goes_on_is_not_written_again(tmp_path: Path) -> None:
    """Its time adds up all the same; the next phase is written at once."""
    progress = BeatWriter(tmp_path / "beat.json")
    for phase in (Phase.IMPORT, Phase.IMPORT, Phase.TOKENIZE):
        progress.phase(phase)

    beat = read_beat(tmp_path / "beat.json")
    assert beat is not None
    assert (beat.seq, beat.phase) == (2, Phase.TOKENIZE)
    assert set(progress.phase_s) == {"start", "import"}
