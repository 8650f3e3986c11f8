"""Rebuild the shipped model: `python scripts/train.py` (see --help)."""

import sys

from mtplab.training.command import main

if __name__ == "__main__":
    sys.exit(main())
