"""Where prompts come from (`workload=`)."""
