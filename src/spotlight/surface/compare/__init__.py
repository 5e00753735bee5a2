"""Setups side by side: iterations, hours and dollars to the scores of a baseline."""

from spotlight.surface.compare.comparison import Comparison, compare
from spotlight.surface.compare.curve import Curve, CurvePoint, Reached, curve_of, read_curve, to_target

__all__ = ["Comparison", "Curve", "CurvePoint", "Reached", "compare", "curve_of", "read_curve", "to_target"]
