"""What may stand in the place of a file: bytes, JSON, or the same with a change in it; strategies
of Hypothesis.
"""

import json
from typing import Any

from hypothesis import strategies as st

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [10**30, -(10**30), 1 << 63, 1e308, "", "\0", "..", "/", "nan", "\ud800", "None"]
    )
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
)

NOISE = st.binary(min_size=1, max_size=6) | st.sampled_from(
    [b"\n", b"\r", b'"', b"\0", b"\xff", b"{", b"\n\n", b","]
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes, or what is left of them after some damage."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["insert", "flip", "cut", "twice"])):
            case "insert":
                data[at:at] = draw(NOISE)
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "twice":
                data += data[at:]
    return bytes(data)


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """The JSON value with another value somewhere in it, a key less or a key more."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(value)))
        match draw(st.sampled_from(["into", "into", "into", "drop", "add"])):
            case "into":
                return {**value, key: draw(mutated(value[key]))}
            case "drop":
                return {name: item for name, item in value.items() if name != key}
            case _:
                return {**value, draw(st.text(max_size=5)): draw(VALUES)}
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(mutated(value[at])), *value[at + 1 :]]
    return draw(VALUES)


@st.composite
def another(draw: st.DrawFn, content: bytes) -> bytes:
    """Something else in the place of a state file: bytes, JSON, or the same with a change."""
    match draw(st.sampled_from(["bytes", "damage", "json", "change"])):
        case "bytes":
            return draw(
                st.binary(max_size=40)
                | st.sampled_from([b"", b"[" * 100_000, b"{}", b"null", b"\0" * 50])
            )
        case "damage":
            return draw(damaged(content))
        case "json":
            return json.dumps(draw(VALUES)).encode()
        case _:
            try:
                value = json.loads(content)
            except ValueError:  # lines of JSON, such as the journal; else text or numbers
                return draw(_another_line(content))
            return json.dumps(draw(mutated(value))).encode()


@st.composite
def _another_line(draw: st.DrawFn, content: bytes) -> bytes:
    """A line of JSON changed, doubled or gone; nothing where the content is no such lines."""
    lines = content.split(b"\n")
    at = draw(st.integers(0, len(lines) - 1))
    try:
        changed = json.dumps(draw(mutated(json.loads(lines[at])))).encode()
    except ValueError:
        return b""
    return b"\n".join([*lines[:at], *[changed] * draw(st.integers(0, 2)), *lines[at + 1 :]])
