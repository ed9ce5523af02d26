"""Values of a journal or of a sensors' line, as far as they can be believed.

Pure: it never raises, whatever stands there.
"""


def number(value: object) -> float | None:
    """A finite number of a journal, or None."""
    if isinstance(value, float):
        return value if abs(value) < 1e15 else None  # NaN compares false
    return float(value) if type(value) is int and abs(value) < 1 << 53 else None


def integer(value: object) -> int:
    """A count of a journal; 0 for what is none."""
    return value if type(value) is int and 0 <= value < 1 << 53 else 0
