"""A terminal of a given size in which a command runs, and whose screen can be looked at."""

import fcntl
import os
import select
import signal
import struct
import termios
from collections.abc import Sequence

import pyte

from forking import Forked
from harness import wait_for


class Terminal:
    """The command has it as its controlling terminal; `screen` is what a person would see."""

    def __init__(
        self, command: Sequence[str], columns: int = 80, lines: int = 24, **environment: str
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=1000)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        self._master, slave = os.openpty()
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        base = {
            name: value
            for name, value in os.environ.items()
            if name not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        self.process = Forked(
            list(command),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=lambda: os.login_tty(
                0
            ),  # where it is started; what is forked sees to it by itself
            env={
                **base,
                "TERM": "xterm-256color",
                "LANG": "C.UTF-8",
                "OPENBLAS_NUM_THREADS": "1",
                **environment,
            },
        )
        os.close(slave)

    def look(self) -> list[str]:
        """Lines of the screen, after taking in what was written meanwhile."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                break
            self.written += data
            self._stream.feed(data.replace(b"\x1b[?2026h", b"").replace(b"\x1b[?2026l", b""))
        return [line.rstrip() for line in self.screen.display]

    def everything(self) -> list[str]:
        """Lines of the screen, and what has scrolled out of it above."""
        now = self.look()
        above = [
            "".join(line[x].data for x in range(self.screen.columns)).rstrip()
            for line in self.screen.history.top
        ]
        return [line for line in [*above, *now] if line]

    def wait_for(self, text: str) -> list[str]:
        """The screen, once the text is on it."""
        return wait_for(lambda: self.look() if text in "\n".join(self.look()) else None)

    def type(self, keys: bytes) -> None:
        """As if typed; Ctrl-C is the byte 3."""
        os.write(self._master, keys)

    def finish(self) -> int:
        """Wait for the end of the command; its exit code."""
        wait_for(lambda: self.look() and self.process.poll() is not None)
        self.look()
        return self.process.returncode

    def close(self) -> None:
        """Leave nothing running."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._master)
