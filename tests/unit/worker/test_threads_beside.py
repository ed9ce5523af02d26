"""The threads that a fork would leave behind."""

import threading
from pathlib import Path

from chunkvisor_worker.taint import find_taint


def test_the_asking_thread_is_none_of_them_whatever_its_number() -> None:
    """A thread may have a lower number than the one that asks: numbers begin anew at pid_max."""
    found: list[str] = []

    def ask() -> None:
        Path("/proc/thread-self/comm").write_text("asks")
        found.append(find_taint())

    younger = threading.Thread(target=ask)  # asks with the higher number, as if numbers had begun anew
    younger.start()
    younger.join()
    assert "has started threads" in found[0]
    assert "asks" not in found[0]
