"""Backends of QSAPrepare."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.backends.embedded import Embedded

OPERATION = "QSAPrepare"

BACKENDS: Mapping[str, Embedded] = {
    "numpy": Embedded("numpy_reference", "NumPyReference", "the reference itself, rounded once"),
    "openvino-graph": Embedded(
        "openvino_graph", "OpenVINOGraph", "standard OpenVINO operations", "device", origin="composed"
    ),
    "openvino-python-op": Embedded("openvino_python_op", "OpenVINOPythonOp", "an OpenVINO custom operation in Python"),
    "openvino-cpu-op": Embedded("openvino_cpu_op", "OpenVINOCpuOp", "an OpenVINO custom operation in C++"),
    "openvino-native": Embedded("openvino_native", "OpenVINONative", "OpenVINO's own opset17.qsa_prepare", "device"),
    "transformers": Embedded(
        "transformers_model", "TransformersModel", "the published model's own code", extra="peers"
    ),
    "torch": Embedded("torch_eager", "TorchEager", "eager PyTorch", "mode", extra="peers", origin="composed"),
    "onnxruntime": Embedded(
        "onnxruntime_graph", "OnnxRuntimeGraph", "standard ONNX operators", extra="peers", origin="composed"
    ),
    "nemo-automodel": Embedded(
        "nemo_automodel",
        "NemoAutomodel",
        "NVIDIA NeMo Automodel's own indexer",
        "mode",
        extra="peers-nemo",
        origin="foreign",
    ),
    "mlx-vlm": Embedded("mlx_vlm", "MlxVlm", "mlx-vlm's own indexer", "mode", extra="peers-mlx", origin="foreign"),
    "rapid-mlx": Embedded(
        "rapid_mlx", "RapidMlx", "Rapid-MLX's own indexer", "norm", extra="peers-mlx", origin="foreign"
    ),
}
