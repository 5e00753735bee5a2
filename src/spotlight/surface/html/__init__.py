"""HTML of a run: one Jinja2 template per panel, with autoescape, for the report and the live page."""
