"""Job files: YAML documents of jobs, arrays and sweeps -> frozen data.

    from themis.jobs import build, check, parse, read_jobs

``read_jobs(paths)`` and ``parse(text)`` return a ``Submission`` per document; ``build`` turns it into an ``App`` for the core
and a ``Program`` for each job. docs/jobs.md lists all keys.
"""

from themis.jobs.after import decide
from themis.jobs.build import Built, build, programs_of
from themis.jobs.check import check, warnings_of
from themis.jobs.read import Reading, parse, read_jobs
from themis.jobs.spec import After, Submission, Trial, When

__all__ = [
    "After",
    "Built",
    "Reading",
    "Submission",
    "Trial",
    "When",
    "build",
    "check",
    "decide",
    "parse",
    "programs_of",
    "read_jobs",
    "warnings_of",
]
