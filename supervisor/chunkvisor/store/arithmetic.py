"""Variables of the environment that choose other arithmetic, and so give other vectors.

Pure: the caller hands in the environment.
"""

from collections.abc import Mapping

ARITHMETIC = (
    "NVIDIA_TF32_OVERRIDE",  # TF32 in every NVIDIA library (cuBLAS, "NVIDIA_TF32_OVERRIDE")
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",  # the same in torch's matrix products (ATen/Context.cpp)
    "CUBLAS_WORKSPACE_CONFIG",  # other kernels, hence other last digits (cuBLAS, "Results Reproducibility")
    "CUBLAS_EMULATE_SINGLE_PRECISION",  # float32 out of bfloat16 (cuBLAS, "Floating Point Emulation")
    "CUBLAS_EMULATION_STRATEGY",
    "ONEDNN_DEFAULT_FPMATH_MODE",  # bfloat16 for float32 on CPUs that have it (oneDNN, "Math Mode")
    "DNNL_DEFAULT_FPMATH_MODE",  # its earlier name, which still holds
)


def arithmetic_variables(inherited: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Those that workers will have, `given` by the config over the `inherited`; one that is empty is not set."""
    both = {**inherited, **given}
    return {name: both[name] for name in ARITHMETIC if both.get(name)}
