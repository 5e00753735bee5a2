"""A run as one self-contained HTML page: no scripts, no requests, readable in light and dark."""

from spotlight.surface.report.report_page import render_report, write_report

__all__ = ["render_report", "write_report"]
