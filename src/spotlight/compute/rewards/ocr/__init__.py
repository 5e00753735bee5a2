"""Text-rendering rewards: what a recogniser reads in an image, compared with the word the prompt asks for."""
