"""Backends of SparseAttentionPipeline: chains of those that serve all its stages, and the published model's layer."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.backends.embedded import Embedded

OPERATION = "SparseAttentionPipeline"

BACKENDS: Mapping[str, Embedded] = {
    "numpy": Embedded("chains", "numpy", "the three references, one after the other"),
    "openvino-graph": Embedded(
        "chains", "openvino_graph", "three graphs of standard OpenVINO operations", "device", origin="composed"
    ),
    "openvino-python-op": Embedded("chains", "openvino_python_op", "three OpenVINO custom operations in Python"),
    "openvino-cpu-op": Embedded("chains", "openvino_cpu_op", "three OpenVINO custom operations in C++"),
    "openvino-native": Embedded("chains", "openvino_native", "OpenVINO's own operations", "device"),
    "transformers": Embedded(
        "transformers_model",
        "TransformersModel",
        "the published model's own attention layer",
        "mode",
        extra="peers",
        readings={"ties": "free"},  # it takes what torch.topk gives
    ),
    "torch": Embedded("chains", "torch", "eager PyTorch, three operations", extra="peers", origin="composed"),
    "onnxruntime": Embedded(
        "chains", "onnxruntime", "three graphs of standard ONNX operators", extra="peers", origin="composed"
    ),
    "nemo-automodel": Embedded(
        "chains",
        "nemo_automodel",
        "NeMo Automodel's own indexer, selection and attention",
        extra="peers-nemo",
        origin="foreign",
        readings={"ties": "free"},  # it takes what torch.topk gives
    ),
    "mlx-vlm": Embedded(
        "chains",
        "mlx_vlm",
        "mlx-vlm's own indexer, selection and attention",
        extra="peers-mlx",
        origin="foreign",
        readings={"ties": "free"},  # it takes what mlx.core.argpartition gives
    ),
    "rapid-mlx": Embedded(
        "chains",
        "rapid_mlx",
        "Rapid-MLX's own indexer, selection and attention",
        extra="peers-mlx",
        origin="foreign",
        readings={"ties": "free"},  # it takes what mlx.core.argpartition gives
    ),
}
