"""Delivers one notice: `python -P -m chunkvisor.observe.messenger`, with the order as JSON on standard input."""

import json
import signal
import sys
from collections.abc import Sequence

TIMEOUT_S = 60
_MOST_BYTES = 1 << 20


def main() -> int:
    """Order: `urls`, `title`, `body`. Without a title, says on standard output which addresses make no sense.

    Exit code 0: delivered to all of them.
    """
    signal.alarm(TIMEOUT_S)  # without a handler it ends the process, wherever it hangs
    order = json.loads(sys.stdin.buffer.read(_MOST_BYTES))
    from apprise import Apprise

    if not order["title"]:
        json.dump(unknown(order["urls"]), sys.stdout)
        return 0
    sender = Apprise()
    # One that is wrong must not keep the others from being told.
    added = [sender.add(url) for url in order["urls"]]
    delivered = sender.notify(title=order["title"], body=order["body"], body_format="text")
    return 0 if all(added) and delivered else 1


def unknown(urls: Sequence[str]) -> list[int]:
    """Places of the addresses that apprise does not understand."""
    from apprise import Apprise

    return [number for number, url in enumerate(urls) if Apprise.instantiate(url) is None]


if __name__ == "__main__":
    sys.exit(main())
