"""How long the run has waited, by a clock that the test sets."""

import math

from chunkvisor.decide.waits import Waits
from chunkvisor_worker.contract.exits import Outcome

GPU, OTHER_GPU, DISK = (Outcome.GPU_BUSY, 0), (Outcome.GPU_BUSY, 1), (Outcome.DISK_FULL, None)


def test_a_spell_is_wall_time() -> None:
    """Eight workers that meet a full disk in the same second wait as long as one does."""
    waits = Waits()
    assert waits.without_success_s(DISK, 100) == 0
    for worker in range(8):
        waits.wait(DISK, 100 + worker / 10)
    assert waits.spell_s(DISK, 105) == waits.without_success_s(DISK, 105) == 5


def test_devices_wait_apart() -> None:
    """What one device waits for says nothing of another."""
    waits = Waits()
    waits.wait(GPU, 100)
    assert waits.spell_s(OTHER_GPU, 160) == 0
    waits.free(1)
    assert waits.spell_s(GPU, 160) == 60
    waits.free(0)
    assert waits.spell_s(GPU, 160) == 0


def test_success_elsewhere_makes_the_wait_cost_nothing() -> None:
    """A GPU that others hold is waited for as long as the other GPUs get on; the spell itself goes on."""
    waits = Waits()
    waits.wait(GPU, 100)
    waits.wait(DISK, 100)
    waits.succeeded(150)
    assert waits.without_success_s(GPU, 160) == 10
    assert waits.spell_s(GPU, 160) == 60
    assert waits.spell_s(DISK, 160) == 0


def test_a_wait_in_vain_is_not_repeated() -> None:
    """After it the next one has been waited for already, on that device alone."""
    waits = Waits()
    waits.wait(GPU, 100)
    waits.in_vain(GPU)
    waits.free(0)
    assert waits.without_success_s(GPU, 800) == math.inf
    assert waits.without_success_s(OTHER_GPU, 800) == 0
