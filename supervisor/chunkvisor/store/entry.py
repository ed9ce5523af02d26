"""A path as a class attribute of the layout that it belongs to."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast


@dataclass(frozen=True, slots=True)
class Entry:
    """A path of a layout, as a class attribute: `name` in the folder that the layout's attribute `folder` gives."""

    folder: str
    name: str

    def __get__(self, layout: object, _: type | None = None) -> Path:
        return cast("Path", getattr(layout, self.folder)) / self.name
