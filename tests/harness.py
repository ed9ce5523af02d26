"""Runs `chunkvisor` in a folder as a person would, on texts whose right vectors are known.

`Workplace` is that folder. Most encoders of tests/encoders make the vector of a text out of its
sha256 (`vector_of`), so a test knows every right vector (`expected`).
"""

import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pytest
import yaml

import chunkvisor
from chunkvisor import child, judge
from chunkvisor.cli import main
from chunkvisor.core import loop, policy
from chunkvisor.devices import gpu
from drivers.zygote import MARK as MARK
from forking import COMMAND_LINE, KILL_AT, Forked

ROOT = Path(__file__).parent.parent
ENCODERS = ROOT / "tests" / "encoders"
STAND_IN = ROOT / "tests" / "standin"
"""On a worker's PYTHONPATH, it has no need of torch."""
CLUSTER = "CHUNKVISOR_TEST_CLUSTER"
"""Address of a Ray cluster: every run of a Workplace uses it; set for the whole session by
conftest.
"""

SOAK_SEED = os.environ.get("CHUNKVISOR_SOAK_SEED", "")
"""What `make soak` chooses by; empty in `make test`, where the same is tried each time."""

ON_RAY = os.environ.get("CHUNKVISOR_TEST_ENGINE") == "ray"
"""Whether this is `make test-ray`."""

_RUN_CHILD = child.run_child
_ASK_TORCH = gpu.ask_torch
_ABOUT_A_WORKDIR = ("status", "verify", "clean", "retry", "report")
"""Commands whose argument is the workdir; that of the others is the config."""

local_engine_only = pytest.mark.skipif(
    ON_RAY,
    reason="runs inside the test's process, or hundreds of times, or looks at what a node keeps to itself",
)
"""For tests that `make test-ray` leaves out."""


Env = Mapping[str, str] | None
"""Variables of a command, over those of this process."""
Process = subprocess.Popen[str]


@dataclass(frozen=True)
class Ended:
    """The exit code of a command, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def words(self) -> str:
        """All that it wrote, in one line."""
        return " ".join((self.stdout + self.stderr).split())


class Workplace:
    """A folder with a config, a source and a workdir.

    `begin` and `start` start a command and return its process; the others wait for its end:

    - `ends(75)` runs the config and checks the exit code
    - `gives(texts)` runs it, and checks that it is complete with the vectors of these texts
    - `does("verify", code=74)` calls another command about the config or the workdir
    - `run()` and `call(...)` check nothing, unless a code is given

    These commands run inside the test's process, which saves half a second of computing each; the
    workers that they start are processes in any case.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_path = folder / "config.yaml"
        self.workdir = folder / "work"
        self.source = folder / "rows.jsonl"

    def write_source(self, texts: Sequence[str | None], name: str = "rows") -> None:
        """Write the texts into NAME.jsonl: one JSON object a line, the text under `text`."""
        write_lines(self.folder / f"{name}.jsonl", [{"text": text} for text in texts])

    def write_config(self, encoder: str, **changes: Any) -> None:
        """Write a config for one output `out` over the source, with a plug-in of tests/encoders.

        Other keys are given by their dotted names, with `__` or in quotes:
        `chunk__size=4`, `**{"chunk.size": 4}`.
        """
        config: dict[str, Any] = {
            "workdir": "work",
            "model": {"name": "test", "encoder": encoder},
            "device": "cpu",
            "chunk": {"size": 10},
            "workers": {"start": "fresh", "standby": 0},
            "env": {"PYTHONPATH": path_with(ENCODERS)},
            "outputs": {"out": {"source": "rows.jsonl", "column": "text"}},
        }
        if address := os.environ.get(CLUSTER):
            config["engine"] = {"kind": "ray", "address": address}
        self.config_path.write_text(yaml.safe_dump(config))
        self.set(**changes)

    def prepare(self, texts: Sequence[str | None], encoder: str, **changes: Any) -> None:
        """Write the texts and the config of a run of them; see `write_config`."""
        self.write_source(texts)
        self.write_config(encoder, **changes)

    def set(self, **changes: Any) -> None:
        """Change keys of the config, named as for `write_config`."""
        config = yaml.safe_load(self.config_path.read_text())
        for key, value in changes.items():
            node = config
            *parents, last = key.replace("__", ".").split(".")
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        self.config_path.write_text(yaml.safe_dump(config))

    def command(self, *arguments: str) -> list[str]:
        """The command line of a chunkvisor command, under this interpreter."""
        return [*COMMAND_LINE, *arguments]

    def start(self, *arguments: str, env: Env = None) -> Process:
        """Start a command; both streams are pipes."""
        if self._goes_to_ray(*arguments):
            # The environment of this machine does not travel to the nodes.
            travels = {MARK: os.environ.get(MARK, ""), **(env or {})}
            arguments += tuple(
                word for each in travels.items() for word in ("--set", "env.{}={!r}".format(*each))
            )
        return Forked(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def call(
        self, *arguments: str | Path, code: int | tuple[int, ...] | None = None, env: Env = None
    ) -> Ended:
        """Call a command; if codes are given, check its own, and that there is no traceback."""
        ended = self.execute(list(map(str, arguments)), env or {})
        if code is not None:
            codes = code if isinstance(code, tuple) else (code,)
            assert ended.returncode in codes, f"{ended.stdout}{ended.stderr}"
            assert "Traceback" not in ended.stderr, ended.stderr
        return ended

    def execute(self, arguments: Sequence[str], env: Mapping[str, str]) -> Ended:
        """Run a command to its end, in this process unless it is to run on Ray."""
        if self._goes_to_ray(*arguments):
            return finish(self.start(*arguments, env=env))
        with mock.patch.dict(os.environ, env):
            return self._here(arguments)

    def run(self, *arguments: str, env: Env = None) -> Ended:
        """Run the config, and check nothing."""
        return self.call("run", self.config_path, *arguments, env=env)

    def apart(self, *arguments: str) -> Ended:
        """Run the config in a process of its own, and check nothing: some faults kill it."""
        return finish(self.begin(*arguments))

    def begin(self, *arguments: str, env: Env = None) -> Process:
        """Start a run of the config in a process of its own."""
        return self.start("run", str(self.config_path), *arguments, env=env)

    def ends(self, code: int, *arguments: str, env: Env = None) -> Ended:
        """Run the config; check the exit code, and that there is no traceback."""
        return self.does("run", *arguments, code=code, env=env)

    def does(self, command: str, *arguments: str, code: int = 0, env: Env = None) -> Ended:
        """Call a command with the config or the workdir; check code and traceback."""
        about = self.workdir if command in _ABOUT_A_WORKDIR else self.config_path
        return self.call(command, about, *arguments, code=code, env=env)

    def gives(
        self, texts: Sequence[str | None], *arguments: str, bad: Sequence[int] = (), env: Env = None
    ) -> Ended:
        """Run the config; check that it finishes with the vectors of these texts (see `has`)."""
        ended = self.ends(3 if bad else 0, *arguments, env=env)
        self.has(texts, bad)
        return ended

    def stop(self, process: Process) -> Ended:
        """Stop a run at once, by a second signal; two at the same time would be taken for one."""
        before = len(self.named("draining"))
        process.terminate()
        wait_for(lambda: len(self.named("draining")) > before)
        process.terminate()
        return finish(process)

    def _here(self, arguments: Sequence[str]) -> Ended:
        """Run a command in this process; an exception becomes exit code 1 with a traceback.

        The sources are read in this process as well (to load DuckDB takes a quarter of a second),
        torch is asked for GPUs once (to import it takes seconds), and short pauses of the program
        are cut shorter.
        """
        stdout, stderr, code = io.StringIO(), io.StringIO(), 0
        with (
            mock.patch.object(sys, "argv", ["chunkvisor", *arguments]),
            mock.patch.object(child, "run_child", _child_here),
            mock.patch.object(gpu, "ask_torch", lambda _: _what_torch_says()),  # noqa: PT008 - not before
            mock.patch.object(loop, "_PAUSE_S", 0.02),
            mock.patch.object(judge, "BACKOFF_S", 0.01),
            mock.patch.object(policy, "MEMORY_PAUSE_S", 0.01),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            try:
                main()
            except SystemExit as end:
                code = int(end.code or 0)
            except Exception:
                traceback.print_exc()
                code = 1
        return Ended(code, stdout.getvalue(), stderr.getvalue())

    def _goes_to_ray(self, *arguments: str) -> bool:
        return (
            arguments[:2] == ("run", str(self.config_path))
            and "kind: ray" in self.config_path.read_text()
        )

    @property
    def hidden(self) -> Path:
        """The folder of all state in the workdir."""
        return self.workdir / ".chunkvisor"

    @property
    def final(self) -> Path:
        """The final file of the output `out`."""
        return self.workdir / "out.npy"

    def release(self) -> None:
        """Let go on what waits for this (in the encoders `scripted` and `waiting`)."""
        (self.folder / "release").touch()

    def vectors(self, name: str = "out") -> np.ndarray:
        """The final file of an output."""
        return np.load(self.workdir / f"{name}.npy", allow_pickle=False)

    def manifest(self, name: str = "out") -> dict[str, Any]:
        """The manifest of the final file."""
        return json.loads((self.workdir / f"{name}.json").read_text())

    def has(
        self,
        texts: Sequence[str | None],
        bad: Sequence[int] = (),
        name: str = "out",
        dtype: str = "float32",
    ) -> None:
        """Check the final file: bad rows are NaN and listed in the manifest, each other row has the
        vector of its text.
        """
        right = expected(texts).astype(dtype)
        right[list(bad)] = np.nan
        np.testing.assert_array_equal(self.vectors(name), right, strict=True)
        assert [each["row"] for each in self.manifest(name)["quarantined"]] == list(bad)

    def status(self) -> dict[str, Any]:
        """`chunkvisor status --json`."""
        return json.loads(self.does("status", "--json").stdout)

    def progress(self) -> dict[str, Any]:
        """What the status says of the output `out`."""
        return self.status()["outputs"]["out"]

    def events(self) -> list[dict[str, Any]]:
        """The journal."""
        return events_in(self.hidden / "events.jsonl")

    def named(self, *names: str) -> list[dict[str, Any]]:
        """The events of these names, in their order; none while there is no journal."""
        return [event for event in self.events() if event["event"] in names]


@functools.cache
def _what_torch_says() -> gpu.ProbeReading:
    return _ASK_TORCH(os.environ)


def _child_here(
    command: Sequence[str],
    log: Path,
    on_wait: Callable[[], None] = lambda: None,
    *others: Any,
    **more: Any,
) -> int:
    """Read sources in this process, in the place of `child.run_child`.

    In the main thread alone: streams and umask are those of the whole process. Other children are
    started: a module that is imported meanwhile may keep this function as its own `run_child`.
    """
    if command[-1] != str(os.getpid()) or threading.current_thread() is not threading.main_thread():
        return _RUN_CHILD(command, log, on_wait, *others, **more)
    on_wait()
    *_, module, folder, _parent = command
    before = os.umask(0o077)  # which the child sets for itself
    try:
        with (
            open(log, "a") as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
        ):
            return int(importlib.import_module(module).main([folder]))
    finally:
        os.umask(before)


def model_folder(folder: Path) -> Path:
    """A folder that looks like a sentence-transformers model's, for the stand-in."""
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    names = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"type": f"sentence_transformers.models.{name}", "path": path}
        for name, path in names.items()
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under the folder, and where every link leads."""
    return {
        str(path.relative_to(folder)): os.fsencode(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def write_lines(path: Path, rows: Sequence[object]) -> None:
    """Write JSON, a line for each row."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_program(path: Path, text: str) -> None:
    """Make a program that can be called."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def path_with(*folders: Path) -> str:
    """A PYTHONPATH that begins with these folders."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def said_by(
    *command: str | Path,
    code: int = 0,
    text: str = "",
    cwd: Path = ROOT,
    env: Env = None,
    limit_s: float = 280,
) -> str:
    """What a program prints that is given this text and has to end with that code."""
    ended = subprocess.run(
        list(map(str, command)),
        input=text,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


@contextlib.contextmanager
def halts(
    code: int, words: str | None = None
) -> Iterator[pytest.ExceptionInfo[chunkvisor.ChunkvisorError]]:
    """Expect an end with that exit code, and with these words, which are a pattern."""
    with pytest.raises(chunkvisor.ChunkvisorError, match=words) as caught:
        yield caught
    assert caught.value.code == code


def events_in(journal: Path) -> list[dict[str, Any]]:
    """The events of a journal, also while it is written: a line without an end is not there yet."""
    lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
    return [json.loads(line) for line in lines if line]


def vector_of(text: str) -> np.ndarray:
    """What tests/encoders make of a text: eight numbers from its sha256, none of them zero."""
    return (
        np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint8)[:8].astype(np.float32)
        + 1
    )


def expected(texts: Sequence[str | None]) -> np.ndarray:
    """The right final array."""
    return np.stack([vector_of(text or "") for text in texts])


def wait_for(condition: Callable[[], Any], timeout_s: float = 60) -> Any:
    """Poll until the condition is truthy, and return it; fails at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
    return value


def finish(process: Process, timeout_s: float = 240, code: int | None = None) -> Ended:
    """Wait for the end; a command that takes longer, or of which a code is given and that ends with
    another or a traceback, fails the test with what it has said.
    """
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"no end in sight: {process.communicate()}") from None
    assert code in (None, process.returncode), f"{stdout}{stderr}"
    assert code is None or "Traceback" not in (stderr or ""), stderr
    return Ended(process.returncode, stdout, stderr)


def kill(process: Process) -> None:
    """SIGKILL, and wait for the end."""
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)


def sweep(
    mode: str,
    when: str,
    template: Path,
    scratch: Path,
    *targets: str,
    command: str = "run config.yaml",
    keys: str = "output chunk attempt",
    share: str = "1:",
    most: int = 1000,
) -> list[dict[str, Any]]:
    """What tests/drivers/kill_at.py tells of runs of the command, killed at one call after the
    other.
    """
    scratch.mkdir(exist_ok=True)
    driver = [
        sys.executable,
        "-P",
        "-m",
        KILL_AT,
        mode,
        when,
        str(template),
        str(scratch),
        *targets,
    ]
    env = os.environ | {"KILL_AT_COMMAND": command, "KILL_AT_KEYS": keys, "KILL_AT_SHARE": share}
    env |= {"KILL_AT_MOST": str(most), "PYTHONPATH": path_with(ROOT / "tests")}
    started = Forked(driver, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=env)
    stdout, _ = started.communicate(timeout=280)
    assert started.returncode == 0
    return [json.loads(line) for line in stdout.splitlines()]


def bearing(mark: str) -> list[psutil.Process]:
    """Processes that live and were started under the mark, this one aside."""
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _bears(process, mark)
    ]


def lives(pid: int) -> bool:
    """Whether there is such a process, and it has not ended: some inits leave those that have for a
    while.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _bears(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False
