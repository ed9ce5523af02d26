"""What belongs to the identity of an output, and how a change of it is told."""

import json
from typing import Any

import pytest

from chunkvisor.config.model import Config
from chunkvisor.store.identity import Identity, arithmetic_variables, differences, identity_of
from chunkvisor_worker.contract.wire import from_json

BASE: dict[str, Any] = {
    "workdir": "/w",
    "model": {"name": "org/model"},
    "outputs": {"a": {"source": "/a.csv", "template": "{x}"}},
}


def identity(
    revision: str = "abc",
    digest: str = "d1",
    rows: int = 1502,
    outside: dict[str, str] | None = None,
    **sections: Any,
) -> Identity:
    """The identity of output `a`."""
    config = Config.model_validate(BASE | sections)
    arithmetic = arithmetic_variables({}, config.env)
    return identity_of(config, "a", revision, digest, rows, arithmetic, outside)


def output(**keys: Any) -> dict[str, Any]:
    """The section `outputs` with more keys in `a`."""
    return {"a": {"source": "/a.csv", "template": "{x}", **keys}}


@pytest.mark.parametrize(
    "change",
    [
        {"workdir": "/elsewhere"},
        {"chunk": {"size": 3, "keep": True}},
        {"device": "cpu"},
        {"env": {"OMP_NUM_THREADS": "2"}},
        {"outputs": output(source="/moved.csv")},
        {"outputs": output(encode={"batch_size": 2}, chunk={"size": 5})},
        {"model": {"name": "org/model", "revision": "main"}},
        {"model": {"name": "org/model", "trust_remote_code": False}},
        {"model": {"name": "org/model", "expect": "/expected.jsonl"}},
    ],
)
def test_way_of_working_is_not_identity(change: dict[str, Any]) -> None:
    """What gives the same vectors leaves the fingerprint alone."""
    assert identity(**change).fingerprint == identity().fingerprint
    assert differences(identity(), identity(**change)) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": {"name": "org/other"}}, 'model.name: "org/model" before, "org/other" now'),
        ({"revision": "def"}, 'model.revision: "abc" before, "def" now'),
        ({"outside": {"a/b": "c"}}, 'model.outside: not set before, {"a/b": "c"} now'),
        (
            {"model": {"name": "org/model", "max_length": 256}},
            "model.max_length: not set before, 256 now",
        ),
        (
            {"model": {"name": "org/model", "kwargs": {"a": 1}}},
            'model.kwargs: {} before, {"a": 1} now',
        ),
        (
            {"model": {"name": "org/model", "trust_remote_code": True}},
            "model.trust_remote_code: false before, true now",
        ),
        (
            {"model": {"name": "org/model", "encoder": "mine:build"}},
            'model.encoder: "sentence-transformers" before, "mine:build" now',
        ),
        (
            {"model": {"name": "org/model", "pooling": "cls"}},
            'model.pooling: not set before, "cls" now',
        ),
        ({"encode": {"task": "query"}}, 'encode.task: not set before, "query" now'),
        ({"encode": {"normalize": True}}, "encode.normalize: false before, true now"),
        ({"encode": {"prompt": ""}}, 'encode.prompt: not set before, "" now'),
        (
            {"outputs": output(encode={"truncate_dim": 8})},
            "encode.truncate_dim: not set before, 8 now",
        ),
        ({"outputs": output(template="{y}")}, 'template: "{x}" before, "{y}" now'),
        ({"outputs": output(skip_blank=True)}, "skip_blank: false before, true now"),
        (
            {"env": {"NVIDIA_TF32_OVERRIDE": "1"}},
            'env.NVIDIA_TF32_OVERRIDE: not set before, "1" now',
        ),
        ({"rows": 1503, "digest": "d2"}, "source: 1,502 rows before, 1,503 now"),
    ],
)
def test_what_shapes_vectors_is_identity(change: dict[str, Any], sentence: str) -> None:
    """What gives other vectors changes the fingerprint, and is told in one sentence."""
    assert identity(**change).fingerprint != identity().fingerprint
    assert differences(identity(), identity(**change)) == [sentence]


@pytest.mark.parametrize(
    ("inherited", "given", "found"),
    [
        ({"NVIDIA_TF32_OVERRIDE": "1", "HOME": "/root"}, {}, {"NVIDIA_TF32_OVERRIDE": "1"}),
        (
            {"NVIDIA_TF32_OVERRIDE": "1"},
            {"NVIDIA_TF32_OVERRIDE": "0"},
            {"NVIDIA_TF32_OVERRIDE": "0"},
        ),
        ({"NVIDIA_TF32_OVERRIDE": "1", "OMP_NUM_THREADS": "2"}, {"NVIDIA_TF32_OVERRIDE": ""}, {}),
    ],
)
def test_arithmetic_variables(
    inherited: dict[str, str], given: dict[str, str], found: dict[str, str]
) -> None:
    """Those that change arithmetic count wherever they come from, the config's first, but for empty
    ones.
    """
    assert arithmetic_variables(inherited, given) == found


@pytest.mark.parametrize(
    ("encoder", "sentences"),
    [("sentence-transformers", []), ("mine:build", ['model.name: "/here" before, "/there" now'])],
)
def test_moved_local_model_is_the_same(encoder: str, sentences: list[str]) -> None:
    """A local model counts by its content, not by its folder; a plug-in makes of its name what it
    likes.
    """
    here, there = (
        identity(model={"name": name, "encoder": encoder}) for name in ("/here", "/there")
    )
    assert differences(here, there) == sentences
    assert (here.fingerprint != there.fingerprint) is bool(sentences)


def test_types_of_kwargs_count() -> None:
    """Values that Python takes for equal but a model may not are told apart."""
    old, new = (identity(model={"name": "m", "kwargs": {"a": value}}) for value in (1, True))
    assert old.fingerprint != new.fingerprint
    assert len(differences(old, new)) == 1


def test_secrets_are_noted_as_digests() -> None:
    """No secret is in the record or in a sentence; another one counts."""
    kwargs = {"api_key": "sk-123", "a": {"hf_token": "sk-123"}, "my_secret": ["sk-123"]}
    now = identity(model={"name": "m", "kwargs": kwargs})
    assert "sk-123" not in json.dumps(now.values)
    assert from_json(Identity, json.dumps({"values": now.values})) == now
    other = identity(model={"name": "m", "kwargs": {"api_key": "sk-124"}})
    (sentence,) = differences(now, other)
    assert "sk-12" not in sentence


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"digest": "d2", "rows": 7}, True),
        ({"outputs": {"a": {"source": "/b.txt", "column": "text", "skip_blank": True}}}, True),
        ({"model": {"name": "org/other"}}, False),
        ({"revision": "def"}, False),
        ({"outside": {"a/b": "c"}}, False),
        ({"encode": {"truncate_dim": 8}}, False),
        ({"outputs": output(encode={"prompt": "query: "})}, False),
        ({"env": {"NVIDIA_TF32_OVERRIDE": "0"}}, False),
    ],
)
def test_vector_identity(change: dict[str, Any], same: bool) -> None:
    """What makes the vector of a text does not depend on its source, on its template or on the
    other rows.
    """
    assert (identity(**change).vector_fingerprint == identity().vector_fingerprint) is same
