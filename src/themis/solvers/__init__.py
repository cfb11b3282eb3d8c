"""Thin wrappers around outside solvers: solve within a proven gap, or raise `NotSolved`."""

from themis.solvers.highs import Program, Solution, solve

__all__ = ["Program", "Solution", "solve"]
