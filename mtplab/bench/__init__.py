"""Our engine beside transformers on the same weights and prompts: parity for tests, speed for `scripts/bench.py`."""
