"""Preemption notices: watchers of the clouds' metadata services, of SIGTERM and of a file. Free of torch."""
