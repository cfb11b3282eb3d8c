"""Time shares of jobs on GPU types: the highest common level, water filling, pairs of jobs; each with a proven gap."""
