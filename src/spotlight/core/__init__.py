"""Types, identity and errors that every other package shares; imports neither torch nor ray."""
