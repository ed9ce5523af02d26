"""For mkdocs: files of the repository that a page of docs/ links to are on the site as well, under `repository/`.

mkdocs itself knows the folder docs/ alone. Links lead from there to configs, examples and diaries.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

_ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add what is linked, and what that links to in turn.

    Folders are left to `on_page_markdown`.
    """
    waiting = [_ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for target in (_resolved(page, name) for name in _targets(page.read_text("utf-8"))):
            if target is None or not target.is_file() or files.get_file_from_path(_uri(target)):
                continue
            copy = File.generated(
                config, _uri(target), abs_src_path=str(target), inclusion=InclusionLevel.NOT_IN_NAV
            )
            files.append(copy)
            waiting += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links that leave docs/ at the copies; one to a folder becomes its name."""
    uri = page.file.src_uri
    inside = uri.removeprefix("repository/")
    source = _ROOT / inside if inside != uri else _ROOT / "docs" / uri

    def point(match: re.Match[str]) -> str:
        target = _resolved(source, match[1])
        if target is None or not target.is_file():
            return match[0]
        return f"]({os.path.relpath(_uri(target), Path(uri).parent)}{match[2] or ''})"

    text = re.sub(r"\[([^]]+)\]\(([^)\s]+)\)", lambda match: _folder(source, match), markdown)
    return _LINK.sub(point, text)


def _folder(source: Path, match: re.Match[str]) -> str:
    target = _resolved(source, match[2])
    return match[1] if target is not None and target.is_dir() else match[0]


def _targets(markdown: str) -> list[str]:
    return [match[1] for match in _LINK.finditer(markdown) if "://" not in match[1]]


def _resolved(page: Path, target: str) -> Path | None:
    """The file of the repository that a link means."""
    path = (page.parent / target).resolve()
    return path if path.is_relative_to(_ROOT) else None


def _uri(path: Path) -> str:
    """Where it is on the site, as mkdocs names sources."""
    docs = _ROOT / "docs"
    return (
        path.relative_to(docs).as_posix()
        if path.is_relative_to(docs)
        else f"repository/{path.relative_to(_ROOT)}"
    )
