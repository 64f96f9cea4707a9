"""What the ONNX Runtime backends of all operations share."""
