"""The world that a life is played in, drawn from a seed: texts, devices, machines, disks, and what befalls them."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from chunkvisor.config.model import Config
from chunkvisor_worker.contract.messages import Limits

from .verdicts import Failure, asked, is_taken_apart

NEVER = float("inf")

Spell = tuple[float, float]
"""From and until, in seconds of the virtual clock; until `NEVER` for good."""


def within(spells: list[Spell], now_s: float) -> bool:
    """Whether one of them lasts."""
    return bool(spells) and any(start <= now_s < stop for start, stop in spells)


@dataclass(slots=True)
class Gpu:
    """A device, as it is; a machine that comes back brings the same ones under new numbers."""

    node: str
    kind: str
    tokens: int
    """Padded tokens of the largest batch that fits into its memory."""
    watched: bool = True
    """Whether NVML can tell about it."""
    fails_from_s: float = NEVER
    fails_as: Failure = Failure.NONE
    fails_at_start: bool = False
    """Whether it fails before the first batch."""
    hangs_from_s: float = NEVER
    """A worker on it cannot be killed any more."""
    busy: list[Spell] = field(default_factory=list)
    """Somebody else holds it all."""
    neighbours: list[Spell] = field(default_factory=list)
    """Somebody else holds half of its memory."""


@dataclass(slots=True)
class Outage:
    """A machine of the cluster that is lost."""

    node: str
    at_s: float
    back_s: float


@dataclass(slots=True)
class World:
    """All that is drawn before a life begins."""

    config: Config
    limits: Limits
    chunk_size: int
    lengths: list[list[int]]
    """Tokens of each text, by output."""
    poison: list[dict[int, Failure]]
    """What is wrong with texts, by output."""
    gpus: list[Gpu]
    outages: list[Outage] = field(default_factory=list)
    disk_full: list[Spell] = field(default_factory=list)
    host_oom: list[Spell] = field(default_factory=list)
    hub_down: list[Spell] = field(default_factory=list)
    chances: dict[str, float] = field(default_factory=dict)
    """Of small mishaps, each time that there is occasion for one."""
    deaths: list[int] = field(default_factory=list)
    """After how many instructions the supervisor dies."""
    stops: list[tuple[float, float]] = field(default_factory=list)
    """(when, seconds that what is under way may take): somebody ends the run, and begins it again later."""
    warm: bool = False
    """Whether first tries start from a template."""

    @property
    def nodes(self) -> list[str]:
        """Machines of the cluster; none of them where there is but our own."""
        return sorted({gpu.node for gpu in self.gpus} - {""})

    @property
    def calm_s(self) -> float:
        """When all that passes has passed."""
        spells = [*self.disk_full, *self.host_oom, *self.hub_down, *(s for gpu in self.gpus for s in gpu.busy)]
        spells += [s for gpu in self.gpus for s in gpu.neighbours]
        ends = [stop for _, stop in spells if stop != NEVER] + [out.back_s for out in self.outages]
        ends += [MISHAPS_S] if self.chances else []
        return max([*(end for end in ends if end != NEVER), *(at for at, _ in self.stops), 0.0])


MISHAPS_S = 300.0
"""No small mishap comes later."""

MISHAPS = ("transient", "early", "refused", "late exit", "damaged part", "damaged chunk", "adopted", "start fails")


@dataclass(frozen=True, slots=True)
class Size:
    """How large a life is."""

    chunks: int
    gpus: int
    chunk_size: int = 16
    cluster: float = 0.2
    """Chance of more than one machine."""


SIZES = {
    "small": Size(10, 3),
    "medium": Size(80, 12, cluster=0.5),
    "large": Size(3000, 1000, cluster=1.0),
}

_POISONS = [
    each
    for each in (
        Failure.SEGFAULT,
        Failure.ILLEGAL,
        Failure.RAISES,
        Failure.BAD_INPUT,
        Failure.NAN,
        Failure.HANG,
        Failure.DIMENSION,
    )
    if each is Failure.NAN or is_taken_apart(each)
]
"""Kinds of bad texts that the policy can find; the list grows with the policy."""


def draw(seed: int, size: str) -> World:
    """The world of a seed: mostly sound, with few sorts of trouble at a time."""
    chance, scale = random.Random(f"world {size} {seed}"), SIZES[size]
    world = _plain(chance, scale)
    troubles = [
        _poison, _breakage, _neighbours, _busy, _outages, _disk, _host, _hub, _deaths, _stops, _mishaps, _small_memory,
    ]  # fmt: skip
    for trouble in chance.sample(troubles, chance.choice((0, 1, 1, 2, 2, 3, 4, 6))):
        trouble(world, chance)
    return world


def _plain(chance: random.Random, scale: Size) -> World:
    per_device = chance.choice((1, 1, 1, 2, 3))
    config = asked(
        per_device=per_device,
        standby=chance.choice((0, 1, 1, 2)),
        attempts=chance.choice((1, 2, 3, 3, 3, 5)),
        min_batch=chance.choice((1, 1, 1, 2)),
        wait_timeout=chance.choice((20.0, 60.0, 200.0)),
        fail=chance.random() < 0.02,
        max_bad_rows=chance.choice((100, 100, 100, 2)),
    )
    rows = chance.choice((1, 4, 8, 32))
    limits = Limits(rows, chance.choice((None, None, 512)))
    longest = chance.choice((16, 100, 200))
    outputs = chance.choice((1, 1, 1, 2))
    chunk_size = chance.randint(1, scale.chunk_size)
    each = max(1, scale.chunks // outputs)
    lengths = [
        [chance.randint(1, longest) for _ in range(max(1, each * chunk_size - chance.randrange(chunk_size)))]
        for _ in range(outputs)
    ]
    count = scale.gpus if scale.gpus > 100 else chance.randint(1, scale.gpus)
    nodes = max(1, -(-count // 8)) if chance.random() < scale.cluster else 0
    nodes = max(nodes, 2) if nodes and count > 1 else nodes
    kinds = chance.choice((("a",), ("a",), ("a", "b")))
    memory = dict.fromkeys(kinds, 10**9)
    gpus = [
        Gpu(f"n{number * nodes // count}" if nodes else "", kind := chance.choice(kinds), memory[kind])
        for number in range(count)
    ]
    return World(config, limits, chunk_size, lengths, [{} for _ in lengths], gpus, warm=chance.random() < 0.5)


def _small_memory(world: World, chance: random.Random) -> None:
    longest = max(map(max, world.lengths))
    memory = {gpu.kind: longest * chance.choice((2, 3, 8, 20)) for gpu in world.gpus}
    for gpu in world.gpus:
        gpu.tokens = memory[gpu.kind]


def _poison(world: World, chance: random.Random) -> None:
    kinds = chance.sample(_POISONS, chance.choice((1, 1, 2)))
    number = chance.randrange(len(world.lengths))
    texts = len(world.lengths[number])
    how = chance.random()
    if how < 0.6:  # few
        bad = chance.sample(range(texts), min(texts, chance.choice((1, 1, 2, 3))))
    elif how < 0.9:  # a chunk full of them
        first = chance.randrange(texts)
        share = chance.random()
        bad = [text for text in range(first, min(texts, first + world.chunk_size)) if chance.random() < share]
    else:
        bad = list(range(texts))
    world.poison[number] = {text: chance.choice(kinds) for text in bad}


def _breakage(world: World, chance: random.Random) -> None:
    for gpu in chance.sample(world.gpus, chance.randint(1, max(1, len(world.gpus) // 2))):
        at_s = chance.choice((0.0, chance.uniform(0, 30)))
        if chance.random() < 0.1:
            gpu.hangs_from_s = at_s
        else:
            gpu.fails_from_s = at_s
            gpu.fails_as = chance.choice((Failure.ILLEGAL, Failure.SEGFAULT, Failure.GPU_LOST, Failure.HANG))
            gpu.fails_at_start = chance.random() < 0.4
            if gpu.fails_at_start and gpu.fails_as is Failure.ILLEGAL:
                gpu.fails_as = Failure.DOES_NOT_START
        gpu.watched = chance.random() < 0.5


def _neighbours(world: World, chance: random.Random) -> None:
    _small_memory(world, chance)
    for gpu in world.gpus:
        if chance.random() < 0.5:
            gpu.neighbours = [_spell(chance, NEVER if chance.random() < 0.3 else 150)]
            gpu.watched = chance.random() < 0.7


def _busy(world: World, chance: random.Random) -> None:
    for gpu in world.gpus:
        if chance.random() < 0.5:
            gpu.busy = [_spell(chance, NEVER if chance.random() < 0.1 else 150)]
            gpu.watched = chance.random() < 0.7


def _outages(world: World, chance: random.Random) -> None:
    for node in world.nodes:
        if chance.random() < 0.5:
            at_s = chance.uniform(0, 30)
            world.outages.append(Outage(node, at_s, at_s + chance.uniform(1, 60)))


def _disk(world: World, chance: random.Random) -> None:
    world.disk_full = [_spell(chance, NEVER if chance.random() < 0.2 else 150)]


def _host(world: World, chance: random.Random) -> None:
    world.host_oom = [_spell(chance, 20)]


def _hub(world: World, chance: random.Random) -> None:
    world.hub_down = [_spell(chance, 150)]


def _deaths(world: World, chance: random.Random) -> None:
    world.deaths = [int(2 ** chance.uniform(0, 9)) for _ in range(chance.choice((1, 2, 3, 8)))]


def _stops(world: World, chance: random.Random) -> None:
    at_s = 0.0
    for _ in range(chance.choice((1, 1, 2, 4))):
        at_s += chance.uniform(0, 20)
        world.stops.append((at_s, chance.choice((0.0, 0.0, NEVER, 2.0, 25.0))))


def _mishaps(world: World, chance: random.Random) -> None:
    for name in chance.sample(MISHAPS, chance.choice((1, 2, 4))):
        world.chances[name] = chance.choice((0.02, 0.1, 0.3))


def _spell(chance: random.Random, longest_s: float) -> Spell:
    start = chance.choice((0.0, chance.uniform(0, 30)))
    return start, NEVER if longest_s == NEVER else start + chance.uniform(1, longest_s)


def without(world: World, trouble: str) -> World:
    """The same world without one sort of trouble; for the shrinker."""
    match trouble:
        case "poison":
            return replace(world, poison=[{} for _ in world.poison])
        case "breakage":
            gpus = [replace(gpu, fails_from_s=NEVER, hangs_from_s=NEVER) for gpu in world.gpus]
            return replace(world, gpus=gpus)
        case "neighbours" | "busy":
            none: dict[str, Any] = {trouble: []}
            return replace(world, gpus=[replace(gpu, **none) for gpu in world.gpus])
        case "memory":
            return replace(world, gpus=[replace(gpu, tokens=10**9) for gpu in world.gpus])
        case "chances":
            return replace(world, chances={})
        case "second output":
            return replace(world, lengths=world.lengths[:1], poison=world.poison[:1])
        case "half the texts":
            kept = [texts[: max(1, len(texts) // 2)] for texts in world.lengths]
            bad = [
                {text: kind for text, kind in bad.items() if text < len(texts)}
                for texts, bad in zip(kept, world.poison, strict=True)
            ]
            return replace(world, lengths=kept, poison=bad)
        case "a device":
            return replace(world, gpus=world.gpus[:-1] or world.gpus)
        case _:
            nothing: dict[str, Any] = {trouble: []}
            return replace(world, **nothing)


TROUBLES = (
    "poison", "breakage", "neighbours", "busy", "memory", "chances", "outages", "disk_full", "host_oom", "hub_down",
    "deaths", "stops", "second output", "half the texts", "half the texts", "a device",
    "a device",
)  # fmt: skip
"""What the shrinker tries to leave out."""
