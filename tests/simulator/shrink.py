"""A crude shrinker: leaves troubles out of a failing world, one by one, as long as it fails in the same way."""

from .life import simulate
from .watchdog import Broken
from .world import TROUBLES, World, draw, without


def shrink(seed: int, size: str) -> tuple[World, list[str]]:
    """A smaller world that fails as that of the seed does, and what was left out of it."""
    world, left_out = draw(seed, size), []
    wanted = _failure(world, seed)
    for trouble in TROUBLES if wanted else ():
        smaller = without(world, trouble)
        if smaller != world and _failure(smaller, seed) == wanted:
            world = smaller
            left_out.append(trouble)
    return world, left_out


def _failure(world: World, seed: int) -> str | None:
    try:
        simulate(seed, world=world)
    except Broken as broken:
        return broken.invariant
    return None
