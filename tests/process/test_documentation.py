"""Runs what the pages tell a person to run: the tour, and the two ways of encoding side by side."""

import ast
import html
import importlib.util
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from chunkvisor.show.snapshot import PHASES
from docpages import blocks, text_of
from forking import COMMAND_LINE
from harness import ENCODERS, ROOT, expected, said_by, write_program

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
"""`timeout -s KILL SECONDS COMMAND` whose seconds are over when the run is half-way, however fast
the machine is."""


def test_the_tour_does_what_it_says(tmp_path: Path) -> None:
    """The blocks of the tutorial work, one after the other, with an encoder of ours for the model."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    page = ROOT / "docs" / "tutorial" / "getting-started.md"
    programs = tmp_path / "bin"
    command = f'#!/bin/sh\nexec {shlex.join(COMMAND_LINE)} "$@"\n'
    for name, text in {"chunkvisor": command, "timeout": TIMEOUT}.items():
        write_program(programs / name, text)
    shutil.copy(ENCODERS / "good.py", tmp_path)
    (tmp_path / "tour.py").write_text(TOUR)
    model = "name: sentence-transformers/all-MiniLM-L6-v2\n"
    script = "\n".join(block.text for block in blocks(page, "sh"))
    assert model in script
    script = script.replace(model, "name: tour\n  encoder: tour:make\n")
    script = re.sub("^timeout .*", r"\g<0> || [ $? = 137 ]", script, flags=re.MULTILINE)

    env = {"PATH": f"{programs}:{os.environ['PATH']}", "OPENBLAS_NUM_THREADS": "1"}
    said = said_by("bash", "-e", text=script, cwd=tmp_path, env=env)
    assert re.search(r"^stopped: .*\n  sentences: .* of 5,000 rows", said, re.MULTILINE)
    script = "\n".join(block.text for block in blocks(page, "python"))
    said = said_by(sys.executable, "-", text=script, cwd=tmp_path)
    assert said.startswith("(5000, 8) float32\n")
    texts = (tmp_path / "sentences.txt").read_text().splitlines()
    assert np.load(tmp_path / "vectors" / "sentences.npy").tobytes() == expected(texts).tobytes()


def test_migration_page_has_every_argument() -> None:
    """The page says of every argument of sentence-transformers' encode and constructor what became
    of it.
    """
    if (package := importlib.util.find_spec("sentence_transformers")) is None:
        pytest.skip("sentence_transformers is not installed (extra: worker)")
    assert package.origin is not None
    # Read and not imported, which would take torch along. `use_auth_token` is the old name of
    # `token`.
    source = Path(package.origin).with_name("sentence_transformer") / "model.py"
    (model,) = [
        node for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.ClassDef)
    ]
    names = {
        each.arg
        for node in model.body
        if isinstance(node, ast.FunctionDef) and node.name in ("encode", "__init__")
        for each in (*node.args.args, *node.args.kwonlyargs)
    }
    assert {"inputs", "prompt", "model_name_or_path", "backend"} <= names
    text = text_of(ROOT / "docs" / "how-to" / "one-file.md")
    assert {name for name in names - {"self", "use_auth_token"} if f"`{name}`" not in text} == set()


def words_of(picture: Path) -> set[str]:
    """Words of a drawn terminal; whether there is one text or two is no difference."""
    shown = re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text("utf-8"))
    return {word.rstrip("s") for word in re.findall("[A-Za-z]+", html.unescape(" ".join(shown)))}


@pytest.mark.model
@pytest.mark.usefixtures("minilm_path")
def test_the_pictures_are_of_today(tmp_path: Path) -> None:
    """A small run draws both, and prints the words that run.svg has."""
    pictures = ROOT / "docs" / "images"
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    options = ("--rows", "100", "--chunk", "20", "--out", tmp_path)
    said_by(sys.executable, pictures / "draw.py", *options, code=0 if browser else 1)
    phases = {word.rstrip("s") for word in " ".join(PHASES.values()).split()}
    others = {"and", "min", "more"}  # of a longer time, and of more rows
    assert words_of(pictures / "run.svg") - words_of(tmp_path / "run.svg") - phases <= others
    if browser is None:
        pytest.skip("there is no browser to draw report.png with")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert (pictures / "report.png").stat().st_size < 200_000
