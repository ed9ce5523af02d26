"""Controls that nobody needs any more are not waited for."""

from types import SimpleNamespace
from typing import Any, cast

from chunkvisor.decide.lastwords import BadRows
from chunkvisor.decide.verdict import Verdict
from chunkvisor.supervise.backlog import Backlog
from chunkvisor.supervise.blame import Accused, Blame
from chunkvisor.supervise.task import NOW, Control, Task
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits
from simulator.disk import Output


def probing(bounds: list[tuple[int, int]]) -> tuple[Output, Backlog, Any, Blame]:
    """Two devices; all chunks were handed out, a text has hung alone on device 1, and a probe waits for that device."""
    output = Output("out", Limits(1), bounds)
    backlog, fleet = Backlog([output]), SimpleNamespace(alive=[SimpleNamespace(number=0), SimpleNamespace(number=1)])
    for _ in bounds:
        assert backlog.take(0.0) is not None
    blame = Blame([output], BadRows(), backlog, cast("Any", fleet), lambda _: None, *cast("Any", (None, None)))
    blame.accuse(Accused(Task(NOW, 0, 0, 0, 1), Verdict(Outcome.HUNG, "it hung"), 1, 1, 0.0))
    blame.settle(nothing_else=False)
    return output, backlog, fleet, blame


def test_a_control_of_a_device_that_is_left_out_is_withdrawn() -> None:
    """Though no text is undecided any more: another has been encoded meanwhile."""
    _, backlog, fleet, blame = probing([(0, 4)])
    assert not backlog.empty

    blame.encoded(1, 5.0, Task(NOW, 0, 0, 1, 4))
    assert not blame.undecided
    del fleet.alive[1]
    blame.settle(nothing_else=False)
    assert backlog.empty


def test_a_probe_that_has_not_begun_gives_way_to_a_text_that_is_known_to_be_good() -> None:
    """A better control; and the text may have failed by itself meanwhile."""
    output, backlog, _, blame = probing([(0, 4), (4, 8)])
    output.keep(1, 4, 8, ())
    blame.settle(nothing_else=False)
    control = backlog.take(0.0)
    assert control is not None
    assert (control.control, control.start) == (Control.KNOWN_GOOD, 4)
    assert backlog.empty
