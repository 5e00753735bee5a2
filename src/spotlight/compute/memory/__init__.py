"""What fits: bytes of a training rank, a rollout worker and the text encoder, before anything is loaded; no torch."""
