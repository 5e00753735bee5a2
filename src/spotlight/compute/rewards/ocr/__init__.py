"""Text-rendering rewards: compare the text that a recogniser reads in an image with the prompt's target text."""
