"""Errors of the values in a config, with one sentence each that says what would be right.

They are of type `expected` (context: `what` would be right), `too_large` (`most`) or `refused` (a `sentence` of its
own).
"""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError, WrapValidator
from pydantic_core import PydanticCustomError


def refused(sentence: str, *, of_section: bool = False) -> PydanticCustomError:
    """An error with its own sentence; `of_section`: it is about the whole section of the key, not the key alone."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence, "of_section": of_section})


def expected(what: str, *, text: bool = False) -> WrapValidator:
    """One sentence for all that can be wrong with a value; `text`: quotes would mend a number or a yes/no."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            for item in error.errors():
                if item["type"] == "refused":
                    raise
                if item["type"] == "less_than_equal":
                    most = f"{item['ctx']['le']:,}"
                    raise PydanticCustomError("too_large", "is too large; {most} is the most", {"most": most}) from None
            raise PydanticCustomError("expected", "should be {what}", {"what": what, "text": text}) from None

    return WrapValidator(validate)
