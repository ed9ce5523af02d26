"""Random histories of outputs: sources of each kind change, forms change, runs are killed; row i stays row i.

What must hold is computed here by itself: the rows that are left, their vectors, the numbers of the form. Only texts
without a vector are encoded, and after a kill the final is the earlier one, or the next one, as a whole.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finalstate import CONDITIONS, OTHER, SIGNED, State, stored, with_rows
from harness import SOAK_SEED, Ended, local_engine_only, sweep
from scripted_workplace import ScriptedWorkplace
from sourcefiles import KINDS, Row

pytestmark = local_engine_only
CALLS = ("os:replace", "os:rename", "os:fsync", "os:rmdir", "os:unlink", "os:mkdir", "os:ftruncate", "os:write")
POOL = ["", None, " ", "é😀 ünï", 'a,b\t"c"', "line\nbreak", "null", "1", "x" * 3000, *(f"t{n}" for n in range(12))]
CHANGES = ("front", "middle", "removed", "edited", "moved", "twice", "none")


class History:
    """One of them; its choices are those of `chance`."""

    def __init__(self, folder: Path, kind: str, chance: random.Random) -> None:
        self._chance, self._kind, self._folder = chance, kind, folder
        self._sources = folder / "sources"
        self._sources.mkdir(parents=True)
        self._next_id = 0
        rows = tuple(self._new_row() for _ in range(chance.randint(2, 12)))
        self._size = chance.choice([2, 3, 5])
        self.combined = chance.random() < 0.4
        self.place = ScriptedWorkplace.make(folder / "place", [])
        (self.place.folder / "signed.py").write_text(SIGNED)
        self.state = with_rows(rows, self._form({}))
        self.first = self.state
        self.before: State | None = None
        """Finished before."""
        self._known = self._sure = set[str]()
        """Texts that had a vector when the step began, and those that still have it for certain."""
        self._is_exact = True
        """Whether vectors can be taken from the final that is there."""
        self._sweeps = self._calls_before = 0
        self.said: list[str] = []

    # What changes

    def _new_row(self) -> Row:
        self._next_id += 1
        text = self._chance.choice(POOL) if self._chance.random() < 0.6 else f"new {self._next_id}"
        return self._next_id, text

    def change(self) -> None:
        """Another source, and perhaps another form."""
        rows, chance = list(self.state.rows), self._chance
        changes = chance.choices(CHANGES, k=chance.randint(1, 3))
        for change in changes:
            at = chance.randrange(len(rows) + 1)
            match change:
                case "front":
                    rows[:0] = [self._new_row() for _ in range(chance.randint(1, 3))]
                case "middle":
                    rows[at:at] = [self._new_row() for _ in range(chance.randint(1, 3))]
                case "removed" if len(rows) > 3:
                    del rows[at : at + chance.randint(1, 2)]
                case "edited" if at < len(rows):
                    rows[at] = (rows[at][0], self._new_row()[1])
                case "moved":
                    chance.shuffle(rows)
                case "twice":
                    rows.insert(at, chance.choice(rows))
        form = self.state.output if chance.random() < 0.5 else self._form(self.state.output)
        self.state = with_rows(tuple(rows), form)
        self.said.append(f"{changes}: {[text if text is None else text[:9] for _, text in rows]} {form}")

    def _form(self, before: dict[str, Any]) -> dict[str, Any]:
        chance, dtype = self._chance, before.get("dtype", "float32")
        if dtype == "float32" and chance.random() < 0.4:
            dtype = chance.choice(["float16", "int8", "ubinary"])
        form = {} if dtype == "float32" else {"dtype": dtype}
        if chance.random() < 0.3:
            form["shards"] = chance.choice([1, 2, 5])
        if chance.random() < 0.3:
            form["format"] = "parquet"
        if chance.random() < 0.3:
            form["where"] = chance.choice(list(CONDITIONS))
        if chance.random() < 0.3:
            form["columns"] = ["id"]
        return form

    # What is done

    @property
    def names(self) -> list[str]:
        """The outputs."""
        return ["out", "other"] if self.combined else ["out"]

    def write(self) -> None:
        """Source and config of the state."""
        source = KINDS[self._kind](self._sources, self.state.rows)
        outputs = {"out": {"source": source, "column": "text", **self.state.output}}
        if self.combined:
            outputs["other"] = {"source": source, "template": OTHER, **self.state.output}
        keys = {"outputs": outputs, "chunk__size": self._size, "encode__batch_size": 2}
        if self.combined:
            keys["combine"] = {"both": self.names}
        self.place.write_config("signed:make", **keys)

    def kill(self) -> None:
        """Have a run die, and see that each final is the earlier one, or already the next one."""
        unknown = sorted(self._texts - self._known - set(self._encoded))
        if self._is_exact and unknown and (not SOAK_SEED or self._chance.random() < 0.5):
            self._kill_at(self._chance.choice(unknown))
        elif SOAK_SEED:
            self._kill_anywhere()
        before = self.before
        for name in self.names if before is not None else ():
            problems = [each.problem(self.place, name) for each in (before, self.state) if each is not None]
            assert not all(problems), problems
            if before is not None and problems[0]:  # what is taken from, from now on, is the next one
                self._sure &= {*self.state.texts(name), *(self._sure - set(before.texts(name)))}
                self._is_exact &= "dtype" not in self.state.output

    def _kill_at(self, text: str) -> None:
        """In the encoder, which has the final not begun of which the text is."""
        self.place.lay(text, self._chance.choice(["kill_supervisor", "kill_both"]))
        assert self.place.run(*self.options).returncode == -9
        self.said.append(f"killed at {text[:9]!r}")
        for name in self.names:
            if self.before is not None and text in self.state.texts(name):
                assert not self.before.problem(self.place, name)

    def _kill_anywhere(self) -> None:
        """At a call that touches the disk, or not at all."""
        scratch, chance = self._folder / f"sweep{self._sweeps}", self._chance
        self._sweeps += 1
        share, when = f"{chance.randint(2, 40)}:{chance.randrange(1 << 32)}", chance.choice(["before", "after"])
        options = " ".join(self.options)
        (told,) = sweep("once", when, self.place.folder, scratch, *CALLS, options=options, share=share)
        assert told["returncode"] in (None, 0), told
        assert "Traceback" not in told["stderr"], told
        self.place = ScriptedWorkplace(Path(told["folder"]))
        self.said.append(f"killed {when} {told['call']}")

    @property
    def options(self) -> list[str]:
        """Of a run."""
        return ["--update"] if self.before is not None else []

    def run(self) -> None:
        """To the end, and see what it has left."""
        ended = self.place.run_here(*self.options)
        self.said.append(f"-> {ended.returncode}")
        assert ended.returncode == 0, ended.stderr
        for name in self.names:
            assert not self.state.problem(self.place, name)
            assert not self.state.problem_beside(self.place, name)
        if self.combined:
            dtype = self.state.output.get("dtype", "float32")
            parts = [stored(self.state.texts(name), dtype) for name in self.names]
            np.testing.assert_array_equal(np.load(self.place.workdir / "both.npy"), np.concatenate(parts, axis=1))
        verified = self.place.here("verify", str(self.place.workdir))
        assert verified.returncode == 0, verified.stdout + verified.stderr
        left = [path.name for path in self.place.workdir.iterdir() if path.name.startswith((".out.", ".other."))]
        assert not left

    @property
    def _texts(self) -> set[str]:
        return {text for name in self.names for text in self.state.texts(name)}

    @property
    def _encoded(self) -> Counter[str]:
        """Texts that were encoded in this step."""
        return Counter(text for call in self.place.calls()[self._calls_before :] for text in call)

    def play(self, *, kills: int, changes_again: bool = False) -> None:
        """One step: a run, killed so many times before; count what was encoded."""
        self._calls_before = len(self.place.calls())
        self._sure, self._is_exact = set(self._known), self.before is None or "dtype" not in self.before.output
        self.write()
        if self.before is not None and self.before.rows != self.state.rows:
            self._refused()
        for _ in range(kills):
            self.kill()
        tried = self._texts
        if changes_again:
            self.change()
            self.write()
        self.run()
        counts, asked = self._encoded, tried | self._texts
        assert set(counts) <= asked
        if self._is_exact:
            assert self._texts - self._known <= set(counts) <= asked - self._sure, sorted(counts)
        # In a chunk that was under way, what was not saved yet is encoded once more; so is what was rounded since.
        assert counts.total() - len(counts) <= kills * self._size or not self._is_exact, counts
        assert max(counts.values(), default=0) <= 1 + kills + changes_again, counts
        self._known = self._texts if "dtype" not in self.state.output else set()
        self.before = self.state
        again = self.place.run_here(*self.options)
        assert again.returncode == 0, again.stderr
        assert self._encoded == counts

    def _refused(self) -> None:
        ended: Ended = self.place.run_here()
        assert ended.returncode in (0, 78), ended.stderr
        if ended.returncode == 78:
            assert "--update" in ended.stderr


def play(folder: Path, kind: str, chance: random.Random, steps: int) -> None:
    """A history; what has happened is printed where something does not hold."""
    history = History(folder, kind, chance)
    try:
        history.play(kills=0)
        for _ in range(steps):
            history.change()
            history.play(kills=chance.choice([0, 1, 1, 2]), changes_again=chance.random() < 0.2)
    except BaseException:
        print(kind, history.combined, history.first, *history.said, sep="\n")
        raise


QUICK = ("jsonl.gz", "parquet")


@pytest.mark.soak
@pytest.mark.parametrize("kind", [pytest.param(each, marks=pytest.mark.soak(only=each not in QUICK)) for each in KINDS])
def test_history(tmp_path: Path, kind: str) -> None:
    """Of a source of this kind."""
    play(tmp_path, kind, random.Random(f"{SOAK_SEED or 0} {kind}"), 4 if SOAK_SEED else 1)
