"""What is recorded: some commands each, what a person types after a power cut, and what has to come
of it.
"""

import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import write_lines
from scripted_workplace import ScriptedWorkplace

from .recording import Recorder, Recording

RUN = ("chunkvisor", "run", "config.yaml")
SOURCE, LATER = "{source}", "{later}"
"""In a command: the full path of the source, and of the source as it is later."""
FAULTS = {"poison": "value_error!", "crash": "crash!", "big": "oom!", "leave": "kill_both"}
"""By the word that a text begins with, what happens when it comes; see tests/encoders/scripted.py."""
BAD = ("poison", "crash")
_CALL = (sys.executable, "-c", "from chunkvisor.cli import main; main()")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a scenario."""

    words: tuple[str, ...] = RUN
    code: int = 0
    mended: bool = False
    """Whether bad texts are harmless from now on."""
    encodes: tuple[str, ...] = ()
    """Of an update: the texts that its chunks are cut out of."""

    @property
    def of_later(self) -> bool:
        """Whether it reads the later source."""
        return any(LATER in word for word in self.words)


@dataclass(frozen=True, slots=True)
class Try:
    """What is typed after the power cut; what counts is that the last one ends with the last of its
    codes.
    """

    words: tuple[str, ...] = RUN
    codes: frozenset[int] = frozenset({0})
    final: bool = True
    """Whether a final file has to be there if it ends with 0 or 3."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """See the module."""

    texts: tuple[str, ...]
    commands: tuple[Command, ...] = (Command(),)
    later: tuple[str, ...] = ()
    """Texts of the later source."""
    second: tuple[str, ...] = ()
    """Texts of a second output, which takes over what it shares with the first."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """By dotted keys, as `harness.write_config` has them."""
    again: tuple[tuple[Try, ...], ...] = ((Try(),),)
    """By number of the command that was under way, what is typed; the last holds for those after
    it."""
    keeps_a_final: bool = False
    """Whether, once there was a final file, there always is an old or a new one."""

    @property
    def size(self) -> int:
        """Distinct texts in a chunk."""
        return int(self.config.get("chunk.size", 2))

    def texts_at(self, number: int) -> tuple[str, ...]:
        """Of the source that the command of that number reads."""
        return self.later if self.commands[number].of_later else self.texts

    def encoded_by(self, number: int, output: str = "out") -> tuple[str, ...]:
        """The texts that the chunks of an output are cut out of, in the command of that number."""
        if output == "two":
            return tuple(text for text in dict.fromkeys(self.second) if text not in self.texts)
        return self.commands[number].encodes or tuple(dict.fromkeys(self.texts))

    def mended(self, number: int) -> bool:
        """Whether bad texts are harmless once that command has begun."""
        return any(command.mended for command in self.commands[: number + 1])

    def lay_out(
        self, folder: Path, source: Path, harmless: Collection[str] = ()
    ) -> ScriptedWorkplace:
        """Make config, encoder and faults, for a recording or for a rebuilt disk.

        Texts that begin with a harmless word have no fault.
        """
        place = ScriptedWorkplace.make(folder, ())
        values: dict[str, Any] = {"workdir": "disk/work", "chunk.size": 2, "encode.batch_size": 2}
        values["outputs.out.source"] = str(source)
        if self.second:
            more = {"source": str(source.with_name("more.jsonl")), "column": "text"}
            values["outputs.two"] = more
        place.write_config("scripted:make", **{**values, **self.config})
        for text in {*self.texts, *self.later}:
            word = text.rstrip("0123456789")
            if word in FAULTS and word not in harmless:
                place.lay(text, FAULTS[word])
        return place

    def record(self, folder: Path) -> Recording:
        """Run the commands in a new folder. Raises AssertionError where one ends otherwise than it
        should.
        """
        source = folder / "rows.jsonl"
        place = self.lay_out(folder, source)
        more = source.with_name("more.jsonl")
        for path, texts in (
            (source, self.texts),
            (_later(source), self.later),
            (more, self.second),
        ):
            write_lines(path, [{"text": text} for text in texts])
        (folder / "disk").mkdir()
        recorder, finals = Recorder(folder / "disk", folder / "log"), []
        for command in self.commands:
            if command.mended:
                shutil.rmtree(place.faults)
            words = with_source(command.words, source)
            ended = recorder.run((*_CALL, *words[1:]), folder)
            assert ended.returncode == command.code, f"{words}: {ended}"
            finals.append(finals_in(folder / "disk"))
        return replace(recorder.recording(), finals=finals)


def finals_in(disk: Path) -> dict[str, bytes]:
    """The contents of all final files, by their paths."""
    places = ("work/*.npy", "work/*.parquet", "out/deep/*.npy")
    return {
        str(path.relative_to(disk)): path.read_bytes()
        for place in places
        for path in disk.glob(place)
    }


def with_source(words: Sequence[str], source: Path) -> tuple[str, ...]:
    """The command with the path of the source in it."""
    return tuple(
        word.replace(SOURCE, str(source)).replace(LATER, str(_later(source))) for word in words
    )


def _later(source: Path) -> Path:
    return source.with_name("later.jsonl")


def _options(**values: object) -> tuple[str, ...]:
    return tuple(
        word
        for name, value in values.items()
        for word in ("--set", f"{name.replace('__', '.')}={value}")
    )


FEW = ("t0", "t1", "t0", "t2", "t3", "t4")
MANY = ("g0", "g1", "g2", "crash0", "g3", "g4", "g0", "g5", "g6", "poison0", "g7")
SCRATCH = (*RUN, *_options(encode__normalize="true"))
PARQUET = (*RUN, *_options(outputs__out__format="parquet"))
FLOAT16 = (*RUN, *_options(outputs__out__dtype="float16"))
UPDATE = (*RUN, "--update", *_options(outputs__out__source=LATER))


_OPTIONS = "--model test --encoder scripted:make --device cpu --column text --chunk-size 2"
_PLACES = "-o disk/out/deep/v.npy --workdir disk/state"
ENCODE = ("chunkvisor", "encode", SOURCE, *_OPTIONS.split(), *_PLACES.split())


BOTH = frozenset({0, 3})
THEN_UPDATE = (Try(),), (Try(UPDATE),)

SCENARIOS = {
    "plain": Scenario(FEW),
    "quarantine": Scenario(
        MANY, (Command(code=3),), config={"chunk.size": 5}, again=((Try(codes=frozenset({3})),),)
    ),
    "killed": Scenario(
        ("t0", "t1", "t2", "t3", "leave0", "t4"),
        (Command(code=-9), Command()),
        config={"chunk.size": 4},
    ),
    "retry": Scenario(
        MANY[6:],
        (Command(code=3), Command(("chunkvisor", "retry", "disk/work"), mended=True), Command()),
        config={"chunk.size": 3},
        again=(
            (Try(codes=frozenset({3})),),
            (Try(codes=BOTH), Try(("chunkvisor", "retry", "disk/work"), final=False), Try()),
        ),
    ),
    "out of memory": Scenario(
        ("t0", "big0", "t1", "big1", "t2", "t3"), config={"encode.batch_size": 4, "chunk.size": 3}
    ),
    "from scratch": Scenario(
        FEW[:4],
        (Command(), Command((*SCRATCH, "--from-scratch", "--yes"))),
        again=(
            (Try(),),
            (Try(SCRATCH, frozenset({0, 78})), Try((*SCRATCH, "--from-scratch", "--yes"))),
        ),
        keeps_a_final=True,
    ),
    "parquet": Scenario(
        FEW[:4],
        (Command(), Command(PARQUET), Command()),
        again=((Try(),), (Try(PARQUET),), (Try(),)),
        keeps_a_final=True,
    ),
    "update": Scenario(
        FEW[:4],
        (Command(), Command(UPDATE, encodes=("u0", "u1", "u2"))),
        ("u0", "t1", "t0", "u1", "t0", "u2"),
        again=THEN_UPDATE,
        keeps_a_final=True,
    ),
    "update before there is a final": Scenario(
        ("t0", "t1", "t2", "t3", "leave0", "t4"),
        (Command(code=-9), Command(UPDATE, encodes=("u0", "leave0"))),
        ("t3", "u0", "t0", "leave0"),
        again=((Try(UPDATE),),),
    ),
    "float16": Scenario(
        FEW[:4],
        (Command(), Command(FLOAT16)),
        config={"outputs.out.columns": ["text"]},
        again=((Try(),), (Try(FLOAT16),)),
        keeps_a_final=True,
    ),
    "two outputs": Scenario(
        FEW, second=("m0", "t3", "t0", "m1", "t0"), config={"outputs.out.dtype": "float16"}
    ),
    "clean": Scenario(
        FEW[:4],
        (Command(), Command(("chunkvisor", "clean", "disk/work")), Command()),
        config={"chunk.keep": True},
    ),
    "one file": Scenario(FEW[:4], (Command(ENCODE),), again=((Try(ENCODE),),)),
}
