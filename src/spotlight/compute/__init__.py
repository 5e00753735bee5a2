"""Everything that touches tensors: models, rollout, training, weights, rewards, prompt data."""
