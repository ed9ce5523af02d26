"""Every default, option, key, exit code, file name and command that the pages name is the program's."""

import ast
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import click
import numpy as np
import pytest
import yaml

from chunkvisor.cli import cli
from chunkvisor.commands.explain import names
from chunkvisor.config.load import load
from chunkvisor.config.model import Config
from chunkvisor.config.yaml import parse
from chunkvisor.errors import ExitCode
from chunkvisor.events.event import KINDS
from chunkvisor.sources.resolve import IngestRequest
from chunkvisor.sources.stage import stage
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.layout import InvocationFiles, Layout, OutputLayout
from chunkvisor.words import ENTRIES
from chunkvisor_worker.contract.exits import EXIT_OF_OUTCOME, Outcome, WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Cause, Fault, Phase
from chunkvisor_worker.contract.rules import RULES
from chunkvisor_worker.contract.taxonomy import diagnose, diagnose_log
from configpart import default, keys
from docpages import CURRENT, Block, blocks, inline_code, name_of, prose, text_of
from harness import ROOT

KEYS = keys()
GROUP = click.Context(cli, info_name="chunkvisor")
VERBS = {name: cli.get_command(GROUP, name) for name in cli.list_commands(GROUP)}


def options_of(command: click.Command | None) -> set[str]:
    """All spellings of the options of a command."""
    assert command is not None
    return {name for each in command.params if isinstance(each, click.Option) for name in each.opts} | {"--help", "-h"}


OURS = set().union(*map(options_of, VERBS.values())) | {"--version"}
FOREIGN = {
    "--require-hashes", "--time", "--array", "--parsable", "--dependency", "--requeue", "--signal", "--user",
    "--no-block", "--gpus", "--group", "--num-cpus", "--head", "--address", "--seconds", "--rows", "--editable",
    "--each", "--only", "--scenario", "--seed", "--size", "--shrink", "--bugs", "--go-on", "--sites", "--folders",
    "--list", "--log", "--kin", "--errors", "--at-once", "--first", "--pids-limit",
    "--commits", "--chunks", "--wait", "--texts", "--rounds", "--runs", "--repeat", "--detach", "--out", "--local-dir",
}  # fmt: skip
"""Options of other programs that the pages name: systemd, Slurm, Docker, Ray, pip, git and our own tests."""


def test_every_option_is_one_of_ours() -> None:
    """`--option` in the prose is an option of a command, and of the one that it is named with."""
    wrong = []
    for page in CURRENT:
        for code in inline_code(page):
            verb = re.match(r"(?:chunkvisor )?([a-z]+) .*?--", code)
            known = OURS | FOREIGN
            if verb and verb[1] in VERBS:
                known = options_of(VERBS[verb[1]])
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", code))
            wrong += [f"{name_of(page)}: `{code}`"] * bool(named - known)
    assert wrong == []


def test_every_command_exists() -> None:
    """`chunkvisor VERB`, `explain NAME`, `make VERB`, `python -m MODULE`, `python PATH` and extras are there."""
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    wrong = []
    for page in CURRENT:
        for code in [*inline_code(page), *(block.text for block in blocks(page, "sh", "console"))]:
            found = [(verb, verb in VERBS) for verb in re.findall(r"^(?:\$ )?chunkvisor ([a-z]+)", code, re.MULTILINE)]
            found += [(verb, verb in made) for verb in re.findall(r"^(?:\$ )?make ([a-z][a-z-]*)", code, re.MULTILINE)]
            explained = re.findall(r"chunkvisor explain ([\w-]+)", code)
            found += [(name, name == "NAME" or name in names()) for name in explained]
            for module in re.findall(r"python -m ((?:chunkvisor|tests)[\w.]*)", code):
                place = module.replace(".", "/")
                there = [ROOT / top / place for top in (".", "supervisor", "worker")]
                found.append((module, any(each.is_dir() or each.with_suffix(".py").is_file() for each in there)))
            found += [(path, (ROOT / path).is_file()) for path in re.findall(r"python ([\w/]+\.py)", code)]
            for listed in re.findall(r"(?:chunkvisor|'\.)\[([a-z,]+)\]", code):
                found += [(extra, extra in extras) for extra in listed.split(",")]
            wrong += [f"{name_of(page)}: {what}" for what, there in found if not there]
    assert wrong == []


def test_every_key_is_one_of_the_config() -> None:
    """`section.key` in the prose is a key; `outputs.NAME.key` and `outputs.*.key` are keys of an output."""
    sections = {key for key, field in KEYS.items() if "." not in key and any(k.startswith(f"{key}.") for k in KEYS)}
    wrong = []
    for page in CURRENT:
        for code in inline_code(page):
            named = re.fullmatch(r"(?:--set )?([a-z_]+)((?:\.[A-Za-z_*]+)+)(?:=.*)?(?:: .*)?", code)
            if named and named[1] in sections and Path(code).suffix not in (".json", ".jsonl", ".npy", ".encode"):
                key = (named[1] + named[2]).replace("outputs.*", "outputs.NAME")
                wrong += [f"{name_of(page)}: {code}"] * (key not in KEYS)
    assert wrong == []


SPELLED = {"ten minutes": "600", "three times": "3", "1,000": "1000", "25 s": "25", "a minute": "60"}
DEFAULTS = {
    ("README.md", "waits, ten minutes by default"): ("recovery.wait_timeout", "600"),
    ("docs/tutorial/getting-started.md", "1000 is the default"): ("chunk.size", "1000"),
    ("docs/explanation/how-it-works.md", "1,000 by default"): ("chunk.size", "1000"),
    ("docs/explanation/how-it-works.md", "`recovery.grace`, 25 s"): ("recovery.grace", "25"),
    ("docs/how-to/unattended.md", "`recovery.grace` (25 s)"): ("recovery.grace", "25"),
}
"""(page, words about a default) -> the key, and its default."""


def test_every_default_is_the_programs() -> None:
    """Words about a default are listed above with the key that they are about, and tell the default of that key."""
    said = re.compile(r"\d[\d,.]*[^\n|.;]{0,12} (?:by default|is the default)|(?:ten|three|a) \w+ by default")
    for page in CURRENT:
        text = text_of(page)
        for words in said.findall(text):
            known = [w for (name, w) in DEFAULTS if name == name_of(page) and words.split()[-1] in w]
            assert any(words in each or each in words for each in known) or "KillWait" in text, f"{page.name}: {words}"
    for (name, words), (key, value) in DEFAULTS.items():
        assert words in " ".join(text_of(ROOT / name).split()), (name, words)
        assert default(KEYS[key]).strip("`") == value, key


def test_every_exit_code_is_one() -> None:
    """A number that the prose calls an exit code is one, of chunkvisor or of a worker."""
    known = {int(code) for code in (*ExitCode, *WorkerExit)}
    said = re.compile(
        r"(?:exit codes?|ends? (?:it |them |the run )?with|ended with|refused?(?: it)? with|with code) (\d+)"
    )
    wrong = [
        f"{name_of(page)}: {match[0]}"
        for page in CURRENT
        for match in said.finditer(" ".join(prose(page).split()))
        if int(match[1]) not in known
    ]
    assert wrong == []


def codes(page: str, heading: str) -> set[int]:
    """The codes in the first column of the tables below a heading."""
    text = text_of(ROOT / page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return {int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE) for code in cell.split(",")}


def test_the_tables_of_exit_codes_are_complete() -> None:
    """The reference lists exactly those that exist; the page on diagnosis those that need a person, or another try."""
    assert codes("docs/reference/exit-codes.md", "Exit codes of chunkvisor") == set(ExitCode)
    assert codes("docs/reference/exit-codes.md", "Exit codes of a worker") == set(WorkerExit)
    helpless = {ExitCode.COMPLETE, ExitCode.BUG, ExitCode.USAGE, ExitCode.INTERRUPTED, ExitCode.TERMINATED}
    assert codes("docs/how-to/diagnose.md", "Look at the exit code") == set(ExitCode) - helpless


def names_of_files() -> set[str]:
    """The last part of every path that the program makes, as the pages spell it."""
    layout, output = Layout(Path("w")), OutputLayout(Path("w"), "NAME")
    found = set()
    for where in (layout, output, InvocationFiles(Path("i")), AttemptFiles(Path("a"))):
        found |= {value.name for name in dir(type(where)) if isinstance(value := getattr(where, name), Path)}
    tree = text_of(ROOT / "docs" / "reference" / "run-folder.md").partition("```text")[2].partition("```")[0]
    return found | {Path(line.split()[0]).name for line in tree.splitlines() if line.strip()}


OTHERS = {
    *("articles.csv", "titles.npy", "titles.json", "titles.npy.chunkvisor", "embeddings.yaml", "config.yaml"),
    *("articles.yaml", "sentences.txt", "lengths.py", "night.html", "part-*.csv", "docstrings.jsonl", "NAME.json"),
    *("NAME.npy", "NAME.parquet", "NAME.rows.parquet", "NAME.ranges.npy", "OUT.npy", "OUT.json", "commits.jsonl.gz"),
    *("0000.npy", "0015.npy", "0000.parquet", "embeddings.npy", "x.npy", "bridge.log", "chunkvisor.yaml"),
    *("CUDACachingAllocator.cpp", "PeerToPeerAccess.cpp", "pyproject.toml", "a.csv"),
    *("config.json", "modules.json", "config_sentence_transformers.json", "tokenizer_config.json", "modeling_qwen.py"),
    *("index.bin", "sentences.json", "titles.rows.parquet", "docs_filled.npy", "docs_filled.rows.parquet"),
}
"""Files of the reader, and of others, that the pages name."""


def test_every_file_is_one_that_there_is() -> None:
    """A file name in the prose is one that a run makes, one of this repository, or one of the reader's own above."""
    known = names_of_files() | OTHERS | set(_repository())
    ending = r"json|jsonl|log|npy|yaml|parquet|html|py|sh|sbatch|csv|txt|md|prom|toml|bin|service"
    wrong = []
    for page in CURRENT:
        for code in inline_code(page):
            path = code.split("#")[0]
            if re.fullmatch(rf"[\w<>.*/@{{}}-]+\.(?:{ending})", path) and not path.startswith((".", "*")):
                name = Path(path.replace("<output>", "NAME")).name
                wrong += [f"{name_of(page)}: {code}"] * (name not in known and Path(path).name not in known)
    assert wrong == []


def _repository() -> Iterator[str]:
    """Names of all files; os.walk passes over a folder that goes while it looks."""
    tops = ("supervisor", "worker", "tests", "tools", "docs", "benchmarks", "configs", "examples", "quickstart")
    yield from (name for top in tops for _, _, names in os.walk(ROOT / top) for name in names)
    yield from (path.name for path in ROOT.iterdir())


def test_the_run_folder_has_every_file() -> None:
    """The page names each path of the workdir, of an attempt and of an invocation; not the records of an output."""
    page = text_of(ROOT / "docs" / "reference" / "run-folder.md")
    for kind in (Layout, InvocationFiles, AttemptFiles):
        for name, entry in vars(kind).items():
            file = getattr(entry, "name", None) or getattr(entry, "_name", None)
            if isinstance(file, str) and not name.startswith("_") and not callable(entry):
                assert re.search(rf"(?<![\w.]){re.escape(file)}(?!\w)", page), f"{kind.__name__}.{name}: {file}"


EXECUTED = {
    "docs/tutorial/getting-started.md": ("sh", "python", "tests/process/test_documentation.py"),
    "docs/reference/python.md": ("python", "tests/process/test_python.py"),
    "docs/how-to/gpu-tests.md": ("python", "tests/process/test_python.py"),
    "docs/how-to/coming-from-encode.md": ("python", "tests/process/test_documentation.py"),
    "docs/how-to/use-the-vectors.md": ("python", "tests/process/test_use.py"),
    "docs/how-to/unattended.md": ("sh", "tests/process/test_unattended.py"),
    "docs/how-to/write-an-encoder.md": ("python", "tests/unit/test_docs_claims.py"),
}
"""Page -> languages whose blocks are run, and the test that runs them."""


def test_every_block_is_run_or_says_why_not() -> None:
    """A block is run by a test, read by one (commands, configs), is output, or has a reason above it."""
    wrong = []
    for page in CURRENT:
        *languages, test = EXECUTED.get(name_of(page), ("",))
        for block in blocks(page):
            known = block.language in (*languages, "yaml", "text", "ini") or block.why_not
            if not known and not (block.language in ("sh", "console") and all(map(_can_be_read, _lines(block)))):
                wrong.append(f"{block.language or 'no language'}: {block.place}")
    assert wrong == []
    for page_name, (*_, test) in EXECUTED.items():
        assert Path(page_name).name in (ROOT / test).read_text("utf-8"), (page_name, test)


def _lines(block: Block) -> Iterator[str]:
    for line in block.text.splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.removeprefix("$ ").strip()


def _can_be_read(line: str) -> bool:
    """It is nothing but calls whose words other tests here compare."""
    return line.startswith(("chunkvisor ", "make ", "python -m tests.", "python benchmarks/", "pip install '.["))


def test_every_call_of_chunkvisor_is_valid() -> None:
    """Every command line of a block names a command and options that exist, with the arguments they need."""
    for page in CURRENT:
        for block in blocks(page, "sh", "console"):
            for name, *arguments in _calls(block):
                if not name.startswith("-"):
                    command = VERBS.get(name)
                    assert command is not None, block.place
                    command.make_context(name, list(arguments))


def _calls(block: Block) -> Iterator[list[str]]:
    for line in block.text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        while "chunkvisor" in words:
            words = words[words.index("chunkvisor") + 1 :]
            end = next((place for place, word in enumerate(words) if word[0] in "();<>|&"), len(words))
            if words[:end]:
                yield words[:end]


def test_every_config_is_valid(tmp_path: Path) -> None:
    """Every YAML block is taken by the loader, a part of a config together with the least of the rest."""
    least = {"workdir": "w", "model": {"name": "m"}, "outputs": {"a": {"source": "a.csv", "column": "c"}}}
    path = tmp_path / "config.yaml"
    for page in CURRENT:
        for block in blocks(page, "yaml"):
            values = parse(block.text).value
            path.write_text(block.text if "workdir" in values else yaml.safe_dump(least | values))
            load(path)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_config_is_valid_and_explained(path: Path) -> None:
    """Every config in configs/ passes the validation that `run` puts it through, and every line has a comment."""
    Config.model_validate(yaml.safe_load(path.read_text("utf-8")), context={"folder": path.parent})
    assert [line for line in path.read_text("utf-8").splitlines() if line.strip() and "# " not in line] == []


def test_the_starter_has_every_key() -> None:
    """What `chunkvisor init` writes shows every key, those with a default as a comment."""
    lines = files("chunkvisor").joinpath("starter.yaml").read_text("utf-8").splitlines()
    shown = {re.sub(r"^ *(# )?", "", line).partition(":")[0] for line in lines}
    assert {key.rpartition(".")[2] for key in KEYS} - shown == set()


def test_the_recipe_for_a_json_list_works(tmp_path: Path) -> None:
    """The expression in docs/how-to/sources.md makes lines of a list, and an empty text of an empty cell or list."""
    (tmp_path / "train.csv").write_text('commit\n"[""fix: a"", ""add b""]"\n""\n[]\n')
    (config, *_) = blocks(ROOT / "docs" / "how-to" / "sources.md", "yaml")
    expression = yaml.safe_load(config.text)["outputs"]["commits"]["sql"]
    (tmp_path / "table").mkdir()
    stage(IngestRequest((str(tmp_path / "train.csv"),), sql=expression), tmp_path / "table")
    staged = StagedTable.open(tmp_path / "table")
    assert (staged.rows, staged.texts(0, 2)) == (3, ["fix: a\nadd b", ""])


def test_the_encoder_works() -> None:
    """That of docs/how-to/write-an-encoder.md."""
    (block,) = blocks(ROOT / "docs" / "how-to" / "write-an-encoder.md", "python")
    namespace: dict[str, object] = {}
    exec(compile(ast.parse(block.text), block.place, "exec"), namespace)
    vectors = namespace["make"](None, "cpu").encode(["two words", "one"], 32)  # type: ignore[operator]
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[9, 2, 1], [3, 1, 1]]


def test_every_outcome_has_a_step_on_the_page() -> None:
    """The table in how-it-works.md says what follows each outcome of an attempt."""
    text = text_of(ROOT / "docs" / "explanation" / "how-it-works.md").partition("## What follows a failure\n")[2]
    assert {outcome for outcome in Outcome if f"`{outcome}`" in text.partition("\n## ")[0]} == set(Outcome)


def test_every_symptom_leads_to_its_rule() -> None:
    """A message in the first table of failures.md, met by a worker, is known by the rule beside it."""
    page = text_of(ROOT / "docs" / "reference" / "failures.md")
    rows = re.findall(r"^\| `(.+?)` \| `([\w-]+)` \| \[`(\w+)`\]", page, re.MULTILINE)
    assert len(rows) > 20
    by_name = {rule.name: rule for rule in RULES}
    for message, name, outcome in rows:
        assert (by_name[name].outcome, outcome in ENTRIES) == (outcome, True), name
        assert name in set(_rules_for(message)), message


def _rules_for(message: str) -> Iterator[str]:
    """Of an exception with these words, of the classes and in the phases that may have it; and of a log's end."""
    for name in ("RuntimeError", "OSError", "ImportError", "AssertionError", "ValueError"):
        for phase in (Phase.MODEL_LOAD, Phase.FORWARD, Phase.WRITE):
            yield diagnose(Fault(phase, (Cause(f"builtins.{name}", ("builtins.Exception",), message),), "")).rule.name
    if (found := diagnose_log(message, 1)) is not None:
        yield found.rule.name


def test_numbers_of_things_are_right() -> None:
    """How many rules there are, and how many of them were seen on a card."""
    assert f"All {len(RULES)} rules" in text_of(ROOT / "docs" / "reference" / "failures.md")
    assert "one of fifteen" in text_of(ROOT / "docs" / "explanation" / "how-it-works.md")
    assert len(Outcome) == 15


def test_no_page_says_that_no_card_was_seen() -> None:
    """Rules were seen on a card, so no page says that none has been seen, measured or asked yet."""
    denied = re.compile(
        r"\b(?:no|nobody|nothing|not)\b[^.]{0,80}\b(?:GPU|card|on one)\b[^.]{0,30}\byet\b", re.IGNORECASE
    )
    wrong = [
        f"{name_of(page)}: {match[0]}"
        for page in CURRENT
        for match in denied.finditer(" ".join(prose(page).split()))
        if re.search("seen|run|measured|confirmed|tried", match[0])
    ]
    assert wrong == []


def test_codes_of_a_worker_mean_what_they_say() -> None:
    """Each can come of a rule or of a worker's own leaving; 27 is in the words of its rule, and is no NaN."""
    by_rule = {EXIT_OF_OUTCOME[rule.outcome] for rule in RULES}
    assert by_rule | {WorkerExit.DONE, WorkerExit.USAGE, WorkerExit.TAINTED_TEMPLATE} == set(WorkerExit)
    page = text_of(ROOT / "docs" / "reference" / "exit-codes.md").partition("## Exit codes of a worker")[2]
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE))
    (rule,) = [rule for rule in RULES if rule.outcome is Outcome.BAD_OUTPUT]
    assert rows["27"].startswith("the encoder gave too few vectors, or misshapen ones, or of the wrong type.")
    assert rule.cause.endswith("too few, misshapen or of the wrong type.")
    assert "NaN" in rows["27"].partition("found by the parent")[0]


def test_figures_say_whence_they_come() -> None:
    """Each section of performance.md tells command, date and machine of its figures."""
    for section in text_of(ROOT / "docs" / "explanation" / "performance.md").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        measured = re.search(r"\*Measured: (.+?)\*(?=\s)", text, re.DOTALL)
        assert measured is not None, heading
        for part in (r"`[^`]+`", r"\d{4}-\d\d-\d\d", r"\d(?: \w+)? cores"):
            assert re.search(part, measured[1]), f"{heading}: {part}"


def test_every_event_is_on_its_page() -> None:
    """As are the outcomes on theirs."""
    page = text_of(ROOT / "docs" / "reference" / "events.md")
    assert [name for name in KINDS if f"| `{name}` |" not in page] == []
    entries = text_of(ROOT / "docs" / "reference" / "failures.md")
    assert [name for name in ENTRIES if f"### {name}\n" not in entries] == []


def test_the_readme_is_two_screens() -> None:
    """With its commands at the top, and not much longer than a hundred lines."""
    lines = text_of(ROOT / "README.md").splitlines()
    assert len(lines) <= 110
    assert "make quickstart" in "\n".join(lines[:16])
