"""Words of a run for a Python program: arguments in place of options and keys, texts in place of lines of a file."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.errors import ChunkvisorError

_AGAIN = re.compile(r"\b([Rr])un (?:the same command )?again\b")
_FLAG = re.compile(r"--(from-scratch|update)\b")
_VALUE = re.compile(r"--set (\S*\w)")
_OVERRIDE = re.compile(r"^--set ", re.MULTILINE)


def in_python(words: str) -> str:
    """What to do, with arguments in place of the command's options."""
    words = _AGAIN.sub(lambda run: f"{'C' if run[1] == 'R' else 'c'}all it again", words)
    words = _FLAG.sub(lambda flag: f"{flag[1].replace('-', '_')}=True", words)
    return _VALUE.sub(lambda given: f'set=["{given[1]}"]', words)


def options_in_python(problems: str) -> str:
    """What is wrong, a line each, with the argument `set` in place of the command's option."""
    return _OVERRIDE.sub("set ", problems)


_LINE = re.compile(r"(?:/[^:\n]*)?/texts-[0-9a-f]{16}\.jsonl:(\d+)")
"""Where a text stands in the file that `encode` has written of those that it was given."""
_KEY = re.compile(
    r"^( *)(?:(model)\.name|(chunk)\.(?=size)|(?:outputs\.embeddings\.)?(?:model|encode)\.)(?=\w*: )", re.MULTILINE
)
_PLAIN = re.compile(r"\b(false|true|null) (before|now)\b")
_IN_PYTHON = {"false": "False", "true": "True", "null": "None"}


def named_as_arguments(problems: str) -> str:
    """What is wrong with values, a line each, with arguments of `encode` in place of the keys that they stand for."""
    problems = _PLAIN.sub(
        lambda value: f"{_IN_PYTHON[value[1]]} {value[2]}", problems.replace("\n  source: ", "\n  texts: ")
    )
    return _KEY.sub(lambda key: key[1] + (key[2] or (f"{key[3]}_" if key[3] else "")), problems)


_SECTION = re.compile(r"\b(?:model|encode)\.(?=(?:dtype|max_length|revision|trust_remote_code|batch_\w+)\b)")


def without_config(words: str) -> str:
    """What to do, for a call that has no config: with arguments in place of its keys."""
    words = words.replace("`chunkvisor doctor CONFIG`", "`chunkvisor doctor` on the command line")
    return _SECTION.sub("", words.replace("model.name", "model"))


@dataclass(frozen=True, slots=True)
class CallOfTexts:
    """A call of `encode`, in the words of its caller, who knows neither a config nor a file of the texts."""

    place: Callable[[int], str]
    """Where the text of that number stands: `texts[7]`, `texts.iloc[7]`."""
    workdir: Path
    kept: bool
    """Otherwise the workdir is a temporary folder, which is gone when the caller reads of it."""

    def in_words(self, line: str) -> str:
        """A line of the run's news."""
        line = self._placed(line).removesuffix("; `where` leaves them out")  # a key of the config
        if self.kept:
            return line
        folder = re.escape(str(self.workdir))
        return re.sub(folder, "a temporary folder", re.sub(rf", {folder}/\S+$", "", line))

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Name its arguments, in place of keys and files, in an error raised within."""
        try:
            yield
        except ChunkvisorError as error:
            error.what = named_as_arguments(self._placed(error.what))
            for part in ("what", "why", "remedy"):
                setattr(error, part, without_config(getattr(error, part)))
            raise

    def _placed(self, words: str) -> str:
        """The words, with places among the texts in place of lines of the file."""
        return _LINE.sub(lambda found: self.place(int(found[1]) - 1), words)
