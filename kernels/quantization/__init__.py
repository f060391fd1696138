"""Fewer bits per element: quantize, dequantize, prune."""
