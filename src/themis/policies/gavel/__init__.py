"""Gavel's policies (OSDI'20) as array problems: rates in, time shares with a proven gap out.

``problem`` is the input and the output, ``level`` the engine that most policies share, and there is one file for each
objective. Nothing here knows the scheduler's state; ``themis.policies`` turns snapshots into problems.
"""
