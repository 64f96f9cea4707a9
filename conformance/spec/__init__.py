"""What an operation and a case are: data, expressions, tensors and geometry."""
