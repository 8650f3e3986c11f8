"""Reproduce an acceptance collapse: `python scripts/run.py graph=full spec=mtp sparse=hisparse` (see --help)."""

import sys

from mtplab.cli import main

if __name__ == "__main__":
    sys.exit(main())
