"""Every default, option, key, exit code, file name and command that the pages name is the
program's.
"""

import ast
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import click
import numpy as np
import pytest
import yaml

from chunkvisor.cli import cli
from chunkvisor.commands.explain import entry_names
from chunkvisor.config.load import load, parse
from chunkvisor.errors import ExitCode
from chunkvisor.messages import ENTRIES
from chunkvisor.sources.resolve import IngestRequest
from chunkvisor.sources.stage import stage
from chunkvisor.sources.table import StagedTable
from chunkvisor.testing import FAULTS
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Cause, Fault, Phase
from chunkvisor_worker.contract.rules import RULES
from chunkvisor_worker.contract.taxonomy import diagnose, diagnose_log
from commandpart import EXITS
from configpart import keys
from docpages import (
    CURRENT,
    EXTRAS,
    PAGES,
    Block,
    anchors,
    blocks,
    inline_code,
    links,
    name_of,
    prose,
    text_of,
)
from harness import ROOT

KEYS = keys()
GROUP = click.Context(cli, info_name="chunkvisor", **cli.context_settings)
VERBS = {name: cli.get_command(GROUP, name) for name in cli.list_commands(GROUP)}


def options_of(command: click.Command | None) -> set[str]:
    """All spellings of the options of a command."""
    assert command is not None
    names = {name for each in command.params for name in each.opts if name.startswith("-")}
    return names | {"--help", "-h"}


@pytest.mark.parametrize("verb", VERBS)
def test_what_help_says(verb: str) -> None:
    """Options, exit codes and keys that it names are there, each option is explained, and the
    example can be parsed.
    """
    command = VERBS[verb]
    assert command is not None
    words = " ".join(command.get_help(click.Context(command, info_name=verb, parent=GROUP)).split())
    assert all(each.help for each in command.params if isinstance(each, click.Option))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", words)) <= options_of(command)
    told = re.findall(r"exit code,? (?:which )?(?:is )?(\d+)|and (\d+) where", words)
    assert {int(code or other) for code, other in told} <= set(EXITS[verb])
    assert set(re.findall(r"e\.g\. ([\w.]+)=", words)) <= set(KEYS)

    example = (command.epilog or "").partition("Example: ")[2].splitlines()[0]
    first, *arguments = shlex.split(re.split(r" (?:&&|>>?) ", example)[0])
    assert (first, arguments.pop(0)) == ("chunkvisor", verb)
    given = command.make_context(verb, arguments, parent=GROUP, resilient_parsing=False).params
    assert {override.partition("=")[0] for override in given.get("overrides") or ()} <= set(KEYS)
    assert set(given.get("names") or ()) <= {fault.name for fault in FAULTS}
    assert verb != "explain" or given["name"] in entry_names()


OURS = set().union(*map(options_of, VERBS.values())) | {"--version"}
FOREIGN = {"--time", "--array", "--signal", "--gpus", "--num-cpus", "--rows", "--out"}
"""Options of other programs that the pages name."""


def test_every_option_is_one_of_ours() -> None:
    """`--option` in the prose is an option of a command, and of the one that it is named with."""
    for page in CURRENT:
        for code in inline_code(page):
            verb = re.match(r"(?:chunkvisor )?([a-z]+) .*?--", code)
            known = OURS | FOREIGN
            if verb and verb[1] in VERBS:
                known = options_of(VERBS[verb[1]])
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", code))
            assert named <= known, f"{name_of(page)}: {code}"


def is_module(name: str) -> bool:
    """Whether a package or a module of ours has this name."""
    path = name.replace(".", "/")
    places = [ROOT / top / path for top in (".", "supervisor", "worker")]
    return any(each.is_dir() or each.with_suffix(".py").is_file() for each in places)


def test_every_command_exists() -> None:
    """`chunkvisor VERB`, `explain NAME`, `make VERB`, `python -m MODULE`, `python PATH` and extras
    are there.
    """
    made = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    checks: dict[str, Callable[[str], bool]] = {
        r"^(?:\$ )?chunkvisor ([a-z]+)": VERBS.__contains__,
        r"^(?:\$ )?make ([a-z][a-z-]*)": made.__contains__,
        r"chunkvisor explain ([\w-]+)": ["NAME", *entry_names()].__contains__,
        r"python -m ((?:chunkvisor|tests)[\w.]*)": is_module,
        r"python ([\w/]+\.py)": lambda path: (ROOT / path).is_file(),
        r"(?:chunkvisor|'\.)\[([a-z,]+)\]": lambda names: set(names.split(",")) <= EXTRAS,
    }
    for page in CURRENT:
        codes = [*inline_code(page), *(block.text for block in blocks(page))]
        for pattern, is_there in checks.items():
            for name in re.findall(pattern, "\n".join(codes), re.MULTILINE):
                assert is_there(name), f"{name_of(page)}: {name}"


def test_every_key_is_one_of_the_config() -> None:
    """`section.key` in the prose is a key; `outputs.NAME.key` and `outputs.*.key` are keys of an
    output.
    """
    sections = {key.partition(".")[0] for key in KEYS if "." in key}
    for page in CURRENT:
        for code in inline_code(page):
            named = re.fullmatch(r"(?:--set )?([a-z_]+)((?:\.[A-Za-z_*]+)+)(?:=.*)?(?:: .*)?", code)
            if (
                named
                and named[1] in sections
                and Path(code).suffix not in (".json", ".jsonl", ".npy", ".encode")
            ):
                key = (named[1] + named[2]).replace("outputs.*", "outputs.NAME")
                assert key in KEYS, f"{name_of(page)}: {code}"


def codes(page: str, heading: str) -> set[int]:
    """The codes in the first column of the tables below a heading."""
    text = text_of(ROOT / page).partition(f"{heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE)
    return set(map(int, ",".join(cells).split(",")))


def test_the_tables_of_exit_codes_are_complete() -> None:
    """The reference lists exactly those that exist; the page on diagnosis those that need a person,
    or another try.
    """
    assert codes("docs/reference/exit-codes.md", "# Exit codes") == set(ExitCode)
    others = set(ExitCode) - {0, 1, 2, 130, 143}
    assert codes("docs/how-to/diagnose.md", "## Look at the exit code") == others


def test_every_call_of_chunkvisor_is_valid() -> None:
    """Every command line of a block names a command and options that exist, with the arguments they
    need.
    """
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
            end = next(
                (place for place, word in enumerate(words) if word[0] in "();<>|&"), len(words)
            )
            if words[:end]:
                yield words[:end]


def test_every_config_is_valid(tmp_path: Path) -> None:
    """Every YAML block is taken by the loader, a part of a config together with the least of the
    rest.
    """
    least = yaml.safe_load(
        "{workdir: w, model: {name: m}, outputs: {a: {source: a.csv, column: c}}}"
    )
    path = tmp_path / "config.yaml"
    for page in CURRENT:
        for block in blocks(page, "yaml"):
            values, _ = parse(block.text, str(page))
            path.write_text(block.text if "workdir" in values else yaml.safe_dump(least | values))
            load(path)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_an_example_config_is_explained(path: Path) -> None:
    """Every line of a config in configs/ has a comment (test_configs.py runs them)."""
    lines = path.read_text("utf-8").splitlines()
    assert all("# " in line for line in lines if line.strip())


def test_the_starter_has_every_key() -> None:
    """What `chunkvisor init` writes shows every key, those with a default as a comment."""
    lines = files("chunkvisor").joinpath("starter.yaml").read_text("utf-8").splitlines()
    shown = {re.sub(r"^ *(# )?", "", line).partition(":")[0] for line in lines}
    assert {key.rpartition(".")[2] for key in KEYS} - shown == set()


def test_the_recipe_for_a_json_list_works(tmp_path: Path) -> None:
    """The expression in docs/how-to/sources.md makes lines of a list, and an empty text of an empty
    cell or list.
    """
    (tmp_path / "train.csv").write_text('commit\n"[""fix: a"", ""add b""]"\n""\n[]\n')
    (config, *_) = blocks(ROOT / "docs" / "how-to" / "sources.md", "yaml")
    expression = yaml.safe_load(config.text)["outputs"]["commits"]["sql"]
    (tmp_path / "table").mkdir()
    stage(IngestRequest((str(tmp_path / "train.csv"),), sql=expression), tmp_path / "table")
    staged = StagedTable.open(tmp_path / "table")
    assert (staged.rows, staged.texts(0, 2)) == (3, ["fix: a\nadd b", ""])


def test_the_encoder_works() -> None:
    """That of docs/how-to/write-an-encoder.md."""
    block, _ = blocks(ROOT / "docs" / "how-to" / "write-an-encoder.md", "python")
    namespace: dict[str, Any] = {}
    exec(block.text, namespace)
    vectors = namespace["make"](None, "cpu").encode(["two words", "one"], 32)
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[9, 2, 1], [3, 1, 1]]


def test_the_encoder_of_images_works() -> None:
    """It hands the pictures at these paths to the library, both of which are stand-ins here."""
    _, block = blocks(ROOT / "docs" / "how-to" / "write-an-encoder.md", "python")
    library = SimpleNamespace(encode=lambda images, batch_size: images)
    found = {
        "PIL": SimpleNamespace(Image=SimpleNamespace(open=str.upper)),
        "sentence_transformers": SimpleNamespace(SentenceTransformer=lambda *_, device: library),
    }
    namespace: dict[str, Any] = {}
    with mock.patch.dict(sys.modules, found):
        exec(block.text, namespace)
        assert namespace["make"](SimpleNamespace(name="m"), "cpu").encode(["a.png"], 8) == ["A.PNG"]


def test_every_outcome_has_a_step_on_the_page() -> None:
    """The table in how-it-works.md says what follows each outcome of an attempt."""
    text = text_of(ROOT / "docs" / "explanation" / "how-it-works.md").partition(
        "## What follows a failure\n"
    )[2]
    assert {outcome for outcome in Outcome if f"`{outcome}`" in text.partition("\n## ")[0]} == set(
        Outcome
    )


def test_every_symptom_leads_to_its_rule() -> None:
    """A message in the first table of failures.md, met by a worker, is known by the rule beside it."""
    page = text_of(ROOT / "docs" / "reference" / "failures.md")
    rows = re.findall(r"^- `(.+?)`: `([\w-]+)`, \[`(\w+)`\]", page, re.MULTILINE)
    assert len(rows) > 20
    by_name = {rule.name: rule for rule in RULES}
    for message, name, outcome in rows:
        assert (by_name[name].outcome, outcome in ENTRIES) == (outcome, True), name
        assert name in set(_rules_for(message)), message


def test_the_last_words_are_those_of_the_program() -> None:
    """The example of diagnose.md has the words of its rule."""
    (block, *_) = blocks(ROOT / "docs" / "how-to" / "diagnose.md", "text")
    (rule,) = (rule for rule in RULES if rule.name in block.text)
    assert rule.cause[:-1] in block.text
    assert rule.remedy.partition(",")[0] in block.text


def _rules_for(message: str) -> Iterator[str]:
    """Of an exception with these words, of the classes and in the phases that may have it; and of a
    log's end.
    """
    for name in ("RuntimeError", "OSError", "ImportError", "AssertionError", "ValueError"):
        for phase in (Phase.MODEL_LOAD, Phase.FORWARD, Phase.WRITE):
            yield diagnose(
                Fault(phase, (Cause(f"builtins.{name}", ("builtins.Exception",), message),), "")
            ).rule.name
    if (found := diagnose_log(message, 1)) is not None:
        yield found.rule.name


def test_figures_say_whence_they_come() -> None:
    """Each section of performance.md tells command, date and machine of its figures."""
    for section in text_of(ROOT / "docs" / "explanation" / "performance.md").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        measured = re.search(r"\*Measured: (.+?)\*(?=\s)", text, re.DOTALL)
        assert measured is not None, heading
        for part in (r"`[^`]+`", r"\d{4}-\d\d-\d\d", r"\d(?: \w+)? cores"):
            assert re.search(part, measured[1]), f"{heading}: {part}"


def test_the_readme_is_two_screens() -> None:
    """It begins with the error that people search for, and its set-up is two commands."""
    text = text_of(ROOT / "README.md")
    assert len(text.splitlines()) <= 115
    assert "NVML_SUCCESS == r INTERNAL ASSERT FAILED" in text.partition("![")[0]
    assert "```sh\nmake quickstart" in text


def test_exit_codes_are_told_of_every_command() -> None:
    """The table behind the page has each command, and codes that exist."""
    assert set(EXITS) == set(VERBS)
    assert set().union(*EXITS.values()) <= set(ExitCode)


def test_every_key_says_what_it_means() -> None:
    """Each key of the config has a sentence, which editors show, too."""
    assert [key for key, field in KEYS.items() if not field.description and "." in key] == []


def test_every_link_leads_somewhere() -> None:
    """A relative link names a file that is there, and a heading that is in it."""
    for page in [*PAGES, *ROOT.glob("tests/*/README.md")]:
        for target in links(page):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            if "://" not in target:
                assert file.exists(), f"{name_of(page)}: {target}"
                assert not anchor or anchor in anchors(file), f"{name_of(page)}: {target}"


def test_no_name_is_lost_as_html() -> None:
    """Outside of code a page has no tags: `<output>` without backticks would not be seen."""
    for page in PAGES:
        plain = re.sub(r"`[^`]*`", "", prose(page))
        assert re.findall(r"<[a-z/][^>]*>", plain) == [], name_of(page)


def test_every_page_is_found() -> None:
    """mkdocs.yml lists every page of docs/ once, and no other; docs/index.md links to all others."""
    folder = ROOT / "docs"
    pages = sorted(str(page.relative_to(folder)) for page in folder.rglob("*.md"))
    menu = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    assert sorted(re.findall(r"[\w/-]+\.md", menu)) == pages
    assert {"index.md", *links(folder / "index.md")} >= set(pages)


DIALECT = re.compile(
    r"\b(?:beside|nobody|somebody|anew|afresh|under way|mostly|so many|mends?|by "
    r"(?:itself|themselves))\b"
    r"|\b(?:goes|go|going) on\b|\bof (?:its|their|your|our) own\b|\b(?:is|are|be) told\b|\btold "
    r"(?:of|apart)\b"
    r"|(?<!here )\b(?:is|are) no (?!longer|more)|\b(?:that|which) (?:is|are) none\b|, too\b|\bthe "
    r"supervisor\b"
    r"|\bwhat is (?:there|made|left|rounded|known)\b"
    r"|\w*(?:isation|ise[sd]|neighbour|behaviour|colour|licence)\b",
    re.IGNORECASE,
)
"""What a translation sounds like; the words to write instead are those of a reader: in progress,
again, usually."""
PLAIN = ("otherwise", "raised", "raises", "rises")


def _messages() -> Iterator[tuple[str, str]]:
    """Yield (place, text) of the strings in the program that are sentences, not docstrings."""
    for path in sorted([*ROOT.glob("supervisor/**/*.py"), *ROOT.glob("worker/**/*.py")]):
        tree = ast.parse(path.read_text("utf-8"))
        docs = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
        for each in ast.walk(tree):
            if (
                isinstance(each, ast.Constant)
                and isinstance(each.value, str)
                and id(each) not in docs
            ):
                yield f"{path.relative_to(ROOT)}:{each.lineno}", each.value


def test_pages_and_messages_are_plain_english() -> None:
    """Neither a page nor a message has the words of the list."""
    texts = [(name_of(page), re.sub(r"`[^`]*`", "", prose(page))) for page in CURRENT]
    found = [
        f"{place}: {text[max(0, hit.start() - 30) : hit.end() + 30]!r}"
        for place, text in (*texts, *_messages())
        for hit in DIALECT.finditer(text)
        if " " in text and not hit[0].lower().endswith(PLAIN)
    ]
    assert found == []
