"""Cuts long texts into windows that the model reads to their end: asks a process that has the model's tokenizer."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from chunkvisor.child import for_tokenizer
from chunkvisor.errors import config_error
from chunkvisor.store.childend import verdict_of_child
from chunkvisor_worker.contract.windows import WindowsFiles, WindowsRequest
from chunkvisor_worker.contract.wire import write_message

WINDOW = np.dtype([("text", "<i8"), ("start_char", "<i8"), ("end_char", "<i8")])
"""Of each window: the number of its text, of those that are not left out, and its characters in it."""

_BLOCK_TEXTS = 1024
_BLOCK_BYTES = 4 << 20
_PATIENCE_S = 60.0
"""For the end of a process that has nothing more to do, or has failed."""


class WindowCutter:
    """The process, as a context, and all windows so far, in a file."""

    def __init__(self, request: WindowsRequest, scratch: Path) -> None:
        """Start it. Raises Halt (78) where texts cannot be cut for this model, OSError."""
        self._files = WindowsFiles(scratch / "windows")
        self._files.folder.mkdir()
        write_message(self._files.request, request, durable=False)
        self.spans = scratch / "windows.bin"
        """`WINDOW` of each."""
        self._texts = 0
        command = [sys.executable, "-P", "-m", "chunkvisor_worker.windows", str(self._files.folder)]
        with open(self._files.log, "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=for_tokenizer()
            )
        with contextlib.ExitStack() as stack:
            stack.push(self.__exit__)  # unless it can be used
            if (refused := self._answer()) is not None:
                raise config_error(
                    f"encode.long is windows, and {refused}", remedy="write another encode.overlap or long"
                )
            stack.pop_all()

    def __enter__(self) -> "WindowCutter":
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._pipe(self._process.stdin).close()
        if kind is not None:
            self._process.kill()
        self._process.wait(_PATIENCE_S)
        self._pipe(self._process.stdout).close()

    def cut(self, texts: Iterable[bytes | None]) -> Iterator[list[bytes]]:
        """The windows of each text in UTF-8, none for one that is left out. Raises Halt (78)."""
        block, size_bytes = list[bytes | None](), 0
        with open(self.spans, "ab") as spans:
            for text in texts:
                block.append(text)
                size_bytes += len(text or b"")
                if len(block) == _BLOCK_TEXTS or size_bytes >= _BLOCK_BYTES:
                    yield from self._cut(block, spans)
                    block, size_bytes = [], 0
            yield from self._cut(block, spans)

    def _cut(self, block: list[bytes | None], spans: IO[bytes]) -> Iterator[list[bytes]]:
        texts = [text.decode() for text in block if text is not None]
        if texts:
            self._ask(texts)
        answer: Any = self._answer() if texts else []
        found = iter(zip(texts, answer, strict=True))
        for data in block:
            if data is None:
                yield []
                continue
            text, windows = next(found)
            noted = [(self._texts, start, end) for start, end in windows]
            spans.write(np.array(noted, dtype=WINDOW).tobytes())
            self._texts += 1
            yield [text[start:end].encode() for start, end in windows]

    def _ask(self, texts: list[str]) -> None:
        pipe = self._pipe(self._process.stdin)
        with contextlib.suppress(BrokenPipeError):  # that there is no answer says more
            pipe.write(json.dumps(texts).encode() + b"\n")
            pipe.flush()

    def _answer(self) -> object:
        """The next line. Raises Halt (78) with what its process says, where there is none."""
        line = self._pipe(self._process.stdout).readline()
        if line.endswith(b"\n"):
            return json.loads(line)
        code = self._process.wait(_PATIENCE_S)
        verdict = verdict_of_child(code, self._files.fault, self._files.log)
        raise config_error(
            "encode.long is windows, and the tokens of the texts cannot be counted",
            why=verdict.reason,
            remedy=verdict.remedy,
        )

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


def read_windows(path: Path, at_once: int) -> Iterator[dict[str, np.ndarray]]:
    """Columns of `WINDOW`, some windows at a time. Raises OSError."""
    with open(path, "rb") as file:
        while data := file.read(at_once * WINDOW.itemsize):
            found = np.frombuffer(data, dtype=WINDOW)
            yield {name: np.ascontiguousarray(found[name]) for name in WINDOW.names or ()}
