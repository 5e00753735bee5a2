"""The live page: a server that reads journals and pushes what changed. `spotlight dashboard` starts it."""
