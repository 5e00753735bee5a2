"""Files of Spotlight that are large and change seldom; `spotlight.assets.asset` gives their paths."""

__version__ = "1.0.0"
