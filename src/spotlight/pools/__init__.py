"""Sources of nodes: the pool protocol, local processes, the spot market."""
