"""What out-of-memory faults teach about batches, and when it is doubted."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor.decide.lessons import STREAK, Lesson, apply, confirm, learn, smaller
from chunkvisor.decide.verdict import Verdict
from chunkvisor.store.lessons import LessonFile
from chunkvisor.supervise.instructions import SaveLessons
from chunkvisor.supervise.lessonbook import LessonBook
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, Tier
from simulator.disk import Output

FULL = Limits(32, 4096)


def oom(limits: Limits, batch_rows: int, batch_tokens: int = 0) -> Verdict:
    """A batch that did not fit."""
    return Verdict(Outcome.GPU_OOM, "why", limits=limits, batch_rows=batch_rows, batch_tokens=batch_tokens)


@pytest.mark.parametrize(
    ("limits", "batch_rows", "batch_tokens", "min_rows", "tier"),
    [
        (Limits(32), 32, 0, 1, Tier(0, 16)),
        (Limits(32), 0, 0, 1, Tier(0, 16)),
        (Limits(32), 4, 0, 1, Tier(0, 2)),
        (Limits(32), 99, 0, 1, Tier(0, 16)),
        (Limits(3), 3, 0, 1, Tier(0, 1)),
        (Limits(32), 12, 0, 8, Tier(0, 8)),
        (Limits(1), 1, 0, 1, None),
        (Limits(32), 1, 0, 1, None),
        (Limits(32), 8, 0, 8, None),
        (Limits(4), 4, 0, 8, None),
        (Limits(64, 4096), 0, 0, 1, Tier(0, 32, 2048)),
        (Limits(64, 4096), 2, 3000, 1, Tier(1024, 1, 1500)),
        (Limits(64, 4096), 8, 4096, 1, Tier(512, 4, 2048)),
        (Limits(64, 4096), 2, 9000, 1, Tier(4096, 1, 4500)),
        (Limits(64, None), 8, 4096, 1, Tier(512, 4)),
        (Limits(64, 4096, (Tier(512, 4, 2048),)), 4, 2048, 1, Tier(512, 2, 1024)),
        (Limits(64, 4096, (Tier(512, 1, 512),)), 1, 512, 1, None),
        (Limits(2, 1), 2, 1, 1, Tier(0, 1, 1)),
    ],
)
def test_smaller_batch(limits: Limits, batch_rows: int, batch_tokens: int, min_rows: int, tier: Tier | None) -> None:
    """The batch that failed is halved for texts as long as its longest; None where nothing is left to halve."""
    assert smaller(oom(limits, batch_rows, batch_tokens), min_rows) == tier


@given(st.integers(1, 10**9), st.one_of(st.none(), st.integers(1, 10**9)), st.integers(1, 10**5), st.integers(1, 64))
def test_halving_comes_to_an_end(rows: int, tokens: int | None, length: int, min_rows: int) -> None:
    """However large the batch, some thirty faults bring it to the smallest; each step makes that very batch smaller."""
    limits, lessons = Limits(rows, tokens), tuple[Lesson, ...]()
    for _ in range(40):
        batch_rows, batch_tokens = limits.of_length(length)
        batch_rows = min(batch_rows, max(1, (batch_tokens or batch_rows * length) // length))
        tier = smaller(oom(limits, batch_rows, batch_rows * length), min_rows)
        if tier is None:
            break
        lessons = learn(lessons, tier)
        limits = apply(Limits(rows, tokens), lessons)
        assert limits.of_length(length)[0] < batch_rows
    assert batch_rows <= max(min_rows, 1)


@given(st.integers(2, 10**4), st.integers(1, 64), st.integers(1, 10**4))
def test_short_texts_keep_their_size(length: int, batch_rows: int, other: int) -> None:
    """A lesson from long texts holds for texts half as long and longer at most, never for shorter ones."""
    tier = smaller(oom(FULL, batch_rows, batch_rows * length), 1)
    if tier is None:
        return
    limits = apply(FULL, learn((), tier))
    assert limits.of_length(length)[0] < min(batch_rows, 32) + 1
    assert limits.of_length(length)[0] <= max(1, batch_rows // 2)
    if other <= length // 2:
        assert limits.of_length(other) == FULL.of_length(other)


def confirmed(lessons: tuple[Lesson, ...], times: int, full: Limits = FULL) -> tuple[Lesson, ...]:
    """The lessons after so many committed chunks."""
    for _ in range(times):
        lessons = confirm(lessons, full)
    return lessons


def test_lesson_is_doubted_after_a_streak() -> None:
    """After a streak of successes twice the size is tried; before that nothing changes."""
    lessons = learn((), Tier(512, 4, 1024))
    assert confirmed(lessons, STREAK - 1)[0].tier == Tier(512, 4, 1024)
    (doubted,) = confirmed(lessons, STREAK)
    assert (doubted.tier, doubted.doubted, doubted.successes) == (Tier(512, 8, 2048), True, 0)


def test_wrong_doubt_doubles_the_streak() -> None:
    """Each doubt that ends in an out-of-memory fault makes the next one wait twice as long."""
    lessons = learn((), Tier(512, 4, 1024))
    for needed in (STREAK, 2 * STREAK, 4 * STREAK):
        assert lessons[0].needed == needed
        assert confirmed(lessons, needed - 1)[0].tier == Tier(512, 4, 1024)
        lessons = confirmed(lessons, needed)
        assert lessons[0].tier == Tier(512, 8, 2048)
        lessons = learn(lessons, Tier(512, 4, 1024))


def test_doubt_at_the_full_size_counts_as_well() -> None:
    """A lesson of half the config's size is doubted at the full size; where that is wrong, the streak doubles too."""
    lessons = learn((), Tier(0, 16, 2048))
    lessons = confirmed(lessons, STREAK)
    assert apply(FULL, lessons).of_length(100) == FULL.of_length(100)
    lessons = learn(lessons, Tier(0, 16, 2048))
    assert lessons[0].needed == 2 * STREAK


def test_lesson_that_is_overcome_is_forgotten() -> None:
    """One more streak at the full size, and nothing is left of the lesson."""
    lessons = learn((), Tier(0, 16, 2048))
    assert confirmed(lessons, 2 * STREAK - 1)
    assert confirmed(lessons, 2 * STREAK) == ()


@pytest.mark.parametrize(
    ("old", "new", "tiers"),
    [
        ([], Tier(64, 8), [Tier(64, 8)]),
        ([Tier(64, 8)], Tier(64, 4), [Tier(64, 4)]),
        ([Tier(512, 8)], Tier(64, 4), [Tier(64, 4)]),
        ([Tier(512, 2)], Tier(64, 4), [Tier(512, 2), Tier(64, 4)]),
        ([Tier(64, 8)], Tier(512, 4), [Tier(64, 8), Tier(512, 4)]),
        ([Tier(512, 4, 2048)], Tier(64, 4, 1024), [Tier(64, 4, 1024)]),
        ([Tier(512, 4, 512)], Tier(64, 4, 1024), [Tier(512, 4, 512), Tier(64, 4, 1024)]),
    ],
)
def test_lessons_do_not_pile_up(old: list[Tier], new: Tier, tiers: list[Tier]) -> None:
    """A lesson replaces the one of the same lengths, and those of longer texts that ask for no less."""
    assert [lesson.tier for lesson in learn(tuple(map(Lesson, old)), new)] == tiers


class Run:
    """The lessons of one run: what the scheduler knows, and the file in which the driver keeps it."""

    def __init__(self, path: Path, model: str = "model") -> None:
        self._file = LessonFile(path, model)
        self._book = LessonBook(self._file, [Output("out", FULL, [(0, 1)])])
        self.saved: list[SaveLessons] = []

    def limits(self, kind: str = "gpu", alone: Tier | None = None) -> Limits:
        """Those of the config, narrowed by the lessons of the kind of device."""
        return self._book.limits(FULL, kind, alone)

    def learn(self, tier: Tier, kind: str = "gpu") -> None:
        """A batch did not fit."""
        self._keep(self._book.learn(kind, tier))

    def confirm(self) -> None:
        """A chunk was committed."""
        self._keep(self._book.confirm("gpu"))

    def _keep(self, save: SaveLessons | None) -> None:
        if save is not None:
            self.saved.append(save)
            self._file.save(save.kind, save.lessons)


def run_chunks(run: Run, chunks: int, fits: Callable[[int], int], lengths: tuple[int, ...]) -> int:
    """Work through chunks as the loop does; how many attempts ran out of memory.

    A chunk has batches of every length; `fits(length)` rows of it fit into the memory.
    """
    wasted = 0
    for _ in range(chunks):
        while True:
            limits = run.limits()
            batches = []
            for length in lengths:
                rows, tokens = limits.of_length(length)
                batches.append((min(rows, max(1, (tokens or rows * length) // length)), length))
            failed = next(((rows, length) for rows, length in batches if rows > fits(length)), None)
            if failed is None:
                break
            wasted += 1
            tier = smaller(oom(limits, failed[0], failed[0] * failed[1]), 1)
            assert tier is not None
            run.learn(tier)
        run.confirm()
    return wasted


def test_an_eighth_of_the_batch_wastes_four_attempts_at_most(tmp_path: Path) -> None:
    """Where an eighth of the configured batch fits, 50 chunks waste four attempts, and none after a resume."""
    path = tmp_path / "lessons.json"
    wasted = run_chunks(Run(path), 50, lambda length: 4, (100,))
    print(f"attempts that ran out of memory: {wasted} in 50 chunks")
    assert wasted <= 4
    assert run_chunks(Run(path), STREAK - 1, lambda length: 4, (100,)) == 0


def test_doubts_become_rare(tmp_path: Path) -> None:
    """In 2,000 chunks a wrong lesson is doubted some six times: streaks double, after a resume as well."""
    path = tmp_path / "lessons.json"
    first = run_chunks(Run(path), 1000, lambda length: 16, (100,))
    second = run_chunks(Run(path), 1000, lambda length: 16, (100,))
    assert first <= 1 + 5
    assert second <= 2


def test_mixed_lengths(tmp_path: Path) -> None:
    """Long texts that do not fit leave the batches of short ones alone."""
    run = Run(tmp_path / "lessons.json")
    assert run_chunks(run, 20, lambda length: 1000 // length if length > 64 else 10**6, (20, 100, 1000)) <= 6
    assert run.limits().of_length(20) == FULL.of_length(20)
    assert run.limits().of_length(100)[0] == 8


def test_lesson_of_one_try_is_not_written_down(tmp_path: Path) -> None:
    """Limits for one try alone narrow that try, and nothing else."""
    run = Run(tmp_path / "lessons.json")
    assert run.limits(alone=Tier(0, 2)).of_length(9) == (2, 4096)
    assert run.limits() == FULL
    assert not (tmp_path / "lessons.json").exists()


def test_lessons_of_another_model_stay(tmp_path: Path) -> None:
    """Each model and kind of device has its own lessons, in one file."""
    path = tmp_path / "lessons.json"
    Run(path, "a").learn(Tier(0, 4))
    Run(path, "b").learn(Tier(0, 8))
    assert Run(path, "a").limits().of_length(1)[0] == 4
    assert Run(path, "b").limits().of_length(1)[0] == 8
    assert Run(path, "c").limits() == FULL


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"gpu|model": [{"tier": 5}]}', b"\xff"])
def test_damaged_book_is_empty(tmp_path: Path, content: bytes) -> None:
    """What cannot be read costs the lessons, and can be written anew."""
    path = tmp_path / "lessons.json"
    path.write_bytes(content)
    run = Run(path)
    assert run.limits() == FULL
    run.learn(Tier(0, 4))
    assert Run(path).limits().of_length(1)[0] == 4


def test_unwritable_book_still_teaches(tmp_path: Path) -> None:
    """On a full or failing disk the run itself keeps its lessons in mind."""
    run = Run(tmp_path / "no folder" / "lessons.json")
    run.learn(Tier(0, 4))
    assert run.limits().of_length(1)[0] == 4
    assert [(each.changed, each.doubted) for each in run.saved] == [(Tier(0, 4), False)]


def test_what_a_slower_worker_pays_for_teaches_nothing(tmp_path: Path) -> None:
    """A limit that is no narrower than what is known of the same lengths changes nothing, and nothing is written."""
    run = Run(tmp_path / "lessons.json")
    run.learn(Tier(64, 4, 512))
    for late in (Tier(64, 4, 512), Tier(64, 8, 1024), Tier(64, 8, None)):
        run.learn(late)
    assert len(run.saved) == 1
    run.learn(Tier(64, 2, 512))
    assert run.limits().of_length(64)[0] == 2


def test_book_is_plain_json(tmp_path: Path) -> None:
    """A person can read what was learnt."""
    Run(tmp_path / "lessons.json").learn(Tier(64, 4, 512))
    content = json.loads((tmp_path / "lessons.json").read_text())
    assert content["gpu|model"][0]["tier"] == {"min_length": 64, "rows": 4, "tokens": 512}


def test_each_kind_of_device_has_its_own_lessons(tmp_path: Path) -> None:
    """What a small GPU cannot hold does not narrow the batches of a large one, in this run and in the next."""
    run = Run(tmp_path / "lessons.json")
    run.learn(Tier(0, 2), "small 8 GiB")
    for each in (run, Run(tmp_path / "lessons.json")):
        assert each.limits("small 8 GiB").of_length(1)[0] == 2
        assert each.limits("large 80 GiB") == FULL
