"""The child process: encodes one chunk of texts, and leaves a result or a fault in a folder."""


class Busy(Exception):  # noqa: N818 - no error: the work is to be done later
    """A plug-in's `encode` raises it if a server that it asks is busy.

    The run waits, and no text is blamed.
    """

    def __init__(self, seconds: float = 0.0, why: str = "the encoder asked to wait") -> None:
        """Ask for a pause of at least `seconds`."""
        super().__init__(why)
        self.seconds = seconds
