"""Measurements: our engine beside transformers on the same weights and prompts. Used by tests and `scripts/bench.py`."""
