"""Holds README, docs and example configs against the code that they describe."""

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml
from pydantic import BaseModel

from chunkvisor.cli import cli
from chunkvisor.config.load import load
from chunkvisor.config.model import Config
from chunkvisor.config.yaml import parse
from chunkvisor.errors import ExitCode
from chunkvisor_worker.contract.exits import Outcome, WorkerExit
from harness import ENCODERS, ROOT, Workplace, expected

PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/diary/*.md")})
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def name_of(path: Path) -> str:
    """Test id of a file."""
    return str(path.relative_to(ROOT))


def section(page: str, heading: str) -> str:
    """Text of a page from the heading to the next of its level."""
    text = (ROOT / page).read_text("utf-8")
    match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"{page} has no section {heading}"
    return match[1]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file that is there, and a heading that is in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_example_config_is_valid(path: Path) -> None:
    """Every config in configs/ passes the validation that `run` puts it through."""
    Config.model_validate(yaml.safe_load(path.read_text("utf-8")), context={"folder": path.parent})


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_every_line_of_an_example_config_is_commented(path: Path) -> None:
    """No line of a config in configs/ leaves the reader to guess."""
    lines = path.read_text("utf-8").splitlines()

    assert [line for line in lines if line.strip() and "# " not in line] == []


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "block"), [pytest.param(page, block, id=name_of(page)) for page in PAGES for block in blocks(page, "yaml")]
)
def test_config_in_a_page_is_valid(page: Path, block: str, tmp_path: Path) -> None:
    """Every YAML block of a page is taken by the loader, a part of a config together with the least of the rest."""
    least = {"workdir": "w", "model": {"name": "m"}, "outputs": {"a": {"source": "a.csv", "column": "c"}}}
    values = parse(block).value
    path = tmp_path / "config.yaml"
    path.write_text(block if "workdir" in values else yaml.safe_dump(least | values))
    load(path)


def command_lines(page: Path) -> Iterator[list[str]]:
    """The calls of chunkvisor in a page's blocks, as lists of arguments."""
    for block in (*blocks(page, "sh"), *blocks(page, "console")):
        for line in block.splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
            while "chunkvisor" in words:
                words = words[words.index("chunkvisor") + 1 :]
                end = next((place for place, word in enumerate(words) if word[0] in "();<>|&"), len(words))
                yield words[:end]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_a_page_are_valid(page: Path) -> None:
    """Every command line of a page names a command and options that exist, with the arguments they need."""
    for name, *arguments in filter(None, command_lines(page)):
        if not name.startswith("-"):
            command = cli.get_command(click.Context(cli), name)
            assert command is not None, name
            command.make_context(name, arguments)


TOUR = """
import time
from pathlib import Path
import good

FOLDER = Path(__file__).parent

class Encoder(good.Encoder):
    def encode(self, texts, batch_size):
        if (FOLDER / "armed").exists():
            (FOLDER / f"call-{time.monotonic_ns()}").touch()
            while len(list(FOLDER.glob("call-*"))) > 2 and (FOLDER / "armed").exists():
                (FOLDER / "struck").touch()
                time.sleep(0.01)
        return super().encode(texts, batch_size)

def make(model, device):
    return Encoder()
"""
"""The model of the tour: it stops at the third batch where a kill is due."""

TIMEOUT = """#!/bin/sh
shift 3
touch armed
"$@" &
until [ -e struck ] || ! kill -0 $!; do sleep 0.01; done
kill -KILL $!
rm armed
exit 137
"""
"""`timeout -s KILL SECONDS COMMAND` whose seconds are over when the run is half-way, however fast the machine is."""


def test_the_tour_does_what_it_says(tmp_path: Path) -> None:
    """The blocks of the tutorial work, one after the other, with an encoder of ours for the model."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    page, place, programs = ROOT / "docs" / "tutorial" / "getting-started.md", Workplace(tmp_path), tmp_path / "bin"
    programs.mkdir()
    command = f'#!/bin/sh\nexec {shlex.join(place.command())} "$@"\n'
    for name, text in {"chunkvisor": command, "timeout": TIMEOUT}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    shutil.copy(ENCODERS / "good.py", tmp_path)
    (tmp_path / "tour.py").write_text(TOUR)
    model = "name: sentence-transformers/all-MiniLM-L6-v2\n"
    script = "\n".join(blocks(page, "sh"))
    assert model in script
    script = script.replace(model, "name: tour\n  encoder: tour:make\n")
    script = re.sub("^timeout .*", r"\g<0> || [ $? = 137 ]", script, flags=re.MULTILINE)

    env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(
        ["bash", "-e"], input=script, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=250, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^stopped: .*\n  sentences: .* of 5,000 rows", ended.stdout, re.MULTILINE)
    assert "complete already" in ended.stderr
    ended = subprocess.run(
        [sys.executable, "-"], input="\n".join(blocks(page, "python")), cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert ended.stdout.startswith("(5000, 8) float32\n")
    texts = (tmp_path / "sentences.txt").read_text().splitlines()
    assert np.load(tmp_path / "vectors" / "sentences.npy").tobytes() == expected(texts).tobytes()


@pytest.mark.model
@pytest.mark.soak(only=True)
def test_migration_gives_the_same_vectors(tmp_path: Path, minilm_path: Path) -> None:
    """The Python block of docs/how-to/coming-from-encode.md, which compares both ways, holds with a real model."""
    (tmp_path / "model").symlink_to(minilm_path)
    (block,) = blocks(ROOT / "docs" / "how-to" / "coming-from-encode.md", "python")
    ended = subprocess.run(
        [sys.executable, "-"], input=block, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_migration_page_has_every_argument() -> None:
    """The page says of every argument of sentence-transformers' encode and constructor what became of it."""
    if (package := importlib.util.find_spec("sentence_transformers")) is None:
        pytest.skip("sentence_transformers is not installed (extra: worker)")
    assert package.origin is not None
    # Read and not imported, which would take torch along. `use_auth_token` is the old name of `token`.
    source = Path(package.origin).with_name("sentence_transformer") / "model.py"
    (model,) = [node for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]
    names = {
        each.arg
        for node in model.body
        if isinstance(node, ast.FunctionDef) and node.name in ("encode", "__init__")
        for each in (*node.args.args, *node.args.kwonlyargs)
    }
    assert {"inputs", "prompt", "model_name_or_path", "backend"} <= names
    text = (ROOT / "docs" / "how-to" / "coming-from-encode.md").read_text("utf-8")
    assert {name for name in names - {"self", "use_auth_token"} if f"`{name}`" not in text} == set()


def documented() -> dict[str, str]:
    """Key -> default, from the tables of docs/reference/config.md."""
    text = (ROOT / "docs" / "reference" / "config.md").read_text("utf-8")
    return dict(re.findall(r"^\| `([\w.]+)` \| `?(.*?)`? \|", text, re.MULTILINE))


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted path of every key of a config model; overrides within an output are named by their section only."""
    for name, field in model.model_fields.items():
        yield prefix + name
        section_type = field.annotation
        if not prefix and isinstance(section_type, type) and issubclass(section_type, BaseModel):
            yield from keys(section_type, f"{prefix}{name}.")


def test_config_page_has_every_key() -> None:
    """docs/reference/config.md explains every key that a config can have, and no other."""
    outputs = Config.model_json_schema()["$defs"]["OutputConfig"]["properties"]

    assert set(documented()) == {*keys(Config), *(f"outputs.NAME.{name}" for name in outputs)}


def test_config_page_tells_the_defaults() -> None:
    """A config that spells out every default of docs/reference/config.md is the same as one that has none of them."""
    shortest: dict[str, Any] = {
        "workdir": "w",
        "model": {"name": "m"},
        "outputs": {"NAME": {"source": "s.csv", "column": "c"}},
    }
    spelled_out: dict[str, Any] = {"outputs": {"NAME": {}}}
    for key, default in documented().items():
        *path, last = key.split(".")
        if default != "required":
            place = spelled_out
            for part in path:
                place = place.setdefault(part, {})
            place[last] = yaml.safe_load(default)
    spelled_out["workdir"] = "w"
    spelled_out["model"]["name"] = "m"
    spelled_out["outputs"]["NAME"] |= {"source": "s.csv", "column": "c"}

    context = {"folder": ROOT}
    expected = Config.model_validate(shortest, context=context).model_dump()
    assert Config.model_validate(spelled_out, context=context).model_dump() == expected


def test_config_page_has_every_choice() -> None:
    """Where a key takes one of a few words, docs/reference/config.md says each of them."""
    text = (ROOT / "docs" / "reference" / "config.md").read_text("utf-8")
    words = {word for each in Config.model_json_schema()["$defs"].values() for word in each.get("enum", ())}

    assert len(words) > 5
    assert {word for word in words if f"`{word}`" not in text} == set()


def test_starter_config_has_every_key() -> None:
    """What `chunkvisor init` writes shows every key, those with a default as a comment."""
    lines = files("chunkvisor").joinpath("starter.yaml").read_text("utf-8").splitlines()
    shown = {re.sub(r"^ *(# )?", "", line).partition(":")[0] for line in lines}
    wanted = {key.rpartition(".")[2] for key in documented()}

    assert wanted - shown == set()


def codes(text: str) -> set[int]:
    """The codes in the first column of a table."""
    return {int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE) for code in cell.split(",")}


@pytest.mark.parametrize(
    ("page", "heading", "expected"),
    [
        ("README.md", "Exit codes", set(ExitCode)),
        ("docs/reference/exit-codes.md", "Exit codes of chunkvisor", set(ExitCode)),
        ("docs/reference/exit-codes.md", "Exit codes of a worker", set(WorkerExit)),
    ],
)
def test_exit_code_table_is_complete(page: str, heading: str, expected: set[int]) -> None:
    """A table of exit codes lists exactly those that exist."""
    assert codes(section(page, heading)) == expected


def test_every_outcome_has_a_step_on_the_page() -> None:
    """The table in docs/explanation/how-it-works.md says what follows each outcome of an attempt."""
    text = section("docs/explanation/how-it-works.md", "Two tables decide")

    assert {outcome for outcome in Outcome if f"`{outcome}`" in text} == set(Outcome)
