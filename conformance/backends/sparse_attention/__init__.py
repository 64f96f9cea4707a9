"""Backends of SparseAttention."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.backends.embedded import Embedded

OPERATION = "SparseAttention"

BACKENDS: Mapping[str, Embedded] = {
    "numpy": Embedded("numpy_reference", "NumPyReference", "the reference itself, rounded once"),
    "openvino-graph": Embedded(
        "openvino_graph", "OpenVINOGraph", "standard OpenVINO operations", "device", origin="composed"
    ),
    "openvino-python-op": Embedded("openvino_python_op", "OpenVINOPythonOp", "an OpenVINO custom operation in Python"),
    "openvino-cpu-op": Embedded("openvino_cpu_op", "OpenVINOCpuOp", "an OpenVINO custom operation in C++"),
    "openvino-native": Embedded("openvino_native", "OpenVINONative", "OpenVINO's own operation", "device"),
    "transformers": Embedded(
        "transformers_model", "TransformersModel", "the published model's own attention", "mode", extra="peers"
    ),
    "torch": Embedded("torch_eager", "TorchEager", "eager PyTorch", extra="peers", origin="composed"),
    "onnxruntime": Embedded(
        "onnxruntime_graph", "OnnxRuntimeGraph", "standard ONNX operators", extra="peers", origin="composed"
    ),
    "nemo-automodel": Embedded(
        "nemo_automodel",
        "NemoAutomodel",
        "NeMo Automodel's own attention",
        extra="peers-nemo",
        origin="foreign",
    ),
    "mlx-vlm": Embedded(
        "mlx_vlm",
        "MlxVlm",
        "mlx-vlm's own attention",
        extra="peers-mlx",
        origin="foreign",
        readings={"empty": "unspecified"},  # its own selection leaves no query token without a block
    ),
    "rapid-mlx": Embedded(
        "rapid_mlx",
        "RapidMlx",
        "Rapid-MLX's own attention",
        extra="peers-mlx",
        origin="foreign",
        readings={"empty": "unspecified"},  # its own selection leaves no query token without a block
    ),
}
