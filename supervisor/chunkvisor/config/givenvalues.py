"""The values of a config on their way to validation: where each was given, and what is wrong with it, in words."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from chunkvisor.config.keys import GONE, all_keys, generic, key_of, unknown
from chunkvisor.config.model import Config
from chunkvisor.config.secretnames import is_secret
from chunkvisor.config.yaml import Document, Key, YamlError, parse
from chunkvisor.errors import Halt, config_error
from chunkvisor.units import did_you_mean

_SECRET_KEYS = frozenset({"env", "notify"})
"""Values under these may be secrets, and are not repeated in messages."""


def _is_secret(dotted: str) -> bool:
    return dotted.partition(".")[0] in _SECRET_KEYS or is_secret(dotted.rpartition(".")[2])


def without_secret(text: str) -> str:
    """A KEY=VALUE as it may be repeated."""
    dotted, equals, value = text.partition("=")
    of_keys = value.lstrip().startswith("{")  # a mapping, such as model.kwargs={token: SECRET}
    return f"{dotted}=…" if equals and (_is_secret(dotted) or (of_keys and is_secret(value))) else text


def wrong_config(problems: Sequence[str]) -> Halt:
    """The Halt (78) that lists them."""
    # A lone surrogate from an escape in the YAML could not be printed.
    what = "\n".join(problems).encode(errors="backslashreplace").decode()
    return config_error(what, remedy="correct this, then run the same command again")


@dataclass(slots=True)
class GivenValues:
    """Values on their way to validation, each knowing its place."""

    name: str
    """Of the file; empty for values that came from no file."""
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, int | str] = field(default_factory=dict)
    """Line in the file, or the --set that gave the value."""
    written: dict[Key, str] = field(default_factory=dict)
    problems: list[tuple[int | str, str]] = field(default_factory=list)

    def take(self, document: Document) -> None:
        """Have the values of a file."""
        self.values = document.value
        self.places.update(document.lines)
        self.written = document.written
        self.problems.extend(document.problems)

    def override(self, text: str) -> None:
        """Apply one KEY=VALUE; what is wrong with it joins the problems."""
        dotted, equals, value_text = text.partition("=")
        secret = _is_secret(dotted)
        place = "--set " + (without_secret(text) if secret else shlex.quote(_shortened(text)))
        if not equals or not all(dotted.split(".")):
            self.problems.append((place, "write it as --set KEY=VALUE, such as --set chunk.size=200"))
            return
        try:
            document = parse(value_text)
        except YamlError as error:
            self.problems.append((place, error.sentence if not secret else "not valid YAML"))
            return
        self.problems.extend((place, sentence) for _, sentence in document.problems)
        outputs = self.values.get("outputs")
        key = key_of(dotted, outputs if isinstance(outputs, dict) else {})
        if len(key) > 2 and key[0] == "outputs" and isinstance(outputs, dict) and key[1] not in outputs:
            hint = did_you_mean(key[1], outputs, "valid here")
            self.problems.append((place, f"there is no output {key[1]}; {hint}"))
            return
        section = self.values
        for depth, part in enumerate(key[:-1], start=1):
            if section.get(part) is None:
                section[part] = {}
            if not isinstance(section[part], dict):
                sentence = f"{'.'.join(key[:depth])} is a single value or a list, without keys of its own"
                self.problems.append((place, sentence))
                return
            section = section[part]
            self.places.setdefault(key[:depth], place)
        section[key[-1]] = document.value
        self.places = {known: place for known, place in self.places.items() if known[: len(key)] != key} | {key: place}
        self.written = {known: word for known, word in self.written.items() if known[: len(key)] != key}
        self.written |= {key + known: word for known, word in document.written.items()}

    def validate(self, folder: Path) -> Config:
        """The Config. Raises Halt with all problems."""
        env = self.values.get("env")
        if isinstance(env, dict):  # numbers as they were written: 9.10 is not 9.1 to whoever reads the variable
            numbers = [name for name, value in env.items() if type(value) in (int, float)]
            self.values["env"] = env | {name: self.written.get(("env", name), str(env[name])) for name in numbers}
        try:
            config = Config.model_validate(self.values, context={"folder": str(folder)})
        except ValidationError as error:
            self.problems.extend(self._problem(dict(item)) for item in error.errors(include_url=False))
        if self.problems:
            ordered = sorted(self.problems, key=lambda problem: problem[0] if isinstance(problem[0], int) else 1 << 30)
            raise wrong_config(list(dict.fromkeys(self._located(place) + sentence for place, sentence in ordered)))
        return config

    def _located(self, place: int | str) -> str:
        if isinstance(place, str):
            return f"{place}: "
        prefix = f"{self.name}:{place}" if place else self.name
        return f"{prefix}: " if prefix else ""

    def _problem(self, item: dict[str, Any]) -> tuple[int | str, str]:
        key: Key = item["loc"]
        context = item.get("ctx", {})
        is_name = False
        # pydantic's mark for the key of a mapping being wrong, not its value; a person may have written it, too.
        if len(key) > 2 and key[-1] == "[key]" and item["type"] != "extra_forbidden":
            key, is_name = key[:-1], True
        if context.get("of_section"):
            key = key[:-1]
        place = next((self.places[key[:end]] for end in range(len(key), 0, -1) if key[:end] in self.places), 0)
        shown = "this" if is_name else self._shown(key, item["input"])
        dotted = ".".join(_printable(str(part)) for part in key)
        sentence = self._sentence(item["type"], key, shown, item["input"], context)
        return place, f"{dotted}: {sentence}" if dotted else sentence  # of the config as a whole

    def _sentence(self, kind: str, key: Key, shown: str, value: Any, context: Mapping[str, Any]) -> str:
        if kind == "extra_forbidden":
            return unknown(tuple(str(part) for part in key))
        if kind == "missing":
            return "this key is required"
        if kind == "refused":
            return str(context["sentence"])
        if kind == "too_large":
            return f"{shown} is too large; {context['most']} is the most"
        if kind == "expected" and (instead := GONE.get((*map(str, key), str(value)))):
            return f"{shown} is gone: {instead}"
        if kind == "expected":
            quotable = context["text"] and isinstance(value, bool | int | float) and key in self.written
            hint = f'; put it in quotes: "{self.written[key]}"' if quotable and key[0] not in _SECRET_KEYS else ""
            if context["text"] and not hint and isinstance(value, bool | dict):
                hint = "; text needs quotes here"
            return f"{shown} is not {context['what']}{hint}"
        names = [name[-1] for name in all_keys() if name[:-1] == generic(tuple(map(str, key)))]
        such = f", with keys such as {', '.join(names[:3])}" if names else ""
        return f"{shown} stands where a mapping is needed{such}"

    def _shown(self, key: Key, value: Any) -> str:
        if key[:1] and key[0] in _SECRET_KEYS and isinstance(value, str):
            return "the value"  # it may be a secret
        if isinstance(value, bool | int | float) and key in self.written:
            return _shortened(self.written[key])
        if value is None or isinstance(value, bool | int | float | str):
            return _shortened(json.dumps(value, ensure_ascii=False))
        kinds = {"dict": "this mapping", "list": "this list"}
        return kinds.get(type(value).__name__, f"an object of type {type(value).__name__}")


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:50]}…{text[-20:]}"


def _printable(text: str) -> str:
    return _shortened(text if text and text.isprintable() else json.dumps(text, ensure_ascii=False))
