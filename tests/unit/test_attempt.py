"""What is kept of attempts that have failed."""

from pathlib import Path

from chunkvisor.store.attempt import drop_bulk
from chunkvisor_worker.contract.files import AttemptFiles


def attempt(chunk: Path, number: int, *, judged: bool) -> AttemptFiles:
    """The folder of an attempt at the chunk, with vectors, texts and a log."""
    files = AttemptFiles(chunk / f"{number:03}")
    files.folder.mkdir(parents=True)
    for path in (files.vectors, files.partial, files.texts, files.log, *([files.verdict] if judged else [])):
        path.write_text("{}")
    return files


def test_an_attempt_under_way_keeps_its_texts(tmp_path: Path) -> None:
    """Once an attempt is judged, its vectors go, and the texts of those judged before it; parts beside it go on."""
    failed, slow, last, later = (attempt(tmp_path, each, judged=each in (1, 3)) for each in (1, 2, 3, 4))
    drop_bulk(last)
    assert not last.vectors.exists()
    assert not last.partial.exists()
    assert last.texts.exists()  # to try it by hand
    assert not failed.texts.exists()
    assert failed.vectors.exists()  # its own call removes them
    for other in (slow, later):
        assert other.texts.exists()
        assert other.vectors.exists()
    assert all(each.log.exists() for each in (failed, slow, last, later))
