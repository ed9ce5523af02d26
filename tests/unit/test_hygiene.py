"""What holds for the whole program: who imports whom, what the supervisor never loads, who may read
the files.
"""

import ast
import functools
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pages
from harness import ROOT

SUPERVISOR, WORKER = ROOT / "supervisor" / "chunkvisor", ROOT / "worker" / "chunkvisor_worker"
HEAVY = ("torch", "transformers", "sentence_transformers", "tokenizers", "duckdb", "ray")
"""None of these may come into the supervisor's process."""

PACKAGES = (
    "cli",
    "sentence_transformers",
    "api",
    "results",
    "commands",
    "testing",
    "supervise",
    "core",
    "show",
    "messages",
    "outputs",
    "sources",
    "engine",
    "devices",
    "store",
    "decide",
    "judge",
    "events",
    "config",
    "child",
    "printing",
    "errors",
    "units",
    "version",
)
"""The packages, and the modules beside them, from top to bottom."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    """What is in the file."""
    return ast.parse(path.read_text())


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports anywhere in it, function bodies included."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(package: Path) -> list[Path]:
    """Its Python files; there are some."""
    files = sorted(package.rglob("*.py"))
    assert files
    return files


def test_supervisor_knows_only_the_contract() -> None:
    """Of the worker the supervisor imports nothing but `contract`; and no heavy library but in a
    child. The class for pipelines of sentence-transformers is that library's own.
    """
    for path in files_of(SUPERVISOR):
        if path == SUPERVISOR / "sentence_transformers.py":
            continue
        allowed = {"duckdb"} if path.parent.name == "sources" else set()
        if path.parent.name == "ray" and path.name in ("bridge.py", "agentproxy.py", "survey.py"):
            allowed = {"ray"}
        for name in imported(path):
            ours = not f"{name}.".startswith("chunkvisor_worker.") or f"{name}.".startswith(
                "chunkvisor_worker.contract."
            )
            assert ours, f"{path} imports {name}"
            assert name.partition(".")[0] not in set(HEAVY) - allowed, f"{path} imports {name}"


def test_a_package_imports_only_what_stands_below_it() -> None:
    """Every module is in a package of the list, and imports that package and those below it alone."""
    for path in files_of(SUPERVISOR):
        folder = path.relative_to(SUPERVISOR).with_suffix("").parts[0]
        if folder in ("__init__", "__main__"):
            continue
        below = PACKAGES[PACKAGES.index(folder) :]
        for name in imported(path):
            package, _, inside = name.partition(".")
            assert package != "chunkvisor" or inside.partition(".")[0] in below, (
                f"{path} imports {name}: not below it"
            )


def test_no_circle_of_imports() -> None:
    """No module imports itself through others, not even late or for its types alone."""
    paths = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts): path
        for root in (SUPERVISOR, WORKER)
        for path in files_of(root)
    }
    ours = {name.removesuffix(".__init__") for name in paths}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        found = {each if each in ours else each.rpartition(".")[0] for each in imported(path)}
        graph[name.removesuffix(".__init__")] = (found & ours) - {name.removesuffix(".__init__")}
    TopologicalSorter(graph).prepare()


def test_a_model_waits_for_no_import_that_it_can_do_without() -> None:
    """What a run imports before its model begins to load has neither numpy nor what works on its
    outputs.
    """
    light = ("cli.run", "config.load", "show.lines", "supervise.session", "show.invocation")
    program = (
        f"import sys, {', '.join(f'chunkvisor.{name}' for name in light)}; print(*sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    late = {"numpy", "xxhash", "chunkvisor.supervise.work", "chunkvisor.core.loop"}
    assert late.isdisjoint(ended.stdout.split())


def test_worker_does_not_know_the_supervisor() -> None:
    """The worker imports nothing of the supervisor; its contract needs the standard library and
    itself alone.
    """
    for path in files_of(WORKER):
        for name in imported(path):
            top = name.partition(".")[0]
            assert top != "chunkvisor", path
            if (WORKER / "contract") in path.parents:
                alone = top in sys.stdlib_module_names or f"{name}.".startswith(
                    "chunkvisor_worker.contract."
                )
                assert alone, f"{path} imports {name}"


MAY_PRINT = {"printing.py", "engine/ray/bridge.py", "show/notices.py", "commands/drill.py"}
"""The one that prints, and programs of their own, whose output is read by ours."""


def test_what_is_printed_goes_through_one_module() -> None:
    """`printing` takes out what could steer a terminal, and passes over one that is closed."""
    for path in files_of(SUPERVISOR):
        if str(path.relative_to(SUPERVISOR)) in MAY_PRINT:
            continue
        calls = [
            ast.unparse(node.func) for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)
        ]
        printing = {"print", "click.echo", "click.secho", "click.confirm"}
        assert printing.isdisjoint(calls), path
        streams = ("._stream.write", "stream.write", "sys.stdout.write", "sys.stderr.write")
        assert not any(call.endswith(streams) for call in calls), path


def test_no_page_is_stale() -> None:
    """Each generated part is as `python tools/pages.py` writes it, and each that can be made is in
    one page.
    """
    texts = {page: page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md")}
    stale = [str(page) for page, text in texts.items() if pages.renewed(text) != text]
    assert stale == [], "run `python tools/pages.py`, and commit what it writes"
    assert sorted(name for text in texts.values() for name in pages.parts_in(text)) == sorted(
        pages.PARTS
    )


TEXT_TIMES_FLAG = re.compile(r"""f?(['"]).{2,}\1 \* \D|'.' \* .*([=<>]|bool\()""")
"""A text that is there or not. One character may be repeated, and any text a fixed number of times."""


def test_pytest_finds_every_file_of_tests() -> None:
    """Two files of one name in folders that one command collects: pytest leaves out the second."""
    folders = ("unit", "process", "simulator", "soak")
    files = [path for folder in folders for path in (ROOT / "tests" / folder).rglob("test_*.py")]
    names = Counter(path.name for path in files)
    assert [name for name, count in names.items() if count > 1] == []


def own_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a statement but those of the statements in it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt):
            yield child
            yield from own_nodes(child)


def test_a_statement_has_one_thought() -> None:
    """No statement has two walruses, and none multiplies a text by a flag: an `if` says the same."""
    dense = []
    for path in [*files_of(SUPERVISOR), *files_of(WORKER)]:
        for statement in ast.walk(parsed(path)):
            if not isinstance(statement, ast.stmt):
                continue
            nodes = list(own_nodes(statement))
            walruses = sum(isinstance(each, ast.NamedExpr) for each in nodes)
            products = [ast.unparse(each) for each in nodes if isinstance(each, ast.BinOp)]
            if walruses > 1 or any(map(TEXT_TIMES_FLAG.match, products)):
                dense.append(f"{path.relative_to(ROOT)}:{statement.lineno}")
    assert dense == []


MOST = {"tokens of source": 162_500, "tokens of tests": 209_000, "words": 22_000}
"""What there is at most: whoever adds says what goes. Tokens, since wide lines must not save
anything. The goals are 152,000, 200,000 and 22,000."""

LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
}


def tokens_of(path: Path) -> int:
    """Count the tokens of a file without comments and layout. A docstring is one, and so is an
    f-string, which Python takes apart from 3.12 on.
    """
    count = depth = 0
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            count += not depth and token.type not in LAYOUT
            name = tokenize.tok_name[token.type]
            depth += (name == "FSTRING_START") - (name == "FSTRING_END")
    return count


def test_the_program_does_not_grow() -> None:
    """Tokens of source and of tests, and words of the pages, are at most what the design allows."""
    names = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in names)]
    found = {
        "tokens of source": sum(map(tokens_of, [*files_of(SUPERVISOR), *files_of(WORKER)])),
        "tokens of tests": sum(map(tokens_of, files_of(ROOT / "tests"))),
        "words": sum(len(path.read_text("utf-8").split()) for path in pages),
    }
    assert {name: count for name, count in found.items() if count > MOST[name]} == {}
