"""Holds README, docs and example configs against the code that they describe."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from chunkvisor.config import Config
from chunkvisor.errors import ExitCode
from chunkvisor_worker.contract.exits import Outcome, WorkerExit

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
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


def test_readme_config_is_valid() -> None:
    """The README's minimal config passes validation."""
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)

    Config.model_validate(yaml.safe_load(example), context={"folder": ROOT})


def documented() -> dict[str, str]:
    """Key -> default, from the tables of docs/config.md."""
    text = (ROOT / "docs" / "config.md").read_text("utf-8")
    return dict(re.findall(r"^\| `([\w.]+)` \| `?(.*?)`? \|", text, re.MULTILINE))


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted path of every key of a config model; overrides within an output are named by their section only."""
    for name, field in model.model_fields.items():
        yield prefix + name
        section_type = field.annotation
        if not prefix and isinstance(section_type, type) and issubclass(section_type, BaseModel):
            yield from keys(section_type, f"{prefix}{name}.")


def test_config_page_has_every_key() -> None:
    """docs/config.md explains every key that a config can have, and no other."""
    outputs = Config.model_json_schema()["$defs"]["OutputConfig"]["properties"]

    assert set(documented()) == {*keys(Config), *(f"outputs.NAME.{name}" for name in outputs)}


def test_config_page_tells_the_defaults() -> None:
    """A config that spells out every default of docs/config.md is the same as one that has none of them."""
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


def codes(text: str) -> set[int]:
    """The codes in the first column of a table."""
    return {int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE) for code in cell.split(",")}


@pytest.mark.parametrize(
    ("page", "heading", "expected"),
    [
        ("README.md", "Exit codes", set(ExitCode)),
        ("docs/exit-codes.md", "Exit codes of chunkvisor", set(ExitCode)),
        ("docs/exit-codes.md", "Exit codes of a worker", set(WorkerExit)),
    ],
)
def test_exit_code_table_is_complete(page: str, heading: str, expected: set[int]) -> None:
    """A table of exit codes lists exactly those that exist."""
    assert codes(section(page, heading)) == expected


def test_every_outcome_has_a_step_on_the_page() -> None:
    """The table in docs/how-it-works.md says what follows each outcome of an attempt."""
    text = section("docs/how-it-works.md", "Two tables decide")

    assert {outcome for outcome in Outcome if f"`{outcome}`" in text} == set(Outcome)
