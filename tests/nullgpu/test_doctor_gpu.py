"""The doctor on machines whose GPU is there, and whose driver is in trouble."""

import json

import pytest

from nullgpu import GpuWorkplace


@pytest.mark.parametrize(
    ("fault", "state", "exit_code", "words"),
    [
        pytest.param("", "warning", 0, "CUDA may work all the same", id="nvml-is-broken"),
        pytest.param("719@context", "fault", 69, "unspecified launch failure", id="no-context"),
    ],
)
def test_the_doctor_says_what_a_run_would_meet(
    gpu_workplace: GpuWorkplace, fault: str, state: str, exit_code: int, words: str
) -> None:
    """NVML alone is worth a warning; where no context can be made, its fault is one, in torch's words."""
    if fault:
        gpu_workplace.gpu.fault(*fault.split("@"))
    else:
        gpu_workplace.gpu.nvml(init=999)
    gpu_workplace.write_texts(4)
    gpu_workplace.write_torch_config(device="cuda:0")
    ended = gpu_workplace.call("doctor", str(gpu_workplace.config_path), "--json")
    findings = json.loads(ended.stdout)["findings"]
    assert ended.returncode == exit_code, findings
    assert any(words in each["meaning"] for each in findings if each["state"] == state), findings
