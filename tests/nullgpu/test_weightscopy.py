"""Weights on their way to a null GPU, whose copies are real: by either way they arrive as they were."""

from collections import Counter
from collections.abc import Callable

import pytest
from asking import ask

from nullgpu import NullGpu

_COPY = """
from chunkvisor_worker.weightscopy import copy_weights

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(20_000, 1024)  # 80 MiB
        self.tied = torch.nn.Linear(1024, 20_000, bias=False)
        self.tied.weight = self.table.weight
        self.half = torch.nn.Linear(3000, 3001).to(torch.bfloat16)  # 18 MB, more than a piece
        self.across = torch.nn.Parameter(torch.randn(30, 50).t(), requires_grad=False)
        self.scalar = torch.nn.Parameter(torch.tensor(7.0))
        self.register_buffer("mean", torch.randn(40))

torch.manual_seed(0)
model = Model()
before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
torch.zeros(1, device="cuda")
trace = f"{os.environ['NULLGPU_DIR']}/trace/{os.getpid()}"
begun = len(open(trace).readlines())
copy_weights(model, "cuda")
say("calls", [line.split()[0] for line in open(trace).readlines()[begun:]])
after = model.state_dict()
say("there", all(tensor.device.type == "cuda" for tensor in after.values()))
say("wrong", [name for name, tensor in after.items() if not torch.equal(tensor.cpu(), before[name])])
say("tied", model.tied.weight is model.table.weight)
say("strides", model.across.stride() == before["across"].stride())
"""


@pytest.mark.newer
@pytest.mark.parametrize(("slow", "pinned"), [("cudaStreamSynchronize", True), ("cudaEventRecordWithFlags", False)])
def test_weights_arrive_by_the_faster_way(make_gpu: Callable[..., NullGpu], slow: str, pinned: bool) -> None:
    """Shared, odd, narrow and tiny weights are the same on the device, and the faster way is kept for the rest.

    A copy as `.to()` does it waits for its stream, one through pinned memory for an event; both ways are tried with the
    first weight, so that it is enough to slow the first two waits.
    """
    gpu = make_gpu(trace=1, copy_limit="1G")
    gpu.fault("slow:2", f"{slow}:1-2")
    said = ask(gpu, _COPY)
    assert said["there"]
    assert said["tied"]
    assert said["strides"]
    assert said["wrong"] == []
    calls = Counter(said["calls"])
    # Of 80 MiB one half through pieces of 16 MiB, in two quarters of 20 MiB; of the rest 18 MB in two more, and two of
    # a few bytes in one each.
    assert calls["cudaEventRecordWithFlags"] == 4 + (2 + 2 if pinned else 0), calls
    assert calls["cudaDeviceSynchronize"] == 6


def test_weights_arrive_without_pinned_memory(make_gpu: Callable[..., NullGpu]) -> None:
    """Where the system pins nothing, they are copied as `.to()` does it."""
    gpu = make_gpu(trace=1, copy_limit="1G")
    gpu.fault(2, "cudaHostAlloc", sticky=False)
    said = ask(gpu, _COPY)
    assert said["there"]
    assert said["wrong"] == []
    assert Counter(said["calls"])["cudaEventRecordWithFlags"] == 0
