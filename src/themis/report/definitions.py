"""Definition of every number by name, as JSON and the page's list have it: gathered from where each number is declared.

``numbers.Numbers`` has those of a run, ``rho.RhoStats`` the statistics of finish-time fairness, ``rows.AppRow`` those of an app,
``users.UserRow`` those of a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from themis.report.columns import definitions_of
from themis.report.numbers import FORMS, METRICS
from themis.report.rho import STATISTICS
from themis.report.rows import AppRow, JobTable
from themis.report.users import UserRow

RHO_DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        **{form.name: form.definition for form in FORMS},
        **definitions_of(JobTable),
        **{f"rho_{statistic.name}": statistic.definition for statistic in STATISTICS},
    }
)
DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        **RHO_DEFINITIONS,
        **{metric.name: metric.definition for metric in METRICS},
        **{f"app_{name}": text for name, text in definitions_of(AppRow).items()},
        **{f"user_{name}": text for name, text in definitions_of(UserRow).items()},
    }
)
"""Definition by name; what is about one app begins with ``app_``, about one user with ``user_``."""
