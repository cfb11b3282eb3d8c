"""Settings of sign-in with an OIDC provider as people write them, and the sign-ins of a service that has one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import Field

from themis import sizes
from themis.jobs import readers
from themis.jobs.file_errors import Written, reads
from themis.trust.oidc.provider_settings import SCOPES, SESSION_S, OidcSettings, is_safe

if TYPE_CHECKING:
    from themis.service.api.access import Access
    from themis.service.api.oidc import Oidc
    from themis.service.engine.arbiter import Arbiter

LEAST_S, MOST_S = 60.0, 30 * 86400.0
"""Minimum and maximum of ``session``, in seconds."""


def _issuer(value: object) -> str:
    """The address of a provider."""
    text = readers.text(value)
    if not is_safe(text):
        raise sizes.Unreadable("an address as https://sso.example.org/realms/lab, without a query")
    return text


def _url(value: object) -> str:
    """The address of the console, without a path."""
    text = _issuer(value).rstrip("/")
    if urlsplit(text).path:
        raise sizes.Unreadable("an address as https://gpu.example.org:7434, without a path")
    return text


def _scope(value: object) -> str:
    text = readers.text(value)
    if not text.isascii() or not text.isprintable() or any(c in text for c in ' "\\'):
        raise sizes.Unreadable("a scope, such as groups")
    return text


def _domain(value: object) -> str:
    text = readers.text(value)
    if "@" in text or " " in text:
        raise sizes.Unreadable("a domain, such as example.org")
    return text


def _session(value: object) -> float:
    seconds = sizes.duration(value)
    if not LEAST_S <= seconds <= MOST_S:
        raise sizes.Unreadable("a duration from 1m to 30d, such as 12h")
    return seconds


Text = Annotated[str, reads(readers.text)]


class OidcText(Written):
    """``oidc``."""

    issuer: Annotated[str, reads(_issuer)] = Field(
        description="address of the provider, exactly as its tokens name it: `https://sso.example.org/realms/lab`"
    )
    client_id: Text = Field(description="id of this service at the provider")
    client_secret: Text = Field(default="", description="secret of this service at the provider (a public client)")
    users: Text = Field(default="", description="claim that names the user (`preferred_username`, else `email`)")
    domain: Annotated[str, reads(_domain)] = Field(
        default="", description="names `ann@DOMAIN` become `ann`, all others are refused (names with @ are refused)"
    )
    groups: Text = Field(default="groups", description="claim that lists the user's groups (groups)")
    admins: list[Text] = Field(default=[], description="groups of the provider whose members are administrators (none)")
    allow: list[Text] = Field(default=[], description="groups of the provider whose members may sign in (everyone)")
    url: Annotated[str, reads(_url)] = Field(
        default="",
        description="address of the console for browsers: `https://gpu.example.org:7434` (as the browser asks)",
    )
    scopes: list[Annotated[str, reads(_scope)]] = Field(
        default=list(SCOPES),
        description="scopes to ask for; `offline_access` lets command lines renew their sign-in "
        "([openid, profile, email])",
    )
    session: Annotated[float, reads(_session)] = Field(
        default=SESSION_S, description="how long a sign-in is valid, 1m to 30d (12h)"
    )

    def read(self) -> OidcSettings:
        """Convert to the value that the service takes."""
        return OidcSettings(
            issuer=self.issuer,
            client_id=self.client_id,
            client_secret=self.client_secret,
            users=self.users,
            domain=self.domain,
            groups=self.groups,
            admins=tuple(self.admins),
            allow=tuple(self.allow),
            url=self.url,
            scopes=tuple(dict.fromkeys(("openid", *self.scopes))),
            session_s=self.session,
        )


def sign_ins(home: Path, settings: OidcSettings | None, access: Access, arbiter: Arbiter) -> Oidc | None:
    """Sign-ins of a service, which has not begun to ask its provider; None where it has none.

    Raises
    ------
    InputError : their file cannot be read.
    """
    if settings is None:
        return None
    from themis.service.api.audit import Audit
    from themis.service.api.oidc import Oidc, place
    from themis.service.api.sign_ins import SignIns
    from themis.trust.oidc.provider import Provider

    found = SignIns(home, settings.issuer, settings.session_s)
    access.signed_in = found
    provider = Provider(settings)
    audit = Audit(home, lambda: arbiter.config.audit_keep_s)
    return Oidc(provider, found, access.owner.user, audit, lambda who: place(arbiter, found, who))
