"""Any damage to any file of a workdir in any state, by chance: right vectors, or a refusal in
words.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from damaged import (
    LAST,
    assert_harmless,
    complete,
    empty,
    files_of,
    flip,
    flip_in_place,
    kept,
    truncate,
    unfinished,
    unjudged,
)

DAMAGES: list[Callable[[Path], None]] = [truncate, empty, flip, flip_in_place, Path.unlink]
IDENTITY = Path(".chunkvisor/outputs/out/0001/identity.json")


def test_any_files_damaged(tmp_path: Path, chance: random.Random) -> None:
    """Of one file, or of some, only where the identity is among them does a run refuse to go on."""
    state = chance.choice([unfinished, unjudged, complete, kept])
    made = state(tmp_path / "made")
    files = files_of(made.workdir)
    for number in range(8):
        names = chance.sample(files, min(len(files), chance.choice([1, 1, 1, 2, 3])))
        damages = [chance.choice(DAMAGES) for _ in names]
        place = made.copy(tmp_path / str(number))
        if state is unfinished:
            place.lift(LAST)
        for name, damage in zip(names, damages, strict=True):
            damage(place.workdir / name)
        ended = place.run_here()
        what = (state, list(zip(names, damages, strict=True)))
        if (
            ended.returncode == 75
        ):  # the staged texts are read without a look at each: the next run knows
            assert any("table" in name.parts for name in names), what
            ended = place.run_here()
        assert_harmless(place, ended, what)
        assert ended.returncode == 0 or IDENTITY in names, what
        shutil.rmtree(place.folder)
