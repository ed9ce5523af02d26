"""Numbers in the pages are those of the code: each phrase below is made of a constant, and has to be on its page."""

import sys

import pytest

from chunkvisor.assemble import badrows
from chunkvisor.commands import drill, tune
from chunkvisor.config import model as specs
from chunkvisor.config.values import MOST_SHARDS
from chunkvisor.engine import trial
from chunkvisor.events import journal, state
from chunkvisor.heart import policy
from chunkvisor.show import outside, record
from chunkvisor.supervise import staging
from chunkvisor_worker.contract import taxonomy
from docpages import text_of
from harness import ROOT

_SPELLED = {2: "two", 3: "three", 5: "five", 10: "ten", 20: "twenty"}


def in_words(number: float) -> str:
    """As a sentence has it: small ones as words, large ones with commas."""
    return _SPELLED.get(int(number), f"{number:,g}" if number < 1000 else f"{number:,.0f}")


def quickstart_rows() -> int:
    """Of quickstart/harvest.py."""
    sys.path.insert(0, str(ROOT / "quickstart"))
    try:
        import harvest
    finally:
        sys.path.pop(0)
    return harvest.ROWS


NUMBERS = [
    ("README.md", f"embeds {quickstart_rows():,} docstrings"),
    ("docs/tutorial/getting-started.md", f"embeds {quickstart_rows():,} docstrings"),
    ("docs/reference/config.md", f"in about {staging.TARGET_S:g} s"),
    ("docs/reference/config.md", f"{staging._UNMEASURED['cuda']:,} texts on a GPU"),
    ("docs/reference/config.md", f"and {staging._UNMEASURED['cpu']} on a CPU"),
    (
        "docs/reference/config.md",
        f"auto = {specs.AUTO_TOKENS['cpu']:,} on a CPU; on a GPU {specs.AUTO_TOKENS['cuda']:,}",
    ),
    ("docs/reference/config.md", f"then batch_size auto is {specs.AUTO_ROWS}"),
    ("docs/reference/config.md", f"from 1 to {MOST_SHARDS:,}"),
    ("docs/how-to/write-an-encoder.md", f"`batch_size: auto` is {specs.AUTO_ROWS}"),
    ("docs/how-to/watch-a-run.md", f"every {outside.INTERVAL_S:g} seconds"),
    ("docs/how-to/watch-a-run.md", f"that of its last {state._WINDOW} chunks"),
    ("docs/how-to/watch-a-run.md", f"larger than {record.MOST_BYTES >> 20} MiB, only"),
    ("docs/how-to/watch-a-run.md", f"{in_words(outside.STALL_TIMES)} times as long as usual"),
    ("docs/how-to/watch-a-run.md", f"{in_words(outside.END_S)} seconds at most, {in_words(outside.HURRIED_S)} after"),
    ("docs/reference/metrics.md", f"Every {in_words(record.INTERVAL_S)} seconds"),
    ("docs/reference/metrics.md", f"later every {record.MOST_S:g}"),
    ("docs/reference/run-folder.md", f"The newest {record.KEPT}"),
    ("docs/reference/run-folder.md", f"the first {badrows.LISTED:,} rows at most"),
    ("docs/reference/run-folder.md", f"every {journal._EVERY_BYTES >> 10} KB"),
    ("docs/reference/failures.md", f"only the first {taxonomy.HEAD_CHARS >> 10} KiB count"),
    ("docs/reference/drill.md", f"run of {drill.ROWS} rows in {in_words(drill.CHUNKS)} chunks"),
    (
        "docs/reference/drill.md",
        f"{drill._TOLERANCE['float16']:.0e}".replace("e-0", "e-") + " for weights in float16",
    ),
    ("docs/how-to/check-vectors.md", f"| float32 | {trial._ALLOWED['float32']} |"),
    ("docs/how-to/check-vectors.md", f"| float16 | {trial._ALLOWED['float16']} |"),
    ("docs/how-to/check-vectors.md", f"| bfloat16 | {trial._ALLOWED['bfloat16']} |"),
    ("docs/how-to/tune.md", f"less than {100 * (tune._MATTERS - 1):.0f} %"),
    ("docs/explanation/how-it-works.md", f"{in_words(policy.LIMITS['canary'])} canaries in a row"),
]
"""(page, phrase)."""


@pytest.mark.parametrize("page", sorted({page for page, _ in NUMBERS}))
def test_the_page_has_the_numbers_of_the_code(page: str) -> None:
    """Every phrase about the page is there, across line breaks."""
    text = " ".join(text_of(ROOT / page).split())
    assert [phrase for where, phrase in NUMBERS if where == page and phrase not in text] == []


def test_times_in_words() -> None:
    """A half hour and a minute are what the code has."""
    assert outside.STALL_LEAST_S == 30 * 60
    assert outside.TIMEOUT_S == 60
