"""Backends of SparseAttentionIndexer."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.backends.embedded import Embedded

OPERATION = "SparseAttentionIndexer"

BACKENDS: Mapping[str, Embedded] = {
    "numpy": Embedded("numpy_reference", "NumPyReference", "the reference itself"),
    "openvino-graph": Embedded(
        "openvino_graph", "OpenVINOGraph", "standard OpenVINO operations", "device", origin="composed"
    ),
    "openvino-python-op": Embedded("openvino_python_op", "OpenVINOPythonOp", "an OpenVINO custom operation in Python"),
    "openvino-cpu-op": Embedded("openvino_cpu_op", "OpenVINOCpuOp", "an OpenVINO custom operation in C++"),
    "openvino-native": Embedded("openvino_native", "OpenVINONative", "OpenVINO's own operation", "device"),
    "transformers": Embedded(
        "transformers_model",
        "TransformersModel",
        "the published model's own selection",
        extra="peers",
        readings={"ties": "free"},  # it takes what torch.topk gives
    ),
    "torch": Embedded("torch_eager", "TorchEager", "eager PyTorch", "mode", extra="peers", origin="composed"),
    "onnxruntime": Embedded(
        "onnxruntime_graph", "OnnxRuntimeGraph", "standard ONNX operators", extra="peers", origin="composed"
    ),
    "nemo-automodel": Embedded(
        "nemo_automodel",
        "NemoAutomodel",
        "NeMo Automodel's own selection",
        extra="peers-nemo",
        origin="foreign",
        readings={"ties": "free"},  # it takes what torch.topk gives
    ),
    "mlx-vlm": Embedded(
        "mlx_vlm",
        "MlxVlm",
        "mlx-vlm's own selection",
        extra="peers-mlx",
        origin="foreign",
        readings={"ties": "free"},  # it takes what mlx.core.argpartition gives
    ),
    "rapid-mlx": Embedded(
        "rapid_mlx",
        "RapidMlx",
        "Rapid-MLX's own selection",
        extra="peers-mlx",
        origin="foreign",
        readings={"ties": "free"},  # it takes what mlx.core.argpartition gives
    ),
}
