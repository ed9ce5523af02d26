"""Measures that a text is encoded once in its life.

Six outputs that share texts, 1 % new rows, ten new docstrings.

    python benchmarks/reuse.py [--folder FOLDER] [--commits FILE] [NAME …]

What is told of texts is counted in manifests, not measured. `scale.py update` and `forms.py`
measure what is large.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from corpus import ROOT, ensure_model, read_texts
from machine import machine_line
from measured import succeed
from scratch import HERE

TRIVIAL = {"name": "trivial", "encoder": "trivial:make", "kwargs": {"dimension": 384}}
Row = tuple[str, str, str]
"""What, figure, goal."""


class Reuse:
    """The benches; each begins with an empty folder."""

    def __init__(self, folder: Path, commits: Path | None) -> None:
        self.folder = folder
        self._commits = commits

    def six(self) -> Iterator[Row]:
        """Six outputs of 20,000 rows, half of whose texts all have in common, and one that is cut from them."""
        names = [
            f"{split}_{column}"
            for split in ("train", "val", "test")
            for column in ("case", "commit")
        ]
        texts = {
            name: [f"row {row}" + f" of {name}" * (row % 2) for row in range(20_000)]
            for name in names
        }
        for name, each in texts.items():
            self._write(name, each)
        texts["train_short"] = texts["train_case"]
        outputs = {name: self._output(name) for name in names}
        outputs["train_short"] = self._output(
            "train_case", encode={"truncate_dim": 128, "normalize": True}
        )
        self._config(TRIVIAL, outputs, size=5000)
        seconds = self._run()
        encoded = sum(self._encoded(name) for name in texts)
        distinct = len(set().union(*texts.values()))
        what = "six outputs that share half of their texts, and one that is cut from them"
        yield (
            f"{what}: texts encoded, of distinct texts",
            f"{encoded:,} of {distinct:,}, {seconds:.1f} s",
            "",
        )
        yield "the same: ratio", f"{encoded / distinct:.2f}", "1.00"

    def trivial(self) -> Iterator[Row]:
        """1 % new rows in 200,000, with an encoder that costs nothing."""
        yield from self._new_rows(
            "200,000 rows, trivial encoder", [f"text {row}" for row in range(200_000)], TRIVIAL
        )

    def minilm(self) -> Iterator[Row]:
        """1 % new rows in 4,000 commit messages."""
        texts = read_texts(self._commits, 4000, distinct=True)
        yield from self._new_rows(
            f"{len(texts):,} texts, MiniLM", texts, {"name": str(ensure_model())}
        )

    def quickstart(self) -> Iterator[Row]:
        """The quickstart's docstrings, ten of which change."""
        source = self.folder / "docstrings.jsonl"
        harvest = [sys.executable, str(ROOT / "quickstart" / "harvest.py"), "--out", str(source)]
        subprocess.run(harvest, check=True, stdout=subprocess.DEVNULL)
        config = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
        config |= {"workdir": "work", "model": {"name": str(ensure_model())}}
        config["outputs"]["docstrings"]["source"] = str(source)
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))
        whole_s = self._run()
        lines = source.read_text("utf-8").splitlines()
        for row in range(0, len(lines), len(lines) // 10)[:10]:
            changed = json.loads(lines[row])
            lines[row] = json.dumps(changed | {"doc": f"Changed since: {changed['doc']}"})
        source.write_text("\n".join(lines) + "\n", "utf-8")
        seconds = self._run("--update")
        opened = [each for each in self._events() if each["event"] == "output_opened"][-1]
        figure = (
            f"{self._encoded('docstrings')} texts in {opened['chunks']} chunk; {seconds:.1f} s of "
            f"{whole_s:.1f} s"
        )
        yield (
            f"quickstart, {len(lines):,} docstrings, ten of them changed: encoded",
            figure,
            "ten, in one chunk",
        )

    def _new_rows(self, what: str, texts: Sequence[str], model: dict[str, Any]) -> Iterator[Row]:
        """Against the whole run, beside what every run takes, and beside what an update takes that has nothing new.

        The latter reads the source, looks up its texts, checks the earlier final file and writes the next one.
        """
        new = [f"new {row}: {text}" if not row % 100 else text for row, text in enumerate(texts)]
        start_s = []
        for name, some in (("whole", texts), ("start", texts[:1])):
            self._write(name, some)
        for words in ("--from-scratch", "--from-scratch"):
            self._config(model, {"start": self._output("start")}, size=1000, workdir="start")
            start_s.append(self._run(words, "--yes"))
        self._config(model, {"whole": self._output("whole")}, size=1000)
        whole_s = self._run()
        self._write("whole", texts[1:])
        none_s = self._run("--update")
        assert not self._encoded("whole")
        self._write("whole", new)
        seconds = self._run("--update")
        encoded, start = self._encoded("whole"), min(start_s)
        share, rest = ((seconds - each) / (whole_s - start) for each in (start, none_s))
        yield (
            f"{what}, 1 % of them new: texts encoded",
            f"{encoded:,}",
            f"{len(range(0, len(texts), 100)):,}",
        )
        figure = f"{whole_s:.1f} s, {seconds:.1f} s, {none_s:.1f} s, {start:.1f} s"
        yield (
            "the same: whole run, `run --update`, the same with nothing new, a run of one text",
            figure,
            "",
        )
        yield (
            "the same: of the whole run, beside an update with nothing new",
            f"{rest:.3f}",
            "≤ 0.05",
        )
        yield "the same: of the whole run, beside a run of one text", f"{share:.3f}", ""

    def _write(self, name: str, texts: Sequence[str]) -> None:
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (self.folder / f"{name}.jsonl").write_text("".join(lines))

    def _output(self, name: str, **keys: Any) -> dict[str, Any]:
        return {"source": str(self.folder / f"{name}.jsonl"), "column": "text", **keys}

    def _config(
        self, model: dict[str, Any], outputs: dict[str, Any], *, size: int, workdir: str = "work"
    ) -> None:
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        config = {
            "workdir": workdir,
            "device": "cpu",
            "model": model,
            "chunk": {"size": size},
            "outputs": outputs,
        }
        (self.folder / "config.yaml").write_text(
            yaml.safe_dump(config | {"env": {"PYTHONPATH": path}})
        )

    def _run(self, *words: str) -> float:
        return succeed(["run", "config.yaml", *words], self.folder).seconds

    def _encoded(self, name: str) -> int:
        """Texts that the last run of an output has encoded."""
        manifest = json.loads((self.folder / "work" / f"{name}.json").read_text())
        return int(manifest.get("texts_encoded", manifest["distinct_texts"]))

    def _events(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in (self.folder / "work" / ".chunkvisor" / "events.jsonl")
            .read_text()
            .splitlines()
        ]


def main() -> None:
    """Run the benches that are named, or all, and print a table in Markdown."""
    known: dict[str, Callable[[Reuse], Iterator[Row]]] = {
        "six": Reuse.six,
        "trivial": Reuse.trivial,
        "minilm": Reuse.minilm,
        "quickstart": Reuse.quickstart,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(known))
    parser.add_argument(
        "--folder", type=Path, help="scratch space is made in here; else where TMPDIR says"
    )
    parser.add_argument(
        "--commits", type=Path, help="JSON lines (.gz) with subject and body; else docstrings"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - known.keys():
        raise SystemExit(
            f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    print(machine_line(), flush=True)
    print("\n| bench | figure | goal |\n| --- | --- | --- |", flush=True)
    for name in options.names:
        with tempfile.TemporaryDirectory(prefix="chunkvisor-reuse-", dir=options.folder) as folder:
            for what, figure, goal in known[name](Reuse(Path(folder), options.commits)):
                print(f"| {what} | {figure} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
