"""Counts in, ratios out: statistics, verdict, identity gate and the files of a run directory."""
