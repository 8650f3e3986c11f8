"""Names and records of `summary.json` (schema 1). A change of any field raises `SCHEMA`."""

from __future__ import annotations

SCHEMA = 1
VERDICTS = ("healthy", "collapsed", "corrupted", "suspicious_high", "inconclusive")
