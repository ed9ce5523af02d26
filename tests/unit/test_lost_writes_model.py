"""The disk of tests/lostwrites: what may be there after a power cut."""

import itertools

import pytest

from lostwrites.disk import Disk
from lostwrites.recording import Call, Kind

CREATE_A = [Call(Kind.CREATE, 1, "a"), Call(Kind.WRITE, 1, "a", data=b"new!")]
SYNC_A = [Call(Kind.SYNC, 1, "a")]
SYNC_ROOT = [Call(Kind.SYNC, 9, "")]
OLD_B = [Call(Kind.CREATE, 2, "b"), Call(Kind.WRITE, 2, "b", data=b"old!"), Call(Kind.SYNC, 2, "b"), *SYNC_ROOT]
FOLDER = [Call(Kind.MKDIR, 3, "d")]

Seen = tuple[tuple[str, bytes], ...]


def possible(calls: list[Call]) -> set[Seen]:
    """Everything that may be there after the calls and a power cut: (path, content) of all files."""
    disk = Disk()
    for call in calls:
        disk.do(call)
    found = set()
    subsets = (itertools.combinations(disk.steps, size) for size in range(len(disk.steps) + 1))
    for steps in itertools.chain.from_iterable(subsets):
        tree = disk.tree(disk.with_needs(steps))
        files = {path: file for path, file in tree.items() if file.kind is Kind.CREATE}
        for ways in itertools.product(*(disk.ways_of(file) for file in files.values())):
            contents = (disk.content(file, way) for file, way in zip(files.values(), ways, strict=True))
            found.add(tuple(zip(files, contents, strict=True)))
    return found


HISTORIES: dict[str, tuple[list[Call], set[Seen]]] = {
    "nothing is synced": (CREATE_A, {(), *(((("a", data),)) for data in (b"", b"ne", b"\0\0\0\0", b"new!"))}),
    "the file is synced, its name is not": (CREATE_A + SYNC_A, {(), (("a", b"new!"),)}),
    "the name is synced, the file is not": (
        CREATE_A + SYNC_ROOT,
        {(("a", data),) for data in (b"", b"ne", b"\0\0\0\0", b"new!")},
    ),
    "a file in a folder whose name is not synced": (
        [*FOLDER, Call(Kind.CREATE, 1, "d/a"), Call(Kind.SYNC, 1, "d/a"), Call(Kind.SYNC, 3, "d")],
        {(), (("d/a", b""),)},
    ),
    "a synced file takes the place of another": (
        OLD_B + CREATE_A + SYNC_A + [Call(Kind.RENAME, 1, "a", "b")],
        {(("b", b"old!"),), (("a", b"new!"), ("b", b"old!")), (("b", b"new!"),)},
    ),
    "the same, and the folder is synced": (
        OLD_B + CREATE_A + SYNC_A + [Call(Kind.RENAME, 1, "a", "b")] + SYNC_ROOT,
        {(("b", b"new!"),)},
    ),
    "from folder to folder it may be seen twice, and never not at all": (
        CREATE_A + SYNC_A + FOLDER + SYNC_ROOT + [Call(Kind.RENAME, 1, "a", "d/a")],
        {(("a", b"new!"),), (("d/a", b"new!"),), (("a", b"new!"), ("d/a", b"new!"))},
    ),
}


@pytest.mark.parametrize(("calls", "seen"), HISTORIES.values(), ids=HISTORIES.keys())
def test_what_is_possible(calls: list[Call], seen: set[Seen]) -> None:
    """Exactly these files and contents."""
    assert {tuple(sorted(each)) for each in possible(calls)} == {tuple(sorted(each)) for each in seen}
