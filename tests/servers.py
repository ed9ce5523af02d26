"""Small HTTP servers on this machine."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers requests, and says nothing of them."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a reply; to HEAD without the body."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    """Serve while the context lasts."""
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield
        server.shutdown()
