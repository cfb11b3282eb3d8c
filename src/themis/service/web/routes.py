"""All pages of the console; a page is a module with its own ``ROUTES``."""

from __future__ import annotations

from themis.service.web import admin, app, fairness_page, now, people, what_if_page
from themis.service.web.console import Route

ROUTES: tuple[Route, ...] = (
    *now.ROUTES,
    *app.ROUTES,
    *people.ROUTES,
    *fairness_page.ROUTES,
    *what_if_page.ROUTES,
    *admin.ROUTES,
)
"""In the order of the navigation."""
