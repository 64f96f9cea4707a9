"""Chains of the bundled backends that serve all stages, by their names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from conformance.backends.chain import Chain
from conformance.backends.connect import connect
from conformance.backends.refusals import operation_called
from conformance.backends.sparse_attention_pipeline import OPERATION


def chain(name: str, device: str = "") -> Chain:
    """The chain of the adapters of one name; `device` is what stands after the colon of a connect string."""
    text = f"{name}:{device}" if device else name
    stages = operation_called(OPERATION).stages
    return Chain(OPERATION, {stage.operation: connect(text, operation=stage.operation) for stage in stages})


Factory = Callable[..., Chain]
numpy: Factory = partial(chain, "numpy")
openvino_graph: Factory = partial(chain, "openvino-graph")
openvino_python_op: Factory = partial(chain, "openvino-python-op")
openvino_cpu_op: Factory = partial(chain, "openvino-cpu-op")
openvino_native: Factory = partial(chain, "openvino-native")
torch: Factory = partial(chain, "torch")
onnxruntime: Factory = partial(chain, "onnxruntime")
mlx_vlm: Factory = partial(chain, "mlx-vlm")
nemo_automodel: Factory = partial(chain, "nemo-automodel")
rapid_mlx: Factory = partial(chain, "rapid-mlx")
