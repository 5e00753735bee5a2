"""The collaborators of the loop: rollouts, training, exploration, evaluation, checkpoints, and the hub they share."""
