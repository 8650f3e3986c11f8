"""How `model=tiny` was made (`scripts/train.py`): corpus, mixture, network, three stages, prompts, quality card."""
