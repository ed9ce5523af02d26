"""Which dtype the commands name, by the compute capability of the card."""

import json
from typing import Any

import pytest

from nullgpu import GpuWorkplace

LACKS = "Null GPU (compute capability 7.5) does not have"


def dtype_findings(workplace: GpuWorkplace) -> list[dict[str, Any]]:
    """What the doctor says of model.dtype; of vectors that are noise it has more to say."""
    ended = workplace.call("doctor", str(workplace.config_path), "--json")
    return [each for each in json.loads(ended.stdout)["findings"] if each["check"] == "dtype"]


@pytest.mark.parametrize("capability", ["7.5", "8.0", "9.0"])
def test_bfloat16_is_a_warning_where_the_card_lacks_it(gpu_workplace: GpuWorkplace, capability: str) -> None:
    """Doctor, plan and run say so, and which dtype to take."""
    gpu_workplace.gpu.set(capability=capability)
    gpu_workplace.write_texts(4, words=500)
    lacks = capability == "7.5"
    taken = []
    for dtype in ("float16", "bfloat16"):
        gpu_workplace.write_model_config(model__dtype=dtype)
        planned = gpu_workplace.call("plan", str(gpu_workplace.config_path), "--json")
        assert planned.returncode == 0, planned.stderr
        plan = json.loads(planned.stdout)
        taken.append(plan["outputs"]["out"]["activation_bytes"])
        assert any(LACKS in note for note in plan["notes"]) is (lacks and dtype == "bfloat16"), plan["notes"]
    assert (taken[1] > 2 * taken[0]) if lacks else (taken[1] == taken[0]), taken
    (found,) = dtype_findings(gpu_workplace)
    assert found["state"] == ("warning" if lacks else "ok"), found
    assert (LACKS in found["meaning"]) is lacks, found
    assert ("set model.dtype to float16" in found["mend"]) is lacks, found
    ended = gpu_workplace.run()
    # From 9.0 on torch asks the real cuDNN for attention in half precision, which finds no GPU.
    assert ended.returncode == (69 if capability == "9.0" else 0), ended.stderr
    assert (LACKS in ended.stderr) is lacks, ended.stderr
    assert ("set model.dtype to float16: the card does not have bfloat16" in ended.stderr) is lacks
