"""The command line as such: help and version everywhere, and the nearest valid name."""

import io
import signal

import click
import pytest

import chunkvisor
import chunkvisor.cli
from harness import Workplace, finish

COMMANDS = chunkvisor.cli.cli.list_commands(click.Context(chunkvisor.cli.cli))


def test_help(workplace: Workplace) -> None:
    """`-h` is help, whatever comes before it; commands are in groups, each with a sentence;
    `--version` is one line.
    """
    assert workplace.call("--version").stdout == f"chunkvisor, version {chunkvisor.__version__}\n"
    assert workplace.call("run", "-h").stdout.startswith("Usage: chunkvisor run [OPTIONS]")
    listed = finish(workplace.start("-h")).stdout.partition("\n\nDaily:\n")[2]
    for title in ("Before a job:", "After it:"):
        assert f"\n\n{title}\n  " in listed
    names = sorted(line.split()[0] for line in listed.splitlines() if line.startswith("  "))
    assert names == COMMANDS
    assert "..." not in listed


def test_a_config_in_place_of_its_workdir(workplace: Workplace) -> None:
    """Commands that take a workdir take the config as well, and do the same; a file that is none is
    refused by name.
    """
    workplace.prepare(["one", "two"], "good:make")
    workplace.ends(0)
    (workplace.folder / "broken.yaml").write_text("outputs: [")
    for command in ("status", "verify", "report", "retry", "clean"):
        by_config, by_folder = (
            workplace.call(command, path) for path in (workplace.config_path, workplace.workdir)
        )
        assert by_config.returncode == by_folder.returncode == 0, by_config.stderr
        assert command == "clean" or by_config.stdout == by_folder.stdout
        ended = workplace.call(command, workplace.folder / "broken.yaml", code=78)
        assert "broken.yaml: not valid YAML: " in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["rnu", "config.yaml"], "No such command 'rnu'."),
        (["run", "config.yaml", "--max-row", "3"], "--max-rows"),
        (["drill", "config.yaml", "--fault", "segfalt"], "did you mean segfault?"),
    ],
    ids=" ".join,
)
def test_wrong_name_gives_the_nearest(
    workplace: Workplace, arguments: list[str], hint: str
) -> None:
    """A command, an option or a word that does not exist is a usage error, which names what may
    have been meant.
    """
    ended = workplace.call(*arguments, code=2)
    assert hint in ended.stderr


def test_the_sources_are_looked_at_before_the_hub(workplace: Workplace) -> None:
    """A column that is not there is named at once, however long the hub and the download would
    take.
    """
    (workplace.folder / "rows.csv").write_text("title\none\n")
    config = workplace.folder / "hub.yaml"
    output = "outputs: {out: {source: rows.csv, column: text}}"
    config.write_text(f"workdir: w\ndevice: cpu\nmodel: {{name: nobody/has-this}}\n{output}\n")
    ended = workplace.call("run", config, code=78)
    assert "rows.csv" in ended.stderr
    assert "asking the model hub" not in ended.stderr
    assert not (workplace.folder / "w" / "fetch").exists()


def test_a_log_is_explained(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """`explain -` reads a log, whatever bytes it has, and prints the entry of the rule that knows
    its last error.
    """
    log = b"\xff\nRuntimeError: CUDA error: an illegal memory access was encountered\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log)))
    assert workplace.call("explain", "-").stdout.startswith("illegal-memory-access\n")


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_another_system(
    platform: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows and macOS are refused in one line, with where it runs."""
    monkeypatch.setattr("sys.platform", platform)
    with pytest.raises(SystemExit) as ended:
        chunkvisor.cli.main()
    assert ended.value.code == 69
    assert "On Windows use WSL2, on a Mac a container." in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_library_wraps(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command ends as the signal asks, also if a library makes an error of its own of what the
    signal raises, as pydantic does while it is imported.
    """

    def load(**_: object) -> None:
        try:
            signal.raise_signal(number)
        except BaseException as raised:
            raise ValueError("Error building a validator") from raised

    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)
    monkeypatch.setattr(chunkvisor.cli.cli, "main", load)
    with pytest.raises(SystemExit) as ended:
        chunkvisor.cli.main()
    assert ended.value.code == 128 + number
