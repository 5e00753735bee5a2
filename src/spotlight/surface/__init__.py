"""User interface: command line, panel, reports, comparisons."""
