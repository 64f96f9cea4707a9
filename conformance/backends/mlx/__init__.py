"""What adapters of MLX code share."""
