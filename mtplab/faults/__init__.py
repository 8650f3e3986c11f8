"""Faults: one class and one YAML each, built into an arm through the hooks of `mtplab.faults.fault.Fault`."""
