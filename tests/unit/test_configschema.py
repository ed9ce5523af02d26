"""The JSON Schema of the config: an editor that goes by it marks what is wrong, and nothing that is right."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from soaked import soaked

from chunkvisor.config.load import from_values
from chunkvisor.config.schema import config_schema
from chunkvisor.config.yaml import parse
from chunkvisor.errors import Halt
from harness import ROOT, Workplace

SCHEMA = Draft202012Validator(config_schema())
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
LEAST: dict[str, Any] = {"workdir": "w", "model": {"name": "m"}, "outputs": {"a": {"source": "a.csv", "column": "c"}}}


def problems(values: Any) -> list[str]:
    """What the schema finds wrong."""
    return [error.message for error in SCHEMA.iter_errors(values)]


def keys_in(schema: Any) -> set[str]:
    """Every property that a schema names, however deep."""
    found = set(schema.get("properties", {})) if isinstance(schema, dict) else set()
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return found.union(*map(keys_in, inner))


def test_command_prints_the_schema(workplace: Workplace) -> None:
    """`chunkvisor schema` prints it as JSON, and it is a valid schema itself."""
    ended = workplace.call("schema")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == config_schema()
    Draft202012Validator.check_schema(config_schema())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_example_config_passes(path: Path) -> None:
    """Nothing in configs/ is marked."""
    assert problems(parse(path.read_text("utf-8")).value) == []


def test_starter_config_passes() -> None:
    """Neither is anything in what `chunkvisor init` writes, nor when each of its sections is left empty."""
    starter = parse(files("chunkvisor").joinpath("starter.yaml").read_text("utf-8")).value
    assert problems(starter) == []
    sections = ("encode", "chunk", "workers", "recovery", "env", "ingest")
    assert problems(starter | dict.fromkeys(sections)) == []


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"chunks": {"size": 5}}, []),
        ({"chunk": {"sise": 5}}, ["chunk"]),
        ({"chunk": {"size": 0}}, ["chunk", "size"]),
        ({"chunk": {"size": "many"}}, ["chunk", "size"]),
        ({"encode": {"batch_size": "Auto"}}, ["encode", "batch_size"]),
        ({"encode": {"normalize": 1}}, ["encode", "normalize"]),
        ({"model": {"dtype": "float32"}}, ["model"]),
        ({"model": {"name": "m", "dtype": "fp16"}}, ["model", "dtype"]),
        ({"device": "gpu"}, ["device"]),
        ({"device": ["cuda:0", "cuda:x"]}, ["device"]),
        ({"recovery": {"stall_timeout": "soon"}}, ["recovery", "stall_timeout"]),
        ({"ingest": {"memory_limit": "1 GiB of RAM"}}, ["ingest", "memory_limit"]),
        ({"env": {"1A": "x"}}, ["env"]),
        ({"env": {"A": True}}, ["env"]),
        ({"outputs": {".a": {"source": "a.txt"}}}, ["outputs"]),
        ({"outputs": {"a": {"column": "c"}}}, ["outputs"]),
        ({"outputs": {"a": {"source": "a.csv", "colum": "c"}}}, ["outputs"]),
    ],
    ids=str,
)
def test_wrong_value_is_marked(wrong: dict[str, Any], where: list[str]) -> None:
    """What the loader would refuse is marked, at its place."""
    errors = list(SCHEMA.iter_errors(LEAST | wrong))
    assert [list(error.absolute_path)[: len(where)] for error in errors] == [where]


numbers = st.integers() | st.floats() | st.sampled_from([0, 1, 8, 512, 1e3, "1_000", "1e3", "-0", "16", "auto"])
words = st.sampled_from(["10m", "1.5 h", "2Gi", "512 MiB", "2GB", "cpu", "cuda:1", "fresh", "fail", "float16", "a:b"])
plain = st.none() | st.booleans() | numbers | words | st.text(max_size=5)
values = plain | st.lists(plain, max_size=2)


@pytest.mark.soak
@soaked(500)
@given(st.data())
def test_schema_refuses_nothing_that_the_loader_takes(data: st.DataObject) -> None:
    """Whatever value of whatever key the loader takes, the schema takes it as well."""
    sections = {"model", "encode", "chunk", "workers", "recovery", "ingest", "outputs"}
    names = sorted(keys_in(config_schema()) - sections)
    section = data.draw(st.sampled_from(["", *sorted(sections)]))
    pairs = data.draw(st.dictionaries(st.sampled_from(names), values, max_size=3))
    config: dict[str, Any] = json.loads(json.dumps(LEAST))
    place = config["outputs"]["a"] if section == "outputs" else config.setdefault(section, {}) if section else config
    place |= pairs
    try:
        from_values(config, Path("/data"))
    except Halt:
        return
    assert problems(config) == []
