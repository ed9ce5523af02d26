"""The record of a fault, made of the strangest exceptions."""

import errno
import io
import json
import urllib.error
from email.message import Message
from pathlib import Path
from unittest.mock import Mock

import pytest

from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.messages import Beat, Fault, Phase
from chunkvisor_worker.contract.secrets import is_secret, masked
from chunkvisor_worker.contract.wire import from_json, to_json
from chunkvisor_worker.faults import CHAIN_LIMIT, MESSAGE_CHARS, TRACEBACK_CHARS, fault_of, recorded


def raised(error: BaseException) -> BaseException:
    """The exception with a traceback, as an `except` clause would have it."""
    try:
        raise error
    except BaseException as caught:
        return caught


def chained(error: BaseException, cause: BaseException) -> BaseException:
    """The exception, raised from the other."""
    error.__cause__ = cause
    return error


class Unprintable(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no text for you")


class Hostile(Exception):
    """An exception whose attributes raise, or are of the wrong type."""

    errno = "28"
    error_code = True

    @property
    def response(self) -> object:
        """Fail."""
        raise RuntimeError("no response")


class Die(BaseException):
    """Not an Exception, like a Rust panic."""


@pytest.mark.parametrize(
    "error", [Unprintable(), Hostile("x"), Die("x"), SystemExit(3), ValueError("\ud800")]
)
def test_strange_exception_makes_a_record(error: BaseException) -> None:
    """Whatever was raised, the record survives the wire."""
    fault = fault_of(
        raised(error),
        Phase.FORWARD,
        Beat(1, 1, Phase.FORWARD, 640, batch_rows=32, batch_tokens=4096),
    )

    assert from_json(Fault, to_json(fault)) == fault
    assert (fault.batch_rows, fault.batch_tokens, fault.rows_done) == (32, 4096, 640)
    assert fault.chain[0].name.rpartition(".")[2] == type(error).__name__


def test_numbers_are_found() -> None:
    """errno, CUDA's code and the HTTP status come from where the libraries put them, and are
    integers.
    """
    error = OSError(28, "No space left on device")
    error.error_code = 710  # type: ignore[attr-defined]  # as torch does
    error.response = type("Response", (), {"status_code": 429})()  # type: ignore[attr-defined]  # as the hub does

    (cause,) = fault_of(error, Phase.WRITE).chain
    assert (cause.errno, cause.error_code, cause.http_status) == (28, 710, 429)
    assert (cause.name, cause.bases) == (
        "builtins.OSError",
        ("builtins.Exception", "builtins.BaseException"),
    )
    (cause,) = fault_of(Hostile("x"), Phase.FORWARD).chain
    assert (cause.errno, cause.error_code, cause.http_status) == (None, None, None)


@pytest.mark.parametrize(
    ("said", "least"), [("7", 7), ("Fri, 31 Dec 2100 23:59:59 GMT", 1e6), ("soon", 0), (None, 0)]
)
def test_what_a_server_asks_to_wait(said: str | None, least: float) -> None:
    """Retry-After counts in seconds or as a date, wherever in the chain; anything else is no wait."""
    headers = Message()
    if said is not None:
        headers["Retry-After"] = said
    with urllib.error.HTTPError("http://127.0.0.1/", 429, "?", headers, io.BytesIO()) as busy:
        wait_s = fault_of(chained(RuntimeError("no vectors"), busy), Phase.FORWARD).wait_s
    assert (wait_s >= least) if least else wait_s == 0


def test_chain_follows_causes_and_contexts_that_are_shown() -> None:
    """The chain is what a traceback shows: `from` first, the context unless it is suppressed."""
    first, second, third, hidden = KeyError("1"), ValueError("2"), TypeError("3"), OSError("hidden")
    first.__context__ = second
    second.__cause__ = third
    second.__context__ = hidden
    third.__context__ = hidden
    third.__suppress_context__ = True
    chain = fault_of(first, Phase.FORWARD).chain
    assert [cause.name.partition(".")[2] for cause in chain] == [
        "KeyError",
        "ValueError",
        "TypeError",
    ]
    third.__cause__ = first  # a ring
    assert len(fault_of(first, Phase.FORWARD).chain) == 3
    long: BaseException = first
    for _ in range(50):
        long = chained(ValueError("1"), long)
    assert len(fault_of(long, Phase.FORWARD).chain) == CHAIN_LIMIT


@pytest.mark.parametrize(
    ("number", "last"),
    [
        *((number, WorkerExit.DISK_FULL) for number in (errno.ENOSPC, errno.EIO, errno.EROFS)),
        *((number, WorkerExit.NO_RECORD) for number in (errno.ENOMEM, errno.EMFILE)),
    ],
)
def test_record_that_the_disk_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, last: int
) -> None:
    """If the disk is full or fails, or memory is short, the exit code tells that: no text is to be
    blamed.
    """

    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", end)
    for code in (WorkerExit.FAULT, last):
        with pytest.raises(SystemExit) as caught, recorded(tmp_path / "fault.json", Phase.FORWARD):
            raise KeyError
        assert caught.value.code == code
        monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(number, "full")))


def test_huge_message_is_cut() -> None:
    """A message of megabytes leaves a record of kilobytes, with both ends of the traceback."""
    fault = fault_of(raised(RuntimeError("head " + "x" * 10_000_000 + " tail")), Phase.FORWARD)

    assert len(fault.chain[0].message) == MESSAGE_CHARS
    assert len(fault.traceback) <= TRACEBACK_CHARS
    assert fault.traceback.startswith("Traceback")
    assert fault.traceback.endswith("tail\n")
    assert len(to_json(fault)) < 2 * (MESSAGE_CHARS + TRACEBACK_CHARS)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("token hf_SECRETsecret1234 refused", "token hf_*** refused"),
        ("{'Authorization': 'Bearer SECRET.secret-1'}", "{'Authorization': 'Bearer ***'}"),
        ("authorization: Basic U0VDUkVU", "authorization: Basic ***"),
        ("HF_TOKEN=SECRET", "HF_TOKEN=***"),
        ('"api_key": "SECRET-secret"', '"api_key": "***"'),
        ("key sk-SECRETsecretsecret", "key sk-***"),
        (
            "https://cdn.example/f?X-Amz-Signature=SECRET&x=1",
            "https://cdn.example/f?X-Amz-Signature=***&x=1",
        ),
        ("https://me:SECRET@proxy:3128/", "https://me:***@proxy:3128/"),
        ("sk-proj-SECRETsecretsecret", "sk-proj-***"),
    ],
)
def test_tokens_are_masked(text: str, kept: str) -> None:
    """No token is in the record, neither in a message nor in the traceback; the rest stays
    readable.
    """
    fault = fault_of(raised(RuntimeError(text)), Phase.MODEL_LOAD)

    assert fault.chain[0].message == kept
    assert "SECRET" not in json.loads(to_json(fault))["traceback"].split("RuntimeError: ", 1)[1]
    assert "SECRET" not in to_json(fault).decode()


@pytest.mark.parametrize(
    "text",
    [
        "no pad_token: [PAD]; max_new_tokens=512",
        "/data/hf_datasets/sk-learn-pipelines/gho_st.csv",
        "cannot open http://host:8080/v1 or a@b",
    ],
)
def test_what_is_like_a_secret_stays(text: str) -> None:
    """Names of files and arguments that only look like tokens are not masked."""
    assert masked(text) == text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((each, True) for each in ("HF_TOKEN", "Authorization", "X-Api-Key", "hfToken", "apiKey")),
        *(
            (each, True)
            for each in ("cookie", "db_password", "credentials", "AWS_SECRET_ACCESS_KEY")
        ),
        *((each, False) for each in ("batch_tokens", "pad_token", "tokenizer", "monkey", "author")),
    ],
)
def test_names_of_secrets(name: str, expected: bool) -> None:
    """A secret is known by a whole word of the name of its key."""
    assert is_secret(name) is expected
