"""The test of the test: every sync in the code, taken out in turn, has to be noticed.

A sync that is taken out is one whose records are passed over: the same calls, and more that a power cut may undo.
"""

import ast
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .crashes import Crash, Crashes
from .judge import Judge, Judgement
from .recording import Call, Kind, Recording
from .scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]
_SYNCS = frozenset({"fsync", "fdatasync", "sync_folder", "make_folder", "make_folders"})


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the code where something is synced."""

    path: str
    """Such as chunkvisor/store/ledger.py."""
    function: str
    first: int
    last: int
    """Lines of the call."""
    what: str
    """The function that is called."""
    number: int = 1
    """Which of these calls of the function that it stands in."""

    def __str__(self) -> str:
        return f"{self.path} {self.function} {self.what}" + (f" {self.number}" if self.number > 1 else "")

    def called(self, call: Call) -> bool:
        """Whether that sync would not be there without this line."""
        return any(self._has(line) for line in call.lines)

    def _has(self, line: str) -> bool:
        path, _, number = line.rpartition(":")
        return path == self.path and self.first <= int(number) <= self.last


@dataclass(frozen=True, slots=True)
class Found:
    """What came of taking a sync out."""

    site: Site
    scenario: str = ""
    """In which it was noticed; empty where it was not."""
    tried: int = 0
    """Folders until then."""
    judgement: Judgement | None = None


def sites() -> list[Site]:
    """All of them, by file and line."""
    found: list[Site] = []
    for package in (ROOT / "supervisor" / "chunkvisor", ROOT / "worker" / "chunkvisor_worker"):
        for path in sorted(package.rglob("*.py")):
            found += _sites_in(f"{package.name}/{path.relative_to(package)}", ast.parse(path.read_text()), "")
    counts = Counter[str]()
    for number, site in enumerate(found):
        counts[str(site)] += 1
        found[number] = replace(site, number=counts[str(site)])
    return found


def _sites_in(path: str, node: ast.AST, function: str) -> Iterator[Site]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and (what := _sync_of(child)):
            yield Site(path, function, child.lineno, child.end_lineno or child.lineno, what)
        name = child.name if isinstance(child, ast.FunctionDef | ast.ClassDef) else ""
        yield from _sites_in(path, child, f"{function}.{name}".lstrip(".") if name else function)


def _sync_of(call: ast.Call) -> str:
    """The name of the sync that it calls, itself or in another thread."""
    if any(word.arg == "durable" and ast.unparse(word.value) == "False" for word in call.keywords):
        return ""
    for each in (call.func, *call.args):
        name = each.attr if isinstance(each, ast.Attribute) else each.id if isinstance(each, ast.Name) else ""
        if name in _SYNCS:
            return name
    return ""


def take_out(site: Site, recordings: Mapping[str, Recording], chance: random.Random, most: int = 60) -> Found:
    """Whether anybody notices that the sync is missing."""
    tried = 0
    for name, recording in recordings.items():
        if not any(call.kind is Kind.SYNC and site.called(call) for call in recording.calls):
            continue
        crashes = list(Crashes(recording, chance, site.called).newly_possible())
        chance.shuffle(crashes)
        crashes.sort(key=_rank)
        with Judge(SCENARIOS[name], recording) as judge:
            for crash in crashes[:most]:
                tried += 1
                judgement = judge.judge(crash)
                if judgement.problems:
                    return Found(site, name, tried, judgement)
    return Found(site, tried=tried)


def _rank(crash: Crash) -> int:
    order = ("the names of", "content, size", "content, none", "content, torn", "all")
    return next((number for number, words in enumerate(order) if crash.what.startswith(words)), len(order))


def record_all(folder: Path, names: Collection[str]) -> dict[str, Recording]:
    """The recordings of the scenarios of these names, the short ones first; of none, those of all."""
    found = {name: SCENARIOS[name].record(folder / str(number)) for number, name in enumerate(names or SCENARIOS)}
    return dict(sorted(found.items(), key=lambda each: len(each[1].calls)))


MISSED_IN: dict[str, str] = {
    "chunkvisor/sources/stage.py stage fsync": "plain",
    "chunkvisor/commands/onefile.py _move sync_folder": "one file",
    "chunkvisor/commands/onefile.py _move sync_folder 2": "one file",
    "chunkvisor/api.py _workdir make_folders": "python",
    "chunkvisor/sources/given.py write_texts fsync": "python",
    "chunkvisor/assemble/before.py keep_before make_folder": "from scratch",
    "chunkvisor/assemble/before.py switch make_folder": "from scratch",
    "chunkvisor/assemble/before.py keep_before sync_folder": "from scratch",
    "chunkvisor/assemble/checkedfile.py CheckedFile._sync_once fsync": "python",
    "chunkvisor/assemble/writer.py FinalWriter.publish sync_folder": "shards",
    "chunkvisor/commands/housekeeping.py _reopen sync_folder": "retry",
    "chunkvisor/commands/housekeeping.py _reopen_committed sync_folder": "retry",
    "chunkvisor/commands/housekeeping.py _reopen_committed sync_folder 2": "retry",
    "chunkvisor/commands/onefile.py encode make_folders 2": "one file",
    "chunkvisor/store/identity.py make_state make_folder": "plain",
    "chunkvisor/store/ledger.py Ledger.load make_folder": "update",
    "chunkvisor/store/ledger.py Ledger.commit make_folder": "plain",
    "chunkvisor/store/ledger.py Ledger.commit fsync": "plain",
    "chunkvisor/store/ledger.py Ledger.commit sync_folder": "plain",
    "chunkvisor/store/workdir.py claim make_folders": "plain",
    "chunkvisor/store/workdir.py mark sync_folder": "plain",
    "chunkvisor/store/ledger.py Parts._make_folder make_folder": "retry",
    "chunkvisor/store/ledger.py write_quarantine make_folder": "retry",
    "chunkvisor/commands/onefile.py encode make_folders": "one file",
    "chunkvisor/assemble/writer.py FinalWriter.publish sync_folder 2": "update in shards",
    "chunkvisor/reuse.py Planner.plan fsync": "update before there is a final",
    "chunkvisor/store/ledger.py Parts.add fsync": "retry",
    "chunkvisor/store/ledger.py Parts.add sync_folder": "retry",
    "chunkvisor_worker/contract/files.py sync_folder fsync": "plain",
    "chunkvisor_worker/contract/files.py make_folders sync_folder": "plain",
    "chunkvisor_worker/contract/files.py make_folder sync_folder": "plain",
    "chunkvisor_worker/contract/files.py write_blocks fsync": "plain",
    "chunkvisor_worker/contract/files.py write_blocks sync_folder": "plain",
}
"""Syncs of the code, and the scenario in which each was seen to be missed when it was taken out."""

IN_NO_SCENARIO = {
    "chunkvisor/store/attempt.py take_cut fsync",
    "chunkvisor/store/attempt.py take_cut sync_folder",
}
"""Syncs of what the plug-ins of the scenarios do not do: they cut no texts."""
