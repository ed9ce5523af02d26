"""How many operations a core does in a second by OpenVINO, in the dtype that a network is computed in."""

from typing import Any

import numpy as np

from chunkvisor_worker.flop import CPU_SIZE, core_rate
from chunkvisor_worker.quietopenvino import import_openvino

_INT8_PRODUCTS = 3
"""One behind the other: so that turning the first's numbers into int8 is a small part of the time."""
_LEVELS, _LOW, _HIGH = 256, 0.0, 2.0
"""Of what flows into a product: as many steps as a byte has."""
_WEIGHT, _SCALE = 64, 1 / 127
"""In int8 and what one of it stands for, as NNCF has weights."""


def openvino_rate(core: Any, settings: dict[str, Any], *, int8: bool) -> float:
    """Operations a second of one core, by a network compiled with `settings`. Raises RuntimeError of OpenVINO.

    In int8 the products have it, as a quantised network's have, and the settings do not matter to that.
    """
    products = _INT8_PRODUCTS if int8 else 1
    compiled = core.compile_model(product(products, int8=int8), "CPU", settings | {"INFERENCE_NUM_THREADS": 1})
    request, given = compiled.create_infer_request(), _square(np.float32, 0.5)
    return core_rate(lambda: request.infer([given], share_inputs=True, share_outputs=True), products)


def product(products: int, *, int8: bool) -> Any:
    """A network of so many products of square matrices, one behind the other; takes and gives float32."""
    openvino = import_openvino()
    ops = openvino.opset13
    flowing = given = ops.parameter((CPU_SIZE, CPU_SIZE), np.float32)
    for _ in range(products):
        if int8:
            ends = [ops.constant(np.float32(end)) for end in (_LOW, _HIGH)]
            flowing = ops.fake_quantize(flowing, *ends, *ends, _LEVELS)
            steps = ops.convert(ops.constant(_square(np.int8, _WEIGHT)), np.float32)
            weights = ops.multiply(steps, ops.constant(np.full((CPU_SIZE, 1), _SCALE, dtype=np.float32)))
        else:
            weights = ops.constant(_square(np.float32, 0.5))
        flowing = ops.matmul(flowing, weights, False, True)
    return openvino.Model([flowing], [given])


def _square(dtype: Any, value: float) -> Any:
    return np.full((CPU_SIZE, CPU_SIZE), value, dtype=dtype)
