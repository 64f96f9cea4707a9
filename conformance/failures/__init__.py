"""What becomes of a failure: explained, shrunk, reproduced, promoted."""
