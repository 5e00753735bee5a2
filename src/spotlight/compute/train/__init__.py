"""From scored samples to new weights: weight sets, losses, the trainer."""
