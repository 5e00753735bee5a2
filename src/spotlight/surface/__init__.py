"""What people touch: command line, reports."""
