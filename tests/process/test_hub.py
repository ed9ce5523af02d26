"""A model of the hub is resolved and downloaded once, from a small hub of our own on loopback."""

import http.server
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import modelkinds as kinds
from chunkvisor.config.model import ModelConfig
from chunkvisor.engine.modelfolder import Repository, repository_of
from chunkvisor.engine.modelsource import ModelSource, fetch_model, resolve_hub, resolve_local
from harness import ENCODERS, STAND_IN, Workplace, halts, path_with
from late import needs
from servers import Handler, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER = COMMIT[::-1]
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same weights",
    "onnx/model.onnx": b"graph",
}
WAIT_S = 60.0

pytestmark = needs("huggingface_hub")


class Hub(http.server.ThreadingHTTPServer):
    """Serves models, the last commit of each as its main; the first requests can be answered with
    an error.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Visitor)
        self.asked: list[str] = []
        self.errors: list[int] = []
        self.models: dict[str, dict[str, dict[str, bytes]]] = {"some/model": {COMMIT: FILES}}


class Visitor(Handler):
    """One request; the addresses and headers are those that huggingface_hub reads."""

    server: Hub

    def do_GET(self) -> None:
        """Answer, to HEAD without the body."""
        self.server.asked.append(self.path)
        status, body, headers = 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        found = re.match(r"(?:/api/models)?/(\w+/\w+)(?:/(\w+)/(\w+)(?:/(.+))?)?", self.path)
        name, what, revision, file = found.groups() if found else ("",) * 4
        commits = self.server.models.get(name, {})
        commit = revision if revision in commits else next(reversed(commits), "")
        files = commits.get(commit, {})
        if self.server.errors:
            status, headers = self.server.errors.pop(0), {}
        elif what == "tree":
            tree = [
                {"type": "file", "path": each, "size": len(data), "oid": f"{commit}{each}"}
                for each, data in files.items()
            ]
            status, body, headers = 200, json.dumps(tree).encode(), {}
        elif what == "resolve" and file in files:
            headers = {"ETag": f'"{commit}{file}"', "X-Repo-Commit": commit}
            status, body = 200, files[file]
        elif what != "resolve" and files:
            siblings = [{"rfilename": each} for each in files]
            status, headers = 200, {}
            body = json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode()
        self.answer(status, body, headers)

    do_HEAD = do_GET


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that huggingface_hub asks, and an empty cache."""
    hub = Hub()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with serving(hub):
        yield hub


def resolve(folder: Path, waits: list[str], *, anew: bool = False, **model: Any) -> ModelSource:
    """The model, resolved in a workdir; no wait is waited for."""
    config = ModelConfig(**{"name": "some/model"} | model)
    return fetch_in(folder, waits, anew=anew)(repository_of(config), f"the model {config.name}")


def fetch_in(folder: Path, waits: list[str], *, anew: bool = False) -> Any:
    """What has a run's files downloaded, for that workdir."""

    def pause(_seconds: float, _waited_s: float, why: str) -> None:
        waits.append(why)

    return partial(
        resolve_hub,
        cache=folder / "model.json",
        scratch=folder / "fetch",
        timeout_s=WAIT_S,
        pause=pause,
        anew=anew,
    )


def names(source: ModelSource) -> set[str]:
    """Files of a snapshot."""
    assert source.path is not None
    folder = Path(source.path)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    """The commit is fixed, weights in old formats are left out (but not for ONNX), and a resume
    asks nobody.
    """
    first = resolve(tmp_path, [])
    asked = len(hub.asked)
    again = resolve(tmp_path, [])

    assert first == again
    assert (first.revision, names(first)) == (COMMIT, {"config.json", "model.safetensors"})
    assert len(hub.asked) == asked
    (tmp_path / "onnx").mkdir()
    assert names(resolve(tmp_path / "onnx", [], kwargs={"backend": "onnx"})) == set(FILES)


def test_what_is_fixed_stays_beside_another_model(hub: Hub, tmp_path: Path) -> None:
    """A run with another revision or a local folder takes no commit from another; one from scratch
    asks the hub.
    """
    anew = resolve(tmp_path, [], anew=True)
    first = resolve(tmp_path, [])
    assert anew == first
    resolve(tmp_path, [], revision="other")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    resolve_local(tmp_path / "model", tmp_path / "model.json")
    asked = len(hub.asked)

    assert resolve(tmp_path, []) == first
    assert len(hub.asked) == asked


def test_a_busy_hub_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    """After 503 the run waits and tries again, and says why."""
    hub.errors = [503] * 12  # huggingface_hub tries a few times by itself
    waits: list[str] = []

    source = resolve(tmp_path, waits)

    assert source.revision == COMMIT
    assert "503" in waits[0]
    assert "give its path in place of the name" in waits[0]  # what a person can do who has no hub


def test_a_model_that_is_not_there_ends_the_run(hub: Hub, tmp_path: Path) -> None:
    """A wrong name is the config's fault, and nobody waits for it."""
    waits: list[str] = []

    with halts(78) as halt:
        resolve(tmp_path, waits, name="some/typo")

    assert "some/typo" in str(halt.value)
    assert waits == []


# --- what a model's files name outside its folder

CODE = {"modeling_own.py": kinds.NEGATIVE.encode(), "model.safetensors": b"not wanted"}


def elsewhere(folder: Path) -> Path:
    """A local model whose code is in a repository of the hub."""
    path = kinds.bert(folder)
    reference = "own/code--modeling_own.Own"
    kinds.change(path / "config.json", auto_map={"AutoModel": reference})
    return path


@pytest.fixture
def job(workplace: Workplace) -> Workplace:
    """A job of four texts, on the CPU."""
    workplace.write_source(["one", "two", "three", "four"])
    return workplace


@pytest.mark.model
def test_code_in_another_repository(hub: Hub, job: Workplace) -> None:
    """It is fetched and pinned like the model, whatever the shared cache learns later, and named in
    the manifest.
    """
    from sentence_transformers import SentenceTransformer

    path, texts = elsewhere(job.folder), ["one", "two", "three", "four"]
    plain = SentenceTransformer(str(path), device="cpu").encode(texts)
    settings = {"model__name": str(path), "model__trust_remote_code": True}
    job.write_config("sentence-transformers", **settings)
    hub.models["own/code"] = {COMMIT: CODE}
    job.source.unlink()
    offline = job.ends(78, env={"HF_HUB_OFFLINE": "1"})
    assert "`HF_HUB_OFFLINE=0 hf download own/code`" in offline.stderr
    assert "rows.jsonl" in job.run().stderr  # by now, the commit is fixed

    later = kinds.NEGATIVE.replace("= -", "= ").encode()
    hub.models["own/code"][LATER] = {"modeling_own.py": later}
    newest = fetch_model(Repository("own/code", None), job.folder / "fetch", lambda: None)
    assert isinstance(newest, ModelSource)
    assert newest.revision == LATER
    asked = len(hub.asked)
    job.write_source(texts)
    job.ends(0)
    assert len(hub.asked) == asked
    assert job.manifest()["model"]["outside"] == {"own/code": COMMIT}
    np.testing.assert_allclose(job.vectors(), -plain, rtol=0, atol=1e-6)


def test_a_base_that_moves_is_another_model(hub: Hub, job: Workplace) -> None:
    """The base of an adapter is fetched, fixed for the workdir, and refused as another model where
    that is lost.
    """
    adapter = b'{"base_model_name_or_path": "own/base"}'
    modules = b'[{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]'
    pooling = {"modules.json": modules, "1_Pooling/config.json": b"{}"}
    hub.models["own/adapter"] = {COMMIT: {**pooling, "adapter_config.json": adapter}}
    hub.models["own/base"] = {COMMIT: FILES}
    path = path_with(STAND_IN, ENCODERS)
    job.write_config("sentence-transformers", model__name="own/adapter", env__PYTHONPATH=path)
    assert fetch_in(job.folder, [])(Repository("own/adapter", None), "").revision == COMMIT
    note = job.call("doctor", job.config_path)
    assert "own/base is not in the local cache: the first run downloads it" in note.stdout
    job.ends(0)
    assert job.manifest()["model"]["outside"] == {"own/base": COMMIT}
    snapshot = job.hidden / "hub" / "models--own--base" / "snapshots" / COMMIT
    assert names(ModelSource(str(snapshot), COMMIT)) == {"config.json", "model.safetensors"}

    hub.models["own/base"][LATER] = FILES
    job.write_source(["one", "two", "three", "four", "five"])
    (job.hidden / "model.json").unlink()
    assert f'"own/base": "{LATER}"' in job.ends(78, "--update").stderr
