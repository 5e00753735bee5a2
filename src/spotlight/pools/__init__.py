"""Where nodes come from: the pool protocol, local processes, the spot market."""
