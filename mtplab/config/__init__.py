"""Composition, types and rules of the configuration."""
