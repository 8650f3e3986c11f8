"""Our engine beside transformers on the same weights and prompts: parity for the tests, speed for `scripts/bench.py`."""
