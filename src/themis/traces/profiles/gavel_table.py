"""Gavel's table of measured speeds, and the profiles that it makes (OSDI'20; also Shockwave's, NSDI'23).

    {"v100": {"('ResNet-18 (batch size 64)', 1)": {"null": steps per second alone, other job: [mine, other's]}}}

Types named ``*_unconsolidated`` hold the same jobs with their GPUs on different machines. Of co-location, pairs of
single-GPU jobs that both make progress are kept.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path

from themis.errors import InputError
from themis.model.speed import Profile
from themis.traces.profiles.throughputs import Throughputs, profiles_of

_APART = "_unconsolidated"
_JOB_TYPE = re.compile(r"(.+?) \(batch size (\d+)\)")


def split_job_type(job_type: str) -> tuple[str, int]:
    """Model and batch size: ``ResNet-18 (batch size 64)`` is (ResNet-18, 64), ``A3C`` is (A3C, 0)."""
    match = _JOB_TYPE.fullmatch(job_type)
    return (match[1], int(match[2])) if match else (job_type, 0)


def read_throughputs(path: Path) -> Throughputs:
    """Read the table.

    Raises
    ------
    InputError : the file cannot be read, or is no such table.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        rates = {kind: _rates(jobs) for kind, jobs in table.items()}
        beside = {kind.upper(): _beside(jobs) for kind, jobs in table.items() if not kind.endswith(_APART)}
        barred = {kind.upper(): _barred(jobs) for kind, jobs in table.items() if not kind.endswith(_APART)}
    except OSError as error:
        raise InputError(f"cannot read throughputs {str(path)!r}: {error.strerror}.") from None
    except (ValueError, TypeError, AttributeError, KeyError, SyntaxError) as error:
        raise InputError(
            f"{path} is no table of throughputs ({type(error).__name__}: {error}); expected Gavel's JSON: "
            """{"v100": {"('ResNet-18 (batch size 64)', 1)": {"null": 4.8}}}."""
        ) from None
    return Throughputs(
        together={kind.upper(): jobs for kind, jobs in rates.items() if not kind.endswith(_APART)},
        apart={kind.removesuffix(_APART).upper(): jobs for kind, jobs in rates.items() if kind.endswith(_APART)},
        beside=beside,
        barred={kind: jobs for kind, jobs in barred.items() if jobs},
    )


def profiles_from_gavel(path: Path) -> tuple[Profile, ...]:
    """Profiles of the table's models, one curve for each GPU type in capitals and batch size.

    ``DEFAULT_BOOK.with_profiles(profiles_from_gavel(path))`` is the book to read and to simulate Gavel's and
    Shockwave's traces with; it replaces Table 4's ``Transformer``, so keep it to those traces.

    Raises
    ------
    InputError : the file cannot be read, or is no such table.
    """
    return profiles_of(read_throughputs(path), f"Gavel's table {path.name}")


def _rates(jobs: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, int, int], float]:
    rates = {}
    for key, row in jobs.items():
        job_type, gpus = ast.literal_eval(key)
        rate = float(row["null"])
        if rate > 0:  # 0: the job did not fit into memory
            rates[(*split_job_type(job_type), int(gpus))] = rate
    return rates


def _barred(jobs: Mapping[str, Mapping[str, float]]) -> frozenset[tuple[str, int, int]]:
    keys = (ast.literal_eval(key) for key, row in jobs.items() if float(row["null"]) == 0)
    return frozenset((*split_job_type(job_type), int(gpus)) for job_type, gpus in keys)


def _beside(jobs: Mapping[str, Mapping[str, object]]) -> dict[tuple[str, int, str, int], float]:
    rates: dict[tuple[str, int, str, int], float] = {}
    for key, row in jobs.items():
        job_type, gpus = ast.literal_eval(key)
        for other, pair in row.items():
            if gpus != 1 or other == "null":
                continue
            partner, size = ast.literal_eval(other)
            mine, theirs = (float(rate) for rate in pair)  # type: ignore[attr-defined]
            if size == 1 and mine > 0 and theirs > 0:
                rates[(*split_job_type(job_type), *split_job_type(partner))] = mine
    return rates
