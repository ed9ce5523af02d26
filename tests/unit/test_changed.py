"""The words that refuse a config of which the vectors would be others: what whoever gave it can do, and no more."""

import pytest

from chunkvisor.config.load import Given
from chunkvisor.errors import ExitCode
from chunkvisor.supervise.work import refuse_changes

OF_SOURCE, OF_SETTINGS = ("source: 100 rows before, 101 now",), ("encode.normalize: false before, true now",)
UPDATE, ELSEWHERE = "--update", "choose another workdir"
WORDS: dict[tuple[tuple[str, ...], Given, bool], set[str]] = {
    (OF_SOURCE, Given.FILE, True): {UPDATE, "ndo the change", ELSEWHERE},
    (OF_SETTINGS, Given.FILE, False): {"ndo the change", ELSEWHERE},
    (OF_SOURCE, Given.OPTIONS, True): {"ndo the change", "by -o"},
    (OF_SOURCE, Given.ARGUMENTS, True): {UPDATE, "ndo the change", ELSEWHERE},
}
ALL = set().union(*WORDS.values())


@pytest.mark.parametrize(("changes", "given", "serve"), WORDS)
def test_what_can_be_done(changes: tuple[str, ...], given: Given, serve: bool) -> None:
    """A refusal offers what the caller has: not `--update` to `chunkvisor encode`, nor where it would not help."""
    halt = refuse_changes("titles", changes, given, serve=serve)
    assert halt.code is ExitCode.CONFIG
    assert changes[0] in halt.what
    offered = {words for words in ALL if words in halt.remedy}
    assert offered == WORDS[changes, given, serve]
    assert "adding --from-scratch" in halt.remedy
