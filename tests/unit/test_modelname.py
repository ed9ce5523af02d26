"""What a name that is no folder here can be: told before anything is started, and as huggingface_hub would tell it."""

import pytest

from chunkvisor.engine.modelsource import name_problem
from late import needs

NO_FOLDER, NEITHER, ADDRESS = "there is no model folder", "neither a folder here nor a hub id", "address of a page"
NAMES = {
    "gpt2": None,
    "owner/name": None,
    "sentence-transformers/all-MiniLM-L6-v2": None,
    "Owner_1/na.me-2_x": None,
    "_a/b_": None,
    "o" * 96 + "/" + "n" * 96: None,
    "n" * 97: NEITHER,
    "my model": NEITHER,
    "owner/": NO_FOLDER,
    "a--b": NEITHER,
    "a..b": NEITHER,
    "name.git": NEITHER,
    "müller/modell": NEITHER,
    "-name": NEITHER,
    "owner/.name": NEITHER,
    "name\n": NEITHER,
    "/models/x": NO_FOLDER,
    "./x": NO_FOLDER,
    "~/x": NO_FOLDER,
    "a/b/c": NO_FOLDER,
    "C:\\models\\x": NO_FOLDER,
    "models\\x": NO_FOLDER,
    "https://huggingface.co/owner/name": ADDRESS,
    "https://huggingface.co/owner/name/tree/main": ADDRESS,
    "https://huggingface.co/": NO_FOLDER,
    "s3://bucket/model": NO_FOLDER,
}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said(name: str) -> None:
    """Paths, addresses of pages and impossible ids are told apart, each with what it is."""
    problem, words = name_problem(name), NAMES[name]
    assert (problem is None) == (words is None), problem
    assert words is None or words in str(problem)
    assert words is not ADDRESS or str(problem).endswith("owner/name")


@needs("huggingface_hub")
@pytest.mark.parametrize("name", [name for name in NAMES if name.isascii() and name.isprintable()])
def test_as_huggingface_hub_tells_it(name: str) -> None:
    """No name is refused that huggingface_hub would ask for, and none let through that it refuses without asking.

    Earlier releases ask for names with accents and line ends as well, which no hub has.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        refused = True
    else:
        refused = False
    assert refused == (NAMES[name] is not None)
