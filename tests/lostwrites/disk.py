"""A disk as POSIX promises it: what of the calls so far is sure to be there after a power cut, and
what may be.

The model, after ALICE (Pillai and others, OSDI 2014), with no more than fsync(2) and rename(2)
promise:

- A sync of a file makes its content durable, not its name. A sync of a folder makes the names in it durable, and
  nothing else: neither what the files hold, nor the folder's own name in the folder above.
- What was not synced may be there or not, each call by itself. Of the calls on one name in one folder, a later one is
  not there without the earlier ones. A rename within a folder is one step; one of a file from folder to folder is two,
  the new name first, so that a file may be seen under both names and never under neither.
- Of a file's writes that were not synced, any first part may be there; the size may be there without the data (which
  then reads as zeros), and the last write may be torn.

It is weaker than ext4, XFS or Btrfs as they are: on those, one sync makes more durable than it has
to.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from .recording import Call, Kind


@dataclass(slots=True)
class File:
    """A file, a folder or a symbolic link."""

    number: int
    """Its own: the kernel gives that of a removed file to the next."""
    inode: int
    kind: Kind
    """How it was made: CREATE, MKDIR or SYMLINK."""
    synced: bytes = b""
    pending: list[Call] = field(default_factory=list)
    """What was done to its content since the last sync."""
    names: dict[str, int] = field(default_factory=dict)
    """Of a folder: what is sure to be in it."""
    target: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A change of names that was not synced."""

    number: int
    folders: frozenset[int]
    """A sync of any of them makes it durable."""
    changes: tuple[tuple[int, str, int | None], ...]
    """(folder, name, what it is then; None = nothing)."""
    needs: frozenset[int]
    """Steps without which it is not there."""


class Disk:
    """The state after some calls: `files` with what is synced, `steps` and writes that are not."""

    def __init__(self) -> None:
        self.root = File(0, 0, Kind.MKDIR)
        self.files = {0: self.root}
        self.steps: dict[int, Step] = {}
        self._now: dict[int, dict[str, int]] = {0: {}}
        """What a process sees in each folder."""
        self._by_inode: dict[int, int] = {}
        self._last: dict[tuple[int, str], int] = {}
        """The newest step, durable or not, for each name."""
        self._count = 0

    def do(self, call: Call) -> None:
        """The next call; a sync is one that makes something durable."""
        match call.kind:
            case Kind.CREATE | Kind.MKDIR | Kind.SYMLINK:
                self._enter(call.path, self._new(call))
            case Kind.WRITE | Kind.TRUNCATE | Kind.ALLOCATE:
                if (file := self._file(call.inode)) is not None:
                    file.pending.append(call)
            case Kind.SYNC:
                self._sync(call)
            case Kind.LINK:
                self._enter(call.path, self.find(call.other))
            case Kind.UNLINK | Kind.RMDIR:
                folder, name = self._place(call.path)
                self._step({folder}, [(folder, name, None)])
            case Kind.RENAME:
                self._rename(call)

    def find(self, path: str) -> int:
        """The number of the file at the path, as a process sees it. Raises KeyError."""
        at = 0
        for name in path.split("/") if path else ():
            at = self._now[at][name]
        return at

    def content(self, file: File, way: str) -> bytes:
        """What the file may hold after a power cut; `way` is one of `ways_of`."""
        calls, data = file.pending, bytearray(file.synced)
        if way == "none":
            return bytes(data)
        if way.startswith("first"):
            calls = calls[: int(way[5:])]
        for number, call in enumerate(calls):
            torn = way == "torn" and number == len(calls) - 1
            _apply(data, call, zeros=way == "size", torn=torn)
        return bytes(data)

    def ways_of(self, file: File) -> list[str]:
        """In which ways its content may have survived; the first is the best, the last the worst."""
        if not file.pending:
            return ["all"]
        firsts = [f"first{number}" for number in range(1, len(file.pending))]
        return ["all", "size", "torn", *firsts[:: max(1, len(firsts) // 3)][:4], "none"]

    def with_needs(self, steps: Iterable[int]) -> frozenset[int]:
        """Those steps, and all without which they cannot be there."""
        found: set[int] = set()
        todo = list(steps)
        while todo:
            number = todo.pop()
            if number in self.steps and number not in found:
                found.add(number)
                todo += self.steps[number].needs
        return frozenset(found)

    def without(self, steps: Collection[int]) -> frozenset[int]:
        """All steps but those, and those that need them."""
        gone = set(steps)
        for number in sorted(self.steps):  # whatever a step needs is older
            if self.steps[number].needs & gone:
                gone.add(number)
        return frozenset(self.steps.keys() - gone)

    def tree(self, steps: Collection[int]) -> dict[str, File]:
        """Everything by its path, parents first, if of the steps only these are there."""
        names = {
            number: dict(file.names)
            for number, file in self.files.items()
            if file.kind is Kind.MKDIR
        }
        for number in sorted(steps):
            for folder, name, what in self.steps[number].changes:
                if what is None:
                    names[folder].pop(name, None)
                else:
                    names[folder][name] = what
        found: dict[str, File] = {}
        todo = [("", 0)]
        while todo:
            path, number = todo.pop()
            for name, what in sorted(names[number].items()):
                below = f"{path}/{name}" if path else name
                found[below] = self.files[what]
                if self.files[what].kind is Kind.MKDIR:
                    todo.append((below, what))
        return found

    # --- calls

    def _new(self, call: Call) -> int:
        self._count += 1
        self.files[self._count] = File(self._count, call.inode, call.kind, target=call.other)
        if call.kind is Kind.MKDIR:
            self._now[self._count] = {}
        self._by_inode[call.inode] = self._count
        return self._count

    def _file(self, inode: int) -> File | None:
        number = self._by_inode.get(inode)
        return self.files[number] if number is not None else None

    def _place(self, path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        return self.find(folder), name

    def _enter(self, path: str, what: int) -> None:
        folder, name = self._place(path)
        self._step({folder}, [(folder, name, what)])

    def _rename(self, call: Call) -> None:
        (here, old), (there, new) = self._place(call.path), self._place(call.other)
        what = self._now[here][old]
        if here == there or self.files[what].kind is Kind.MKDIR:
            self._step({here, there}, [(here, old, None), (there, new, what)])
            return
        self._step({there}, [(there, new, what)])
        self._step({here}, [(here, old, None)], also={self._last[there, new]})

    def _step(
        self,
        folders: set[int],
        changes: list[tuple[int, str, int | None]],
        also: Collection[int] = (),
    ) -> None:
        self._count += 1
        needs = {
            self._last[folder, name] for folder, name, _ in changes if (folder, name) in self._last
        }
        self.steps[self._count] = Step(
            self._count,
            frozenset(folders),
            tuple(changes),
            frozenset(needs.union(also).intersection(self.steps)),
        )
        for folder, name, what in changes:
            self._last[folder, name] = self._count
            if what is None:
                self._now[folder].pop(name, None)
            else:
                self._now[folder][name] = what

    def _sync(self, call: Call) -> None:
        number = (
            self.find(call.path) if call.path == "" or call.inode not in self._by_inode else None
        )
        file = self.files[number] if number is not None else self._file(call.inode)
        assert file is not None
        if file.kind is not Kind.MKDIR:
            file.synced, file.pending = self.content(file, "all"), []
            return
        durable = self.with_needs(
            each.number for each in self.steps.values() if file.number in each.folders
        )
        for step in sorted(durable):
            for folder, name, what in self.steps.pop(step).changes:
                if what is None:
                    self.files[folder].names.pop(name, None)
                else:
                    self.files[folder].names[name] = what
        for left in self.steps.values():
            if left.needs & durable:
                self.steps[left.number] = Step(
                    left.number, left.folders, left.changes, left.needs - durable
                )


def _apply(data: bytearray, call: Call, *, zeros: bool, torn: bool) -> None:
    if call.kind is Kind.ALLOCATE:
        data.extend(bytes(max(0, call.offset - len(data))))
    elif call.kind is Kind.TRUNCATE:
        del data[call.offset :]
        data.extend(bytes(call.offset - len(data)))
    else:
        given = call.data[: len(call.data) // 2] if torn else call.data
        end = call.offset + len(given)
        before = len(data)
        data.extend(bytes(max(0, end - before)))
        if not zeros:
            data[call.offset : end] = given
