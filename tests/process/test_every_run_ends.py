"""Every run ends: by its texts, where one of them is the cause, or by a code and a remedy; workers
really die.
"""

import shutil

import pytest

from harness import Workplace, finish, wait_for

TEXTS = [f"text {number}" for number in range(60)]
BAD = 27

DEEDS = (
    "exit 120",
    "signal 7",
    "signal 15",
    "quote GPU has fallen off the bus",
    # What is known (the device, the phase, free space) outweighs what is said.
    "say GPU has fallen off the bus",
    "print CUDA error: uncorrectable ECC error encountered",
    "print OSError: [Errno 28] No space left on device",
)


@pytest.mark.parametrize("deed", DEEDS)
def test_a_text_that_ends_its_worker_is_found(workplace: Workplace, deed: str) -> None:
    """However it does so, it alone is quarantined, its neighbors have their vectors, and it costs
    few attempts.
    """
    texts = [*TEXTS[:BAD], f"do {deed}", *TEXTS[BAD + 1 :]]
    workplace.prepare(texts, "deadly:make", chunk__size=20, encode__batch_size=8)

    workplace.gives(texts, bad=[BAD])
    assert sum(workplace.status()["attempts"].values()) <= 15


@pytest.mark.parametrize("removed", [False, True], ids=["moved", "removed"])
@pytest.mark.parametrize("when", ["reading", "encoding"])
def test_a_workdir_that_is_moved_or_removed_ends_the_run(
    workplace: Workplace, when: str, removed: bool
) -> None:
    """The last lines say that, and neither that the machine is set up wrongly nor that there is a
    bug; 74.
    """
    workplace.prepare(TEXTS, "waiting:make", model__kwargs={"chunk": 2})
    run = workplace.begin()
    if when == "reading":
        wait_for(lambda: any(workplace.workdir.rglob("ingest.log")))
    else:
        wait_for((workplace.folder / "waiting").exists)

    elsewhere = workplace.folder / "elsewhere"
    workplace.workdir.rename(elsewhere)
    if removed:
        shutil.rmtree(elsewhere)
    (workplace.folder / "waiting").touch()
    workplace.release()
    ended = finish(run, code=74)
    assert f"{workplace.workdir} was moved or removed while the run worked in it" in ended.stderr
    if removed:
        return
    elsewhere.rename(workplace.workdir)
    workplace.gives(TEXTS)
