"""Model families behind one adapter protocol."""
