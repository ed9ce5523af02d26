"""Breaks one line of the source at a time, and says which tests notice: `make mutants`.

    python tests/mutants.py [--only WORD,WORD] [--storeys unit process] [--at-once 2]

Each mutant is tried in a copy of the working tree against the tests that concern it, the fast storey first. One that
no test notices has SURVIVED: a behaviour that nothing holds. One whose line is gone from the source is STALE, and wants
a new one. Exit code 0 only where none survives but those that are known to, and none is stale.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
STOREYS = ("unit", "simulator", "process")

CONCERN = {
    "policy": "policy histories poison_rows crash_matrix",
    "outcome": "outcome policy histories crash_matrix",
    "memory": "histories crash_matrix",
    "scheduler": "histories poison_rows crash_matrix",
    "bisect": "bisect histories poison_rows",
    "watch": "watch histories crash_matrix",
    "parts": "bisect parts poison_rows damage resume",
    "ledger": "ledger artifact resume poison_rows assemble damage verify_clean",
    "seal": "seal_stamp damage",
    "stamp": "seal_stamp damage verify_clean",
    "identity": "identity identity_refusal",
    "join": "assemble shards damage",
    "finalwriter": "assemble shards damage final_file resume",
    "checkedfile": "checkedfile disk",
}
"""Tests that concern a module, by the names of their files without `test_`, the fastest first."""

ALIASES = {"join": ("join", "assemble"), "policy": ("policy",)}
"""Modules that have had several names."""


@dataclass(frozen=True)
class Mutant:
    """One change of one place."""

    module: str
    """Name of its file, without .py."""
    old: str
    """Occurs once."""
    new: str
    known: str = ""
    """Why it may survive."""


M = Mutant
MUTANTS = (
    M(
        "policy",
        "    if tries >= budget.attempts:\n        # A fault",
        "    if tries > budget.attempts:\n        # A fault",
    ),
    M("policy", 'history.given_up + 1 >= LIMITS["given up"]', 'history.given_up >= LIMITS["given up"]'),
    M("policy", 'history.fruitless + 1 >= LIMITS["fruitless"]', 'history.fruitless >= LIMITS["fruitless"]'),
    M("policy", "history.canaries + 1 < LIMITS[why]", "history.canaries < LIMITS[why]"),
    M("policy", "else min(LOOKS, budget.attempts)", "else LOOKS"),
    M("policy", "proven = history.proven or refused", "proven = True"),
    M("policy", "verdict.smaller_batch_helps and verdict.phase is not Phase.TOKENIZE", "verdict.smaller_batch_helps"),
    M("policy", "return Retry(charge=False) if verdict.asked_for", "return Retry(charge=True) if verdict.asked_for"),
    M("policy", "history.worked and history.tries + 1 < budget.attempts", "history.worked"),
    M("policy", "if rows <= min_rows:", "if rows < min_rows:"),
    M("memory", "if self.confirms(what, where, began_s):", "if True:"),
    M("memory", "min(old.rows, lesson.rows)", "lesson.rows"),
    M("memory", "now_s - max(since_s, self.success_s), now_s", "now_s - since_s, now_s"),
    M(
        "scheduler",
        "                self._memory.stored(work.output, now_s)\n                self._got",
        "                self._got",
    ),
    M(
        "outcome",
        "if evidence.result is not None and evidence.vectors_problem is None:",
        "if code == 0 and evidence.result is not None and evidence.vectors_problem is None:",
    ),
    M("outcome", "evidence.oom_kills > 0", "evidence.oom_kills >= 0"),
    M("outcome", "free_bytes < NEARLY_FULL_BYTES", "free_bytes > NEARLY_FULL_BYTES"),
    M("outcome", "row_can_cause=of_texts", "row_can_cause=True"),
    M("outcome", "row_can_cause=code < 0 or at_texts", "row_can_cause=False"),
    M(
        "outcome",
        "(fault and fault.batch_rows) or (beat.batch_rows if beat else 0)",
        "(fault.batch_rows or 0) if fault else 0",
    ),
    M("bisect", "if text not in holes:", "if True:"),
    M("scheduler", "middle = len(texts) // 2", "middle = 1"),
    M("bisect", "    for part in parts:", "    for part in reversed(parts):"),
    M("watch", "started_s=self.started_s + waited_s", "started_s=self.started_s"),
    M("watch", "        if at_gate:\n", "        if False:\n"),
    M("ledger", "(segment.start - segment.part.start)", "0"),
    M(
        "parts",
        "        if self.bad:\n            write_quarantine(",
        "        if not self.bad:\n            write_quarantine(",
    ),
    M("ledger", "index is None or index.fingerprint != self._fingerprint", "index is None"),
    M("ledger", "[part for part in index.parts if self._path(part).exists()]", "list(index.parts)"),
    M("ledger", "inspect(self._path(part)).digest == part.digest", "bool(inspect(self._path(part)))"),
    M(
        "ledger",
        "state.st_size == _HEADER_BYTES + 4 * self.plan.size(number) * self.facts.dimension",
        "True",
    ),
    M("ledger", "        parts.settle()\n", ""),
    M("ledger", "if self.facts is None and any(self._committed):", "if False:"),
    M(
        "ledger",
        "            os.fsync(file.fileno())\n",
        "            pass\n",
        known="SIGKILL keeps the page cache: tests/lostwrites misses it, and is not run here",
    ),
    M("ledger", "elif texts is None or not all(start <= text.text < stop for text in texts):", "elif texts is None:"),
    M(
        "ledger",
        "max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=0) + 1",
        "len(list(folder.iterdir())) + 1",
    ),
    M("ledger", "self.bad = {text: bad for text, bad in self.bad.items() if not start <= text < stop}", "pass"),
    M("records", "whole = seal == digest_of(content)", "whole = True"),
    M("records", "TypeError, RecursionError)", "TypeError)"),
    M(
        "stamp",
        "(self.size_bytes, self.mtime_ns, self.ctime_ns, self.inode) == _state(now)",
        "(self.size_bytes, self.mtime_ns) == _state(now)[:2]",
    ),
    M("records", " and digest_file(path) == self.digest", ""),
    M("identity", "        _TRUNCATE_DIM: encode.truncate_dim,\n", ""),
    M("identity", "if name != _NAME or not self._is_local}", "}"),
    M("identity", "isinstance(rows, int) and not isinstance(rows, bool)", "isinstance(rows, int)"),
    M(
        "join",
        "if len(others := np.setxor1d(not_finite, hits)):",
        "if len(others := np.setxor1d(not_finite, hits)) and False:",
    ),
    M("join", "(rows.first + int(row), int(rows.ids[row]))", "(int(row), int(rows.ids[row]))"),
    M("join", "upto = np.maximum(np.maximum.accumulate(ids) + 1, seen)", "upto = np.maximum.accumulate(ids) + 1"),
    M("finalwriter", 'side="right"', 'side="left"'),
    M("finalwriter", "            set_aside(place)\n        elif", "            pass\n        elif"),
    M("finalwriter", '        write_sealed(self._layout.published, {"marks": marks})\n', ""),
    M("join", "zero_rows += len(zero)", "zero_rows = len(zero)"),
    M("checkedfile", " or self._given.digest() != self._got.digest()", ""),
    M("checkedfile", "        self._sync.result()\n        wanted_bytes", "        wanted_bytes"),
)


def copy_of_tree(target: Path) -> None:
    """What git knows of, as it is now."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        source = ROOT / name
        if source.is_file() and not source.is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def tests_of(mutant: Mutant, tree: Path, storeys: list[str]) -> list[str]:
    """Test files, relative to the tree; the fast ones first."""
    folders = [tree / "tests" / storey for storey in storeys if (tree / "tests" / storey).is_dir()]
    found = []
    for folder in folders or [tree / "tests"]:
        for name in CONCERN[mutant.module].split():
            found += sorted(str(path.relative_to(tree)) for path in folder.rglob(f"test_{name}.py"))
    return found


def attempt(number: int, tree: Path, storeys: list[str]) -> tuple[str, str]:
    """(KILLED, SURVIVED, KNOWN, UNKNOWN or STALE; by which test or why)."""
    mutant = MUTANTS[number]
    names = ALIASES.get(mutant.module, (mutant.module,))
    places = [path for name in names for path in (tree / "supervisor").rglob(f"{name}.py")]
    places = [path for path in places if path.read_text().count(mutant.old) == 1]
    if len(places) != 1:
        return "STALE", f"{mutant.old!r} occurs in {len(places)} files"
    (place,) = places
    before = place.read_text()
    place.write_text(before.replace(mutant.old, mutant.new))
    path = os.pathsep.join(map(str, (tree / "supervisor", tree / "worker")))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for test in tests_of(mutant, tree, storeys):
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", test]
            ended = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=1800)
            if ended.returncode not in (0, 1, 5):  # pytest itself was ended, or could not run: that tells nothing
                return "UNKNOWN", f"pytest ended with {ended.returncode} at {test}"
            if ended.returncode == 1:
                lines = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return "KILLED", (lines or [test])[0][:150]
    finally:
        place.write_text(before)
    return ("KNOWN", mutant.known) if mutant.known else ("SURVIVED", "")


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", default="", help="mutants of modules whose name has this in it, or whose number it is; A,B for more"
    )
    parser.add_argument("--storeys", nargs="+", default=list(STOREYS))
    parser.add_argument("--at-once", type=int, default=2)
    arguments = parser.parse_args()
    words = arguments.only.split(",")
    chosen = [n for n, each in enumerate(MUTANTS) if str(n) in words or any(word in each.module for word in words)]
    ends: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="chunkvisor-mutants-") as folder:
        trees = [Path(folder, str(number)) for number in range(arguments.at_once)]
        for tree in trees:
            copy_of_tree(tree)
        free = list(trees)

        def one(number: int) -> None:
            tree = free.pop()
            end, why = attempt(number, tree, arguments.storeys)
            free.append(tree)
            ends[number] = end
            print(
                f"{number:3} {end:8} {MUTANTS[number].module}: {MUTANTS[number].new.strip()[:70]!r}  {why}", flush=True
            )

        with ThreadPoolExecutor(arguments.at_once) as pool:
            list(pool.map(one, chosen))
    killed = sum(end == "KILLED" for end in ends.values())
    print(f"{killed} of {len(ends)} mutants killed")
    return 0 if all(end in ("KILLED", "KNOWN") for end in ends.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
