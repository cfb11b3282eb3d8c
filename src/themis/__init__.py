"""Themis: a fair scheduler for shared GPU clusters."""

__version__ = "0.1.0"
