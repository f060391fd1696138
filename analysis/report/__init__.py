"""The report of one or more runs, as text or Markdown."""

from .document import Report, report, run_table

__all__ = ["Report", "report", "run_table"]
