"""Vectors that are to be taken over are looked at once more before they are."""

from pathlib import Path

import pytest

from chunkvisor.assemble.textvectors import TakenDamagedError
from chunkvisor.config.model import Config
from chunkvisor.decide.cut import Cut
from chunkvisor.store.fixed import Fixed, write_facts, write_fixed
from chunkvisor.store.identity import identity_of
from chunkvisor.store.layout import Layout
from chunkvisor.store.reuse import Place, PlaceKind
from chunkvisor.supervise.taken import check_cut
from chunkvisor_worker.contract.messages import Facts

CONFIG = {
    "workdir": "/w",
    "model": {"name": "org/model"},
    "outputs": {
        "full": {"source": "/a.txt", "column": "text"},
        "unit": {"source": "/a.txt", "column": "text", "encode": {"normalize": True}},
        "short": {"source": "/a.txt", "column": "text", "encode": {"truncate_dim": 8}},
    },
}


@pytest.mark.parametrize(
    ("name", "cut", "dtype", "holds"),
    [
        ("unit", Cut(normalize=True), "float32", True),
        ("unit", Cut(normalize=True), "bfloat16", False),
        ("unit", Cut(8, normalize=True), "float32", False),
        ("short", Cut(8), "bfloat16", True),
    ],
)
def test_cut_that_was_promised(tmp_path: Path, name: str, cut: Cut, dtype: str, holds: bool) -> None:
    """A model that has computed in another dtype than its files told, or another identity, ends what was planned."""
    config, layout = Config.model_validate(CONFIG), Layout(tmp_path)
    ours, theirs = layout.output(name), layout.output("full")
    for each in (ours, theirs):
        each.state.mkdir(parents=True)
        write_fixed(each, Fixed(identity_of(config, each.name, "abc", "digest", 3, {}), 1000))
    write_facts(theirs, Facts(384, dtype))
    place = Place(PlaceKind.OUTPUT, "output full", "full", texts=3, cut=cut)
    if holds:
        check_cut(ours, theirs, place)
    else:
        with pytest.raises(TakenDamagedError, match="output full has other vectors"):
            check_cut(ours, theirs, place)
