"""Capture and replay: the `Graph` contract, its CPU and CUDA implementations, and the strategies built on them."""
