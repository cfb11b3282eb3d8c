"""Jobs and sweeps as people write them: YAML at the edge, frozen data inside.

    from themis.jobs import build, check, parse, read_jobs

``read_jobs(paths)`` or ``parse(text)`` give a ``Submission`` for each document; ``build`` makes of one an ``App`` for the
core and a ``Program`` for each of its jobs. docs/jobs.md has every key.
"""

from themis.jobs.after import decide
from themis.jobs.build import Built, build, programs_of
from themis.jobs.check import check, warnings_of
from themis.jobs.read import Reading, parse, read_jobs
from themis.jobs.spec import After, Submission, Trial, When

__all__ = [
    "After", "Built", "Reading", "Submission", "Trial", "When", "build", "check", "decide", "parse", "programs_of", "read_jobs",
    "warnings_of",
]  # fmt: skip
