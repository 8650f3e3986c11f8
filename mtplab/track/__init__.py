"""Experiment tracking (`track=`). The run directory is the truth; a tracker mirrors it and never fails a run."""
