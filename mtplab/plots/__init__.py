"""Figures: one function each, tidy frame to Axes. Colour = graph strategy, marker = sync policy, everywhere."""
