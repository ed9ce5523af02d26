"""What attention.py decides for transformers: no math kernel, no question to the device, no change of a value."""

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from chunkvisor_worker import attention
from late import Late, needs

torch, transformers = Late("torch"), Late("transformers")
pytestmark = needs("transformers")


@pytest.fixture
def prepared() -> Iterator[Any]:
    """Put our choices into transformers, and its own back afterwards."""
    from transformers import masking_utils
    from transformers.integrations import sdpa_attention

    names = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
    kept = [(sdpa_attention, "use_gqa_in_sdpa"), *((masking_utils, name) for name in names)]
    found = [(module, name, getattr(module, name)) for module, name in kept]
    # A worker that an earlier test played in this process has made these choices already, and makes them once.
    originals = [(module, name, inspect.unwrap(function)) for module, name, function in found]
    for module, name, original in originals:
        setattr(module, name, original)
    attention.prepare()
    assert all(getattr(module, name) is not original for module, name, original in originals), "transformers differs"
    yield sdpa_attention
    for module, name, function in found:
        setattr(module, name, function)


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "grouped"),
    [
        ("cuda", "float32", (9, 0), False),
        ("cuda", "bfloat16", (9, 0), True),
        ("cuda", "float16", (7, 5), False),
        ("cpu", "float32", (0, 0), True),
    ],
)
def test_sdpa_is_told_of_grouped_queries_if_a_fused_kernel_takes_them(
    prepared: Any,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    dtype: str,
    capability: tuple[int, int],
    grouped: bool,
) -> None:
    """In float32, and before Ampere, they would go to the math kernel; on the CPU all stays as it is."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    key = SimpleNamespace(device=torch.device(device), dtype=getattr(torch, dtype), shape=(1, 2, 8, 64))
    assert prepared.use_gqa_in_sdpa(None, key, key) is grouped
    assert prepared.use_gqa_in_sdpa(object(), key, key) is False


def small_model(kind: str) -> Any:
    """Make a random model with grouped queries (decoder) or without (encoder), in eval mode."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    if kind == "bert":
        return transformers.BertModel(transformers.BertConfig(**sizes, num_attention_heads=4)).eval()
    config = transformers.Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2)
    return transformers.Qwen2Model(config).eval()


@pytest.mark.parametrize("lengths", [(7,), (7, 7), (7, 1)])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("kind", ["bert", "qwen2"])
def test_no_value_changes_and_no_batch_waits(
    prepared: Any, monkeypatch: pytest.MonkeyPatch, kind: str, left: bool, lengths: tuple[int, ...]
) -> None:
    """The hidden states are those of transformers' own choices, and nothing asks for the value of a tensor."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Waits(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed, see pyproject.toml
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            self.count += str(func).partition(".default")[0] in ("aten._local_scalar_dense", "aten.is_nonzero")
            return func(*args, **(kwargs or {}))

    model = small_model(kind)
    ids = torch.randint(1, 50, (len(lengths), 7), generator=torch.Generator().manual_seed(1))
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, 7 - length if left else 0 : 7 if left else length] = 1
    with torch.inference_mode():
        with Waits() as before:
            wanted = model(input_ids=ids, attention_mask=mask).last_hidden_state
        monkeypatch.setattr(attention, "_has_fused_kernel", lambda _key: False)
        with Waits() as waits, attention.known_padding(len(set(lengths)) > 1):
            found = model(input_ids=ids, attention_mask=mask).last_hidden_state
    assert before.count
    assert waits.count == 0
    assert torch.equal(found[mask.bool()], wanted[mask.bool()])
