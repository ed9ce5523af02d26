"""What OpenVINO can do at most: the product that is timed has the dtype that it stands for."""

from typing import Any

import pytest

from chunkvisor_worker.openvino_rate import openvino_rate, product
from chunkvisor_worker.quietopenvino import openvino_core
from late import needs

pytestmark = [needs("openvino")]

SETTINGS = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": 1}


def kernels(products: int, *, int8: bool) -> list[str]:
    """By what the CPU computes each product, as in "brgemm_avx512_i8"; their runtimePrecision may be the weights'."""
    compiled = openvino_core().compile_model(product(products, int8=int8), "CPU", SETTINGS)
    found = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    layers = [info for info in found if info["layerType"].value in {"FullyConnected", "MatMul"}]
    return [str(info["primitiveType"].value).lower() for info in layers]


def test_products_in_int8_are_computed_in_int8() -> None:
    """All of a chain, so that no other arithmetic is timed; without int8 they are in float32."""
    if "INT8" not in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("OpenVINO has no int8 on this CPU")
    assert [kernel.rsplit("_", 1)[-1] for kernel in kernels(3, int8=True)] == ["i8"] * 3
    assert [kernel.rsplit("_", 1)[-1] for kernel in kernels(2, int8=False)] == ["f32"] * 2


@pytest.mark.parametrize("int8", [False, True])
def test_all_products_of_a_chain_count(monkeypatch: pytest.MonkeyPatch, *, int8: bool) -> None:
    """Their number is told beside the time that they take together."""
    import chunkvisor_worker.openvino_rate as rate

    told: list[int] = []
    built: list[int] = []

    def counted(products: int, *, int8: bool) -> Any:
        built.append(products)
        return product(products, int8=int8)

    def timed(compute: Any, products: int) -> float:
        compute()
        told.append(products)
        return 7.0

    monkeypatch.setattr(rate, "product", counted)
    monkeypatch.setattr(rate, "core_rate", timed)
    assert openvino_rate(openvino_core(), SETTINGS, int8=int8) == 7.0
    assert told == built
