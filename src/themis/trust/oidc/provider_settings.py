"""The provider that people sign in with, and how its users become users of the service."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

SCOPES = ("openid", "profile", "email")
SESSION_S = 12 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """``oidc`` of the settings.

    Attributes
    ----------
    issuer : the provider's address, exactly as its tokens name it.
    client_id, client_secret : of the service, at the provider; the secret is empty for a public client.
    users : claim that names the user; empty: ``preferred_username``, and if there is none ``email``.
    domain : names of the form ``NAME@domain`` become ``NAME``; empty: a name with ``@`` is refused.
    groups : claim that lists the user's groups. ``admins`` : groups whose members are administrators.
    allow : groups whose members may sign in; empty: every user of the provider.
    url : ``https://HOST:PORT`` of the console as browsers reach it; empty: as the browser asked for it.
    scopes : asked of the provider. ``session_s`` : seconds that a sign-in is valid.
    """

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    users: str = ""
    domain: str = ""
    groups: str = "groups"
    admins: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    url: str = ""
    scopes: tuple[str, ...] = SCOPES
    session_s: float = SESSION_S


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
