"""GenEval: object-focused scoring of pictures by a detector and a fixed protocol."""
