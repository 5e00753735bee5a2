"""A run as one self-contained HTML page: no scripts, no requests, readable in light and dark."""

from spotlight.surface.report.page import AuditVerdict, render, write_report

__all__ = ["AuditVerdict", "render", "write_report"]
