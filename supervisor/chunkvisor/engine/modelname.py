"""What a name that is no folder here can be: an id of the hub, or a mistake, in words. Pure.

The grammar is that of huggingface_hub (validate_repo_id of utils/_validators.py), told before a child asks the hub.
"""

import re

NAME_REMEDY = (
    "write model.name as the path of a model's folder, from the root or from the folder of the config (with `encode`, "
    "from the current one), or as its hub id, owner/name"
)

_HUB_ID = re.compile(r"(\b[\w\-.]{1,96}\b/)?\b[\w\-.]{1,96}\b", re.ASCII)
_PAGE = re.compile(r"https?://[^/]+/(?P<id>[^/?#]+/[^/?#]+)")
_IS_PATH = re.compile(r"[/.~\\]|[A-Za-z]:\\")
"""How only a path begins, here or on Windows."""


def name_problem(name: str) -> str | None:
    """Why no hub can have a model of that name, which is no folder here; None where one may have it."""
    if (page := _PAGE.match(name)) is not None and not _unfit(page["id"]):
        return f"model.name is the address of a page; the model's name there is {page['id']}"
    if _IS_PATH.match(name) or name.endswith("/") or name.count("/") > 1 or "\\" in name:
        return f"there is no model folder {name}"
    if _unfit(name):
        return (
            f"{name!r} is neither a folder here nor a hub id, which is owner/name, of letters without accents, digits "
            "and single - _ . between them"
        )
    return None


def _unfit(name: str) -> bool:
    return not _HUB_ID.fullmatch(name) or "--" in name or ".." in name or name.endswith(".git")
