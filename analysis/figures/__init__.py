"""Figures of a report: each a chart, what it shows and what follows from it, in words."""
