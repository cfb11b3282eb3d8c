"""The provider that people sign in with, and how its users become users of the service."""

from __future__ import annotations

import ipaddress
from dataclasses import MISSING, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from themis import sizes
from themis.setting import DURATION, TEXT, Kind, listed, setting, text
from themis.sizes import Seconds, Unreadable

SCOPES = ("openid", "profile", "email")
LEAST_S, MOST_S = 60.0, 30 * 86400.0
"""Minimum and maximum of ``session``, in seconds."""


def _issuer(value: Any) -> str:
    if not is_safe(text(value)):
        raise Unreadable("an address as https://sso.example.org/realms/lab, without a query")
    return text(value)


def _url(value: Any) -> str:
    """The address of the console, without a path."""
    found = _issuer(value).rstrip("/")
    if urlsplit(found).path:
        raise Unreadable("an address as https://gpu.example.org:7433, without a path")
    return found


def _scope(value: Any) -> str:
    if not text(value).isascii() or not value.isprintable() or any(c in value for c in ' "\\'):
        raise Unreadable("a scope, such as groups")
    return text(value)


def _domain(value: Any) -> str:
    if "@" in text(value) or " " in value:
        raise Unreadable("a domain, such as example.org")
    return text(value)


def _session(value: Any) -> Seconds:
    seconds = sizes.duration(value)
    if not LEAST_S <= seconds <= MOST_S:
        raise Unreadable("a duration from 1m to 30d, such as 12h")
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """``oidc`` of the settings."""

    issuer: str = setting(
        MISSING,
        Kind(read=_issuer),
        "address of the provider, exactly as its tokens name it: `https://sso.example.org/realms/lab`",
    )
    client_id: str = setting(MISSING, TEXT, "id of this service at the provider")
    client_secret: str = setting(
        "", TEXT, "secret of this service at the provider", shown="a public client", secret=True
    )
    users: str = setting("", TEXT, "claim that names the user", shown="`preferred_username`, else `email`")
    domain: str = setting(
        "",
        Kind(read=_domain),
        "names `ann@DOMAIN` become `ann`, all others are refused",
        shown="names with @ are refused",
    )
    groups: str = setting("groups", TEXT, "claim that lists the user's groups")
    admins: tuple[str, ...] = setting((), listed(TEXT), "groups of the provider whose members are administrators")
    allow: tuple[str, ...] = setting(
        (), listed(TEXT), "groups of the provider whose members may sign in", shown="everyone"
    )
    url: str = setting(
        "",
        Kind(read=_url),
        "address of the console for browsers: `https://gpu.example.org:7433`",
        shown="as the browser asks",
    )
    scopes: tuple[str, ...] = setting(
        SCOPES,
        listed(Kind(read=_scope)),
        "scopes to ask for, besides `openid`; `offline_access` lets command lines renew their sign-in",
    )
    session_s: Seconds = setting(
        12 * 3600.0, replace(DURATION, read=_session), "how long a sign-in is valid, 1m to 30d"
    )

    @property
    def scope(self) -> str:
        """The parameter of requests."""
        return " ".join(dict.fromkeys(("openid", *self.scopes)))


def is_safe(url: str) -> bool:
    """Whether an address is ``https://``, or ``http://`` of this machine's loopback, without user, query and fragment."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    plain = (
        not (parts.username or parts.password or parts.query or parts.fragment) and "#" not in url and "?" not in url
    )
    return bool(host) and plain and (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
