"""Runs what the pages tell a person to run: the tour, and the two ways of encoding side by side."""

import html
import os
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from chunkvisor.show.snapshot import PHASES
from docpages import blocks
from forking import COMMAND_LINE
from harness import ENCODERS, ROOT, expected, path_with, said_by, write_program

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


def test_the_script_for_uv_runs(tmp_path: Path) -> None:
    """The job of containers.md runs, with an encoder, a file and an upload of ours."""
    (block,) = blocks(ROOT / "docs" / "how-to" / "containers.md", "python")
    head = re.findall("^# (?!hf|/)(.*)", block.text, re.MULTILINE)
    assert set(tomllib.loads("\n".join(head))) == {"requires-python", "dependencies"}
    upload = "def upload_folder(**given): print(given['folder_path'])"
    (tmp_path / "huggingface_hub.py").write_text(upload)
    (tmp_path / "a.jsonl").write_text('{"text": "one"}')
    encoder = "sentence-transformers/all-MiniLM-L6-v2, encoder: good:make"
    script = block.text.replace("sentence-transformers/all-MiniLM-L6-v2", encoder)
    script = script.replace("hf://datasets/me/reviews/*", "*").replace(
        "outputs:", "device: cpu\noutputs:"
    )
    env = {"PYTHONPATH": path_with(ENCODERS)}
    assert said_by(sys.executable, "-", text=script, cwd=tmp_path, env=env) == "vectors\n"
    assert np.load(tmp_path / "vectors" / "reviews.npy").tobytes() == expected(["one"]).tobytes()


def words_of(picture: Path, *more: str) -> set[str]:
    """Words of a drawn terminal, and more; whether there is one text or two is no difference."""
    shown = re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text("utf-8"))
    words = re.findall("[A-Za-z]+", html.unescape(" ".join([*shown, *more])))
    return {word.rstrip("s") for word in words}


@pytest.mark.model
@pytest.mark.usefixtures("minilm_path")
def test_the_pictures_are_of_today(tmp_path: Path) -> None:
    """A small run draws both, and prints the words that run.svg has."""
    pictures = ROOT / "docs" / "images"
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    options = ("--rows", "150", "--chunk", "30", "--out", tmp_path)
    said_by(sys.executable, pictures / "draw.py", *options, code=0 if browser else 1)
    # A longer run may take minutes, have more rows in a batch, and be in another phase.
    printed = words_of(tmp_path / "run.svg", "min and more", *PHASES.values())
    assert words_of(pictures / "run.svg") <= printed
    if browser is None:
        pytest.skip("there is no browser to draw report.png with")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert (pictures / "report.png").stat().st_size < 200_000
