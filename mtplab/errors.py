"""Errors a user can cause. Everything else is a bug and keeps its traceback."""

from __future__ import annotations


class ConfigError(ValueError):
    """One line that names the configuration key, what is wrong with it and what to do."""

    def __init__(self, key: str, problem: str, remedy: str) -> None:
        super().__init__(" ".join(f"{key}: {problem}; {remedy}".split()))
        self.key = key
        self.problem = problem
        self.remedy = remedy
