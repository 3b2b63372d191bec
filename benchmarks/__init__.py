"""Measurements against peers, side by side in one run, printed as ratios."""
