"""Runs that are killed at any call that touches the disk, by chance, and come out right all the
same.
"""

import random
from pathlib import Path

from harness import sweep
from killed import assert_whole, eventful

CALLS = (
    *(
        "chunkvisor.events.journal:Journal.write",
        "os:replace",
        "os:rename",
        "os:fsync",
        "os:rmdir",
        "os:unlink",
    ),
    *("os:mkdir", "os:ftruncate", "os:write"),
)


def test_killed_once(tmp_path: Path, chance: random.Random) -> None:
    """Before or after any such call: the next run completes, and the bytes are right."""
    template, calls = eventful(tmp_path / "template").folder, chance.sample(CALLS, 3)
    when, share = chance.choice(["before", "after"]), f"6:{chance.randrange(1 << 32)}"
    told = sweep("each", when, template, tmp_path / "each", *calls, share=share, most=10)
    for line in told:
        assert line["returncode"] == 0, line
        assert "Traceback" not in line["stderr"], line
        assert_whole(Path(line["folder"]))


def test_killed_again_and_again(tmp_path: Path, chance: random.Random) -> None:
    """At one such call after another, in the same folder, until a run comes to its end."""
    template = eventful(tmp_path / "template").folder
    when, share = chance.choice(["before", "after"]), f"5:{chance.randrange(1 << 32)}"
    told = sweep("chain", when, template, tmp_path / "chain", *CALLS, share=share, most=25)
    assert told[-1]["returncode"] == 0, told[-1]
    assert not [line for line in told if "Traceback" in line["stderr"]]
    assert_whole(Path(told[-1]["folder"]))
