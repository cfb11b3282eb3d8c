"""Moved to ``themis.profiles.gavel_table``; kept for what imports it from here."""

from themis.profiles.gavel_table import profiles_from_gavel, read_throughputs, split_job_type

__all__ = ["profiles_from_gavel", "read_throughputs", "split_job_type"]
