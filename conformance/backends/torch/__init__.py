"""What the PyTorch backends of all operations share."""
