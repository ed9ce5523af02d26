"""Encoders that ask a server: what passes is waited for and blames no text; an error in their own
code ends the run.
"""

import json
import shutil
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import ClassVar

import pytest

from harness import ROOT, Workplace
from servers import Handler, serving


class Server(Handler):
    """Answers as it was told to, and then with vectors."""

    answers: ClassVar[list[int]] = []
    refused: ClassVar[tuple[str, int | None]] = ("", None)
    """A text, and the status that all requests with it get; None = no answer at all."""
    most: ClassVar[int] = 1000  # texts in a request; for larger ones it answers 422
    in_vain: ClassVar[list[int]] = []  # how many texts such requests had

    def do_POST(self) -> None:
        """Answer one request."""
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        text, status = self.refused
        if text not in texts:
            status = self.answers.pop(0) if self.answers else 200
        words = b"not now"
        if len(texts) > self.most:
            status, words = 422, b'{"error": "batch size > maximum allowed batch size"}'
            self.in_vain.append(len(texts))
        if status is None:
            return
        # In the wrong order, as the interface allows.
        data = [{"index": at, "embedding": [len(text), at + 1.0]} for at, text in enumerate(texts)][
            ::-1
        ]
        body = json.dumps({"data": data}).encode() if status == 200 else words
        self.answer(status, body, {"Retry-After": "1"} if status == 429 else {})


@pytest.fixture
def asking(workplace: Workplace) -> Iterator[Workplace]:
    """Give a job of twenty texts in two chunks, whose encoder asks a running server."""
    shutil.copy(ROOT / "examples" / "endpoint" / "endpoint_encoder.py", workplace.folder)
    workplace.write_source([f"text {'x' * number}" for number in range(20)])
    running = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    kwargs = {"url": f"http://127.0.0.1:{running.server_port}/v1/embeddings"}
    more = {"encode__batch_size": 5, "recovery__wait_timeout": 60}
    workplace.write_config("endpoint_encoder:make", model__kwargs=kwargs, **more)
    with serving(running):
        yield workplace


def completes(asking: Workplace) -> None:
    """Run it to its end; each text has the server's vector for it."""
    asking.ends(0)
    assert asking.vectors()[:, 0].tolist() == [5 + number for number in range(20)]


def test_a_server_that_is_busy_is_waited_for(asking: Workplace) -> None:
    """429 with Retry-After and 500 cost time only: every row has its vector, and the answers' order
    does not matter.
    """
    Server.answers[:] = [200, 429, 500]
    completes(asking)
    waits = asking.named("waiting")
    assert [event["outcome"] for event in waits] == ["hub", "hub"]
    assert waits[0]["delay_s"] >= 1
    assert not asking.manifest()["quarantined"]
    assert not Server.answers


@pytest.mark.parametrize(
    ("status", "chunk", "number"), [(500, 10, 13), (503, 20, 0), (None, 10, 0)]
)
def test_a_text_for_which_a_server_fails_is_found(
    asking: Workplace, status: int | None, chunk: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it encodes others, one that always fails or hangs up for a text has met the text,
    be it the first or in the only chunk; what it answered is the reason.
    """
    monkeypatch.setattr(Server, "refused", (f"text {'x' * number}", status))
    ended = asking.ends(3, "--set", f"chunk.size={chunk}")
    assert "See whether the server is up" in ended.stderr
    (bad,) = asking.manifest()["quarantined"]
    assert bad["row"] == number
    assert (f"the server answered {status}: not now" if status else "Remote end") in bad["reason"]


def test_a_server_that_takes_smaller_batches_is_asked_for_those(
    asking: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply about the size of the batch halves it for all chunks, and for the next run: at most
    two requests are in vain for each halving.
    """
    monkeypatch.setattr(Server, "most", 2)
    monkeypatch.setattr(Server, "in_vain", [])
    asking.ends(0, "--set", "encode.batch_size=16", "--set", "chunk.size=4")
    assert len(Server.in_vain) <= 6
    Server.in_vain.clear()
    asking.ends(0, "--from-scratch", "--set", "encode.batch_size=16", "--set", "chunk.size=4")
    assert len(Server.in_vain) <= 2


def test_a_server_that_stays_down_ends_the_run(asking: Workplace) -> None:
    """With 75, when recovery.wait_timeout is over; what is done is kept, and the next run does the
    rest.
    """
    Server.answers[:] = [200] * 2 + [503] * 100
    assert "HTTP Error 503" in asking.ends(75, "--set", "recovery.wait_timeout=0.2").stderr
    assert asking.progress()["chunks_done"] == 1
    Server.answers.clear()
    completes(asking)


OWN = """
import chunkvisor_worker, numpy, pathlib

class Own:
    def encode(self, texts, batch_size):
        if {when}:
            {line}
        return numpy.ones((len(texts), 2), numpy.float32)

def make(model, device):
    return Own()
"""

LATE = "'text 15' in texts"


@pytest.mark.parametrize(
    ("line", "when", "code", "words"),
    [
        (
            "raise chunkvisor_worker.Busy(3600, 'the licence server is full')",
            LATE,
            75,
            "the licence server is full",
        ),
        ("raise TimeoutError('no answer')", LATE, 3, "TimeoutError: no answer"),
        (
            "returns = tokenise(texts)",
            "True",
            78,
            "own.py, line 7: NameError: name 'tokenise' is not defined",
        ),
        (
            "__import__('json').dumps(numpy)",
            "True",
            78,
            "own.py, line 7: TypeError: Object of type module is not",
        ),
        (
            "texts[0].size",
            LATE,
            3,
            "own.py, line 7: AttributeError: 'str' object has no attribute 'size'",
        ),
        (
            "texts[0].size",
            "'text 0' in texts",
            3,
            "own.py, line 7: AttributeError: 'str' object has no attribute",
        ),
    ],
)
def test_what_an_encoder_raises(
    workplace: Workplace, line: str, when: str, code: int, words: str
) -> None:
    """What passes is waited for, then ends with 75; a mistake ends with 78 and its place, or is
    that of one text.
    """
    (workplace.folder / "own.py").write_text(OWN.format(line=line, when=when))
    workplace.prepare(
        [f"text {number}" for number in range(20)], "own:make", recovery__wait_timeout=0.2
    )

    ended = workplace.ends(code)
    assert words in ended.words
    assert len(workplace.named("quarantined")) == (code == 3)
    if code == 78:
        assert len(workplace.named("attempt_failed")) == 3
