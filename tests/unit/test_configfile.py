"""Reading a config file: lines and nearest keys in errors, overrides, and that no input gives a traceback."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor.config.givenvalues import without_secret
from chunkvisor.config.keys import all_keys
from chunkvisor.config.load import LoadedConfig, from_values, load
from chunkvisor.config.model import Config
from chunkvisor.config.yaml import parse
from chunkvisor.errors import ExitCode, Halt
from soaked import soaked

DIFFER = "their vectors differ in the last digits"
LEAST = """\
workdir: w
model: {name: org/model}
outputs:
  a: {source: a.csv, column: text}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the current one, so that messages show short names."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load_text(text: str | bytes, *overrides: str) -> LoadedConfig:
    """The config of a file `config.yaml` with that text in the current folder."""
    Path("config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(Path("config.yaml"), overrides)


def problems_of(text: str | bytes, *overrides: str) -> list[str]:
    """The problems that the file is refused for."""
    with pytest.raises(Halt) as caught:
        load_text(text, *overrides)
    assert caught.value.code is ExitCode.CONFIG
    return caught.value.what.split("\n")


def test_load(folder: Path) -> None:
    """A loaded config says where it came from, and its paths start there."""
    loaded = load_text(LEAST, "chunk.size=7")
    assert (loaded.path, loaded.folder, loaded.overrides) == (folder / "config.yaml", folder, ("chunk.size=7",))
    assert loaded.config.workdir == folder / "w"
    assert loaded.config.chunk.size == 7


def test_starter_loads_with_the_defaults(folder: Path) -> None:
    """The starter config is valid, and with all its comments taken off it is still the same config."""
    import chunkvisor

    starter = Path(chunkvisor.__file__).with_name("starter.yaml").read_text()
    plain = load_text(starter).config
    keys = [line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line for line in starter.splitlines()[3:]]
    alternatives = ("template:", "sql:", "source: {", "encode: {", "chunk: {")
    everything = "\n".join(line for line in keys if not line.strip().startswith(alternatives))
    assert load_text(everything).config == plain
    for alternative in (line for line in keys if line.strip().startswith(alternatives[:3])):
        key = "    source:" if "source: {" in alternative else "    column:"
        load_text("\n".join(alternative if key in line else line for line in starter.splitlines()))


def test_the_starter_says_what_to_change() -> None:
    """What nobody but its reader knows is marked, near the beginning; the command names the same keys."""
    import chunkvisor

    lines = Path(chunkvisor.__file__).with_name("starter.yaml").read_text().splitlines()
    marked = [number for number, line in enumerate(lines[3:], 4) if "<--" in line]
    assert [lines[number - 1].split(":")[0].strip() for number in marked] == [
        "titles",
        "source",
        "column",
        "name",
        "device",
    ]
    assert marked[-1] < 40


def test_one_key_of_the_starter_can_be_uncommented(folder: Path) -> None:
    """Whichever key loses its "# " by itself is in its section: the heads of sections are no comments."""
    import chunkvisor

    lines = Path(chunkvisor.__file__).with_name("starter.yaml").read_text().splitlines()
    plain = load_text("\n".join(lines)).config
    keys = [number for number, line in enumerate(lines) if line.startswith("  # ") or re.match("# [a-z_]+: ", line)]
    assert len(keys) > 30
    for number in keys:
        changed = [*lines[:number], lines[number].replace("# ", "", 1), *lines[number + 1 :]]
        assert load_text("\n".join(changed)).config == plain, lines[number]


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ("chunk: {sise: 2}", "5: chunk.sise: unknown key; did you mean chunk.size?"),
        ("encode:\n  batch_size: 0", '6: encode.batch_size: 0 is not a positive whole number or "auto"'),
        ("batch_size: 2", "5: batch_size: unknown key; did you mean encode.batch_size?"),
        ("chunk.size: 2", "5: chunk.size: unknown key; nest it: `chunk: {size: …}`"),
        ("Device: cpu", "5: Device: unknown key; did you mean device?"),
        ("chunk: 5", "5: chunk: 5 stands where a mapping is needed, with keys such as size, keep"),
        ("chunk: {size: 1e99}", "5: chunk.size: 1e99 is too large; 1,000,000,000 is the most"),
        ("device: cpu\ndevice: cuda", "6: device: this key stands twice, in lines 5 and 6; keep one"),
        (
            "device: [cuda:0, cpu]",
            "5: device: cpu does not go together with other devices: their vectors differ in the last digits",
        ),
        ("encode: {prompt: no}", '5: encode.prompt: no is not text or null; put it in quotes: "no"'),
        (
            "encode:\n  prompt: a\n  prompt_name: b",
            "5: encode: prompt and prompt_name are both given; keep one of them",
        ),
        ("env: {A: yes}", "5: env.A: yes is not text that an environment variable can hold; text needs quotes here"),
        ("env: {A-: x}", "5: env.A-: this is not a name for an environment variable"),
        ('env: {TOKEN: "secret\\0"}', "5: env.TOKEN: the value is not text that an environment variable can hold"),
        (
            "metrics: {textfile: figures.txt}",
            "5: metrics.textfile: must end in .prom: node_exporter reads no other file",
        ),
        ("workers:\n\n  start: cold", '7: workers.start: "cold" is not "fresh", "warm" or "auto"'),
        ("chunk: {size: !!int x}", "5: `x` cannot be read as int"),
        ("chunk: !!python/object:os.system {}", "5: the tag `!!python/object:os.system` has no place in a config"),
    ],
)
def test_problem_with_line(folder: Path, added: str, problem: str) -> None:
    """Each wrong value is named with its key, its line and what would be right."""
    assert f"config.yaml:{problem}" in problems_of(LEAST + added)


def test_unknown_key_lists_the_valid_ones(folder: Path) -> None:
    """Where nothing comes near, the keys that are valid in that place are listed."""
    assert problems_of(LEAST + "chunk: {zzz: 1}") == ["config.yaml:5: chunk.zzz: unknown key; valid here: size, keep"]


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ("encode: {long: windows}", "5: encode.long: this key is gone: cut long texts into pieces"),
        ("upload: s3://bucket/embeddings", "5: upload: this key is gone: copy the finished files with `aws s3 cp`"),
        ("identity: strict", "5: identity: this key is gone: a run notes other versions of the libraries"),
        ("ingest: {head: auto}", "5: ingest.head: this key is gone: a run reads its sources to the end"),
    ],
)
def test_a_key_that_is_gone(folder: Path, added: str, problem: str) -> None:
    """A key of an earlier version is refused by name, with what to do instead."""
    (said,) = problems_of(LEAST + added)
    assert said.startswith(f"config.yaml:{problem}")


def test_a_query_as_a_source(folder: Path) -> None:
    """A source of an earlier version, a query over a database, is refused with what to do instead."""
    (said,) = problems_of(LEAST.replace("source: a.csv", "source: {database: a.db, query: SELECT 1}"))
    assert said.startswith("config.yaml:4: outputs.a.source: a query over a database is no longer a source: write a pa")


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ("backend: openvino", "model.backend: this key is gone: torch computes"),
        ("dtype: int8", 'model.dtype: "int8" is gone: write float32 or bfloat16'),
    ],
)
def test_what_is_gone_of_the_model(folder: Path, added: str, problem: str) -> None:
    """A backend, or a dtype that models had, is refused by name, with what to do instead."""
    (said,) = problems_of(LEAST.replace("org/model", f"org/model, {added}"))
    assert problem in said


def test_all_problems_at_once(folder: Path) -> None:
    """One message holds every problem, in the order of the lines, and those without a line."""
    text = "model: {nam: x}\noutputs:\n  a: {source: a.csv}\n  b: {source: 3, column: x}\ndevice: gpu\n"
    assert problems_of(text) == [
        "config.yaml: workdir: this key is required",
        "config.yaml:1: model.name: this key is required",
        "config.yaml:1: model.nam: unknown key; did you mean model.name?",
        "config.yaml:3: outputs.a: which text is to be encoded? One of column, template and sql is needed",
        "config.yaml:4: outputs.b.source: 3 is not a file, a pattern, an address, or a list of them; "
        'put it in quotes: "3"',
        'config.yaml:5: device: "gpu" is not "cuda", "cuda:N" or "cpu", or a list of GPUs',
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "config.yaml: the file is empty"),
        ("# nothing\n", "config.yaml: the file is empty"),
        ("- a\n", "config.yaml:1: the file must hold keys and values"),
        ("a: b: c", 'config.yaml:1: not valid YAML: a ": " too many, or wrong indentation'),
        ("a:\n\tb: c", "config.yaml:2: not valid YAML: a tab stands where YAML takes only spaces (column 1, key b)"),
        (
            'a: 1\nb: "x\nc: d\n',
            "config.yaml:2: not valid YAML: a quote, bracket or brace that begins here is not closed",
        ),
        ("a: *.csv", "config.yaml:1: not valid YAML: text that begins with * needs quotes (column 5, key a)"),
        ("a: %x", "config.yaml:1: not valid YAML: text that begins with this character needs quotes"),
        ("a: 1\n---\nb: 2", "config.yaml:2: not valid YAML: a second document begins here"),
        (
            "a: {b: hf_secret",
            "config.yaml:1: not valid YAML: a quote, bracket or brace that begins here is not closed (column 4, key a)",
        ),
        ("a: \0", r"config.yaml:1: the character '\x00' has no place in YAML"),
        (b"a: 1\nb: \xff", "config.yaml:2: not UTF-8 text"),
        ("a: &a [*a]", "config.yaml:1: nested more than 50 levels deep"),
        ("[" * 1000, "config.yaml:1: nested too deeply"),
        ("a: &a {<<: *a}", "config.yaml:1: nested more than 50 levels deep"),
        (" " * (2 << 20), "config.yaml: larger than"),
    ],
)
def test_unreadable_text(folder: Path, text: str | bytes, problem: str) -> None:
    """Text that is no YAML mapping is refused with the line, the column and the key."""
    assert problems_of(text)[0].startswith(problem)


@pytest.mark.parametrize(
    "text", ['token: "s3cret', "env: {TOKEN: s3cret", "a:\n\ttoken: s3cret", "- token: s3cret: x", "x: s3cret: 'y"]
)
def test_unreadable_text_is_not_quoted(folder: Path, text: str) -> None:
    """A value may be a secret: line, column and key are named, and not what stands there."""
    (said,) = problems_of(text)
    assert "s3cret" not in said
    assert "column" in said


def test_alias_bomb(folder: Path) -> None:
    """Aliases that multiply are refused before they fill the memory, merged or not."""
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "more than 10,000 values" in problems_of("l0: &l0 [x]\n" + "\n".join(levels))[0]
    merges = [f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 10)}]}}" for i in range(1, 12)]
    assert "more than 10,000 values" in problems_of("m0: &m0 {x: 1}\n" + "\n".join(merges))[0]


def test_anchors_and_merges(folder: Path) -> None:
    """Anchors, aliases and << work: own keys win over merged ones, and the first of several mappings wins."""
    text = "a: &a {x: 1, y: 1}\nb: &b {x: 2, z: 2}\nc: {z: 3, <<: [*a, *b]}\n"
    assert parse(text).value["c"] == {"x": 1, "y": 1, "z": 3}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0),
        ("-1.5E-3", -0.0015),
        ("1_000", 1000),
        ("0123456", "0123456"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("12345e", "12345e"),
        ("=", "="),
        ("yes", True),
        ("'yes'", "yes"),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
    ],
)
def test_plain_words(text: str, value: Any) -> None:
    """Unquoted words mean what a reader of a config would take them for."""
    read = parse(text).value
    assert (type(read), read) == (type(value), value)


def test_byte_order_mark(folder: Path) -> None:
    """A file saved by an editor that adds a byte order mark is read."""
    assert load_text(b"\xef\xbb\xbf" + LEAST.encode()).config.device == ("cuda",)


def test_missing_file(folder: Path) -> None:
    """A mistyped file name gets the nearest one in that folder."""
    (folder / "quick.yaml").touch()
    with pytest.raises(Halt, match=r"quik\.yaml: there is no such file; did you mean quick\.yaml\?"):
        load(Path("quik.yaml"))


@pytest.mark.parametrize("path", ["none/such.yaml", ".", "a\0b", "x" * 300])
def test_unreadable_path(folder: Path, path: str) -> None:
    """A folder, a missing folder or an impossible name is refused like any other mistake."""
    with pytest.raises(Halt) as caught:
        load(Path(path))
    assert caught.value.code is ExitCode.CONFIG


def test_env_numbers_as_written(folder: Path) -> None:
    """A number in env keeps its digits."""
    text = LEAST + "env: {A: 9.10, B: 007, C: 1_0}\n"
    assert load_text(text, "env.D=1.50").config.env == {"A": "9.10", "B": "007", "C": "1_0", "D": "1.50"}


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("chunk.size=1e3", lambda config: config.chunk.size == 1000),
        ("encode.prompt='query: '", lambda config: config.encode.prompt == "query: "),
        ("encode.batch_tokens=", lambda config: config.encode.batch_tokens is None),
        ("model.kwargs.a.b=[1, 2]", lambda config: config.model.kwargs == {"a": {"b": [1, 2]}}),
        ("outputs.a.encode.normalize=true", lambda config: config.outputs["a"].encode.normalize),
        ("outputs.x.y.column=other", lambda config: config.outputs["x.y"].column == "other"),
        ("outputs.new={source: n.csv, column: c}", lambda config: config.outputs["new"].column == "c"),
        ("env.A=x=y", lambda config: config.env == {"A": "x=y"}),
    ],
)
def test_override(folder: Path, override: str, read: Any) -> None:
    """--set reaches every key, also below outputs whose names hold dots."""
    assert read(load_text(LEAST + "  x.y: {source: b.csv, column: text}\nchunk:\n", override).config)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("chunk.sise=2", "--set chunk.sise=2: chunk.sise: unknown key; did you mean chunk.size?"),
        ("chnk.size=2", "--set chnk.size=2: chnk: unknown key; did you mean chunk?"),
        ("chunk.size=0", '--set chunk.size=0: chunk.size: 0 is not a positive whole number or "auto"'),
        ("chunk.size", "--set chunk.size: write it as --set KEY=VALUE, such as --set chunk.size=200"),
        ("=3", "--set =3: write it as --set KEY=VALUE, such as --set chunk.size=200"),
        ("workdir.x=3", "--set workdir.x=3: workdir is a single value or a list, without keys of its own"),
        ("outputs.b.column=c", "--set outputs.b.column=c: there is no output b; valid here: a"),
        ("env.TOKEN=[secret", "--set env.TOKEN=…: not valid YAML"),
        ("model.kwargs.token=[secret", "--set model.kwargs.token=…: not valid YAML"),
        (
            "env.TOKEN=[secret]",
            "--set env.TOKEN=…: env.TOKEN: this list is not text that an environment variable can hold",
        ),
    ],
)
def test_wrong_override(folder: Path, override: str, problem: str) -> None:
    """A wrong override is shown as it was given in place of a line; a value for env stays secret."""
    assert problems_of(LEAST, override) == [problem]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("env.A=b", "env.A=…"),
        ("model.kwargs.token=b", "model.kwargs.token=…"),
        ("model.kwargs={token: b}", "model.kwargs=…"),
        ("encode.batch_tokens=8", "encode.batch_tokens=8"),
        ("outputs.a.sql=token", "outputs.a.sql=token"),
        ("env.A", "env.A"),
    ],
)
def test_without_secret(text: str, shown: str) -> None:
    """What may be a secret, by its section or its name, is not repeated."""
    assert without_secret(text) == shown


def test_key_that_pydantic_uses_itself(folder: Path) -> None:
    """A key that looks like pydantic's own mark is an unknown key like any other."""
    assert "config.yaml:5: [key]: unknown key" in problems_of(LEAST + '"[key]": 1\n')[0]


def test_override_mends_the_file(folder: Path) -> None:
    """What --set replaces is not complained about."""
    assert load_text(LEAST + "chunk: {size: none}", "chunk.size=5").config.chunk.size == 5


def test_from_values(folder: Path) -> None:
    """Plain values without a file are validated by the same rules, and their problems have no place."""
    values = {"workdir": "w", "model": {"name": "x"}, "outputs": {"a": {"source": "a.csv", "column": "c"}}}
    assert from_values(values, folder).workdir == folder / "w"
    with pytest.raises(Halt, match=r"^model\.kwargs: this mapping is not a mapping with plain values only"):
        from_values({**values, "model": {"name": "x", "kwargs": {"dtype": object()}}}, folder)


names = {name for key in all_keys() for name in key} | {"a", "", "1", "outputs.a"}
keys = st.sampled_from(sorted(names)) | st.text(max_size=5)
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["auto", "1e3", "cpu"])
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
quick = soaked(400)


def check_words(halt: Halt) -> None:
    """The message is printable, and in nobody's jargon."""
    assert halt.code is ExitCode.CONFIG
    halt.what.encode()
    for jargon in ("Input should", "pydantic.dev", "[type=", "Extra inputs"):
        assert jargon not in halt.what


@pytest.mark.soak
@quick
@given(st.dictionaries(st.sampled_from(list(Config.model_fields)), values, max_size=5))
def test_any_values_give_a_config_or_a_message(tmp_path: Path, sections: dict[str, Any]) -> None:
    """Whatever a valid YAML file holds, it is a config or a readable message."""
    path = tmp_path / "config.yaml"
    base = {"workdir": "w", "model": {"name": "x"}, "outputs": {"a": {"source": "a.csv", "column": "c"}}}
    path.write_text(yaml.safe_dump(base | sections))
    try:
        load(path)
    except Halt as halt:
        check_words(halt)
    try:
        from_values(base | sections, tmp_path)
    except Halt as halt:
        check_words(halt)


@pytest.mark.soak
@quick
@given(
    st.text(alphabet="ab:-[]{}&*#!|>'\"%@`,?~<.=\t\n 01e\\x", max_size=40) | st.text(max_size=30), st.text(max_size=10)
)
def test_any_text_gives_a_config_or_a_message(tmp_path: Path, text: str, override: str) -> None:
    """Whatever a file or an override holds, there is no traceback."""
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(Halt) as caught:
        load(path, [override])
    check_words(caught.value)
    path.write_text(LEAST)
    try:
        load(path, [override, f"chunk.size={text}", f"{override}={text}"])
    except Halt as halt:
        check_words(halt)


@pytest.mark.soak
@quick
@given(values)
def test_any_values_survive_yaml(value: Any) -> None:
    """Plain values that PyYAML writes with explicit types are read as they were."""
    assert repr(parse(yaml.safe_dump(value, default_style='"', sort_keys=False)).value) == repr(value)
