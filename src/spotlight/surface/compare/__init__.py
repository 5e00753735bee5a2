"""Setups side by side: what each took to reach the scores of a baseline, in iterations, hours and dollars."""

from spotlight.surface.compare.comparison import Comparison, compare
from spotlight.surface.compare.curve import Curve, CurvePoint, Reached, curve_of, read_curve, to_target

__all__ = ["Comparison", "Curve", "CurvePoint", "Reached", "compare", "curve_of", "read_curve", "to_target"]
