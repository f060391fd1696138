"""The report of one or more runs, as text or Markdown."""

from .document import Report, form_of, report, run_table

__all__ = ["Report", "form_of", "report", "run_table"]
