"""ID tokens: validation (OpenID Connect Core 1.0, 3.1.3.7), and the user that they name.

Signatures are joserfc's. The algorithms are an allow list of asymmetric ones, so that neither ``none`` nor an HMAC with a public
key as its secret is a signature.
"""

from __future__ import annotations

import base64
import hmac
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from themis.errors import InputError
from themis.trust.oidc.provider_settings import OidcSettings

if TYPE_CHECKING:
    from joserfc.jwk import Key

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LEEWAY_S = 60.0
"""Seconds by which the clocks of provider and service may differ."""
MOST_TOKEN = 1 << 16
"""Characters of a token."""
MOST_SUBJECT = 255
"""Characters of a subject (OpenID Connect Core 1.0, 2)."""


class SignInRefused(InputError):
    """The provider's answer is not believed, or its user may not sign in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """User who signed in. ``subject`` : the provider's permanent id of the user. ``groups`` : group names of the
    provider."""

    issuer: str
    subject: str
    user: str
    groups: tuple[str, ...]
    admin: bool


def claims_of(
    token: object,
    settings: OidcSettings,
    key_of: Callable[[str, str], Key | None],
    *,
    now: float,
    nonce: str | None,
    subject: str | None = None,
) -> dict[str, Any]:
    """The claims of an ID token that is valid for this service now.

    Parameters
    ----------
    key_of : the provider's key for a key id (empty: none is named) and an algorithm.
    now : seconds since 1970. ``nonce`` : of the request; None where the flow has none. ``subject`` : expected, if known.

    Raises
    ------
    SignInRefused : it is not.
    """
    from joserfc import jwt
    from joserfc.errors import JoseError

    if not isinstance(token, str) or len(token) > MOST_TOKEN:
        raise SignInRefused("the provider's answer has no ID token; add openid to oidc.scopes.")
    header = _header(token)
    algorithm, kid = header.get("alg"), header.get("kid", "")
    if algorithm not in ALGORITHMS or not isinstance(algorithm, str):
        raise SignInRefused(
            f"the ID token is signed with {str(algorithm)[:20]!r}, expected one of {', '.join(ALGORITHMS)}."
        )
    key = key_of(kid if isinstance(kid, str) else "", algorithm)
    if key is None:
        raise SignInRefused("the ID token is signed with a key that the provider does not publish.")
    try:
        claims = jwt.decode(token, key, algorithms=[algorithm]).claims
    except (JoseError, ValueError, TypeError) as error:
        raise SignInRefused(f"the ID token's signature is not valid ({type(error).__name__}).") from None
    _check(claims, settings, now, nonce, subject)
    return claims


def _header(token: str) -> dict[str, Any]:
    first = token.partition(".")[0]
    try:
        value = json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise SignInRefused("the ID token is no signed JSON Web Token.")
    return value


def _check(
    claims: Mapping[str, Any], settings: OidcSettings, now: float, nonce: str | None, subject: str | None
) -> None:
    if claims.get("iss") != settings.issuer:
        raise SignInRefused(f"the ID token's issuer is {str(claims.get('iss'))[:200]!r}, expected {settings.issuer!r}.")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    party = claims.get("azp", settings.client_id if len(audiences) == 1 else None)
    if settings.client_id not in audiences or party != settings.client_id:
        raise SignInRefused("the ID token is for another client, not for this service.")
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    if now > expires + LEEWAY_S:
        raise SignInRefused("the ID token has expired; check the clocks of provider and service.")
    if max(issued, _time(claims, "nbf") if "nbf" in claims else issued) > now + LEEWAY_S:
        raise SignInRefused("the ID token is not valid yet; check the clocks of provider and service.")
    given = claims.get("nonce")
    if nonce is not None and not (isinstance(given, str) and hmac.compare_digest(given.encode(), nonce.encode())):
        raise SignInRefused("the ID token does not answer this sign-in (its nonce differs); sign in again.")
    own = claims.get("sub")
    if not isinstance(own, str) or not 0 < len(own) <= MOST_SUBJECT:
        raise SignInRefused("the ID token has no subject.")
    if subject is not None and own != subject:
        raise SignInRefused("the provider renewed the sign-in for another user.")


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SignInRefused(f"the ID token's {name} is {str(value)[:40]!r}, expected seconds since 1970.")
    return float(value)


def identity_of(claims: Mapping[str, Any], settings: OidcSettings, accepts: Callable[[str], object]) -> Identity:
    """The user that valid claims name. ``accepts`` : whether the service takes a name of a user.

    Raises
    ------
    SignInRefused : they name none that the service takes, or one who may not sign in.
    """
    name = _name(claims, settings)
    if settings.domain:
        name, _, domain = name.partition("@")
        if domain.lower() != settings.domain.lower():
            raise SignInRefused(f"your name at the provider is not of the domain {settings.domain}.")
    if not accepts(name):
        raise SignInRefused(
            f"your name at the provider is {name[:100]!r}, expected 1 to 64 letters, digits, dots, dashes or underscores, the "
            "first a letter or digit; an administrator chooses another claim with oidc.users, or sets oidc.domain."
        )
    groups = _groups(claims.get(settings.groups))
    if settings.allow and not set(settings.allow) & set(groups):
        raise SignInRefused(f"{name} is in none of the groups that may sign in (oidc.allow).")
    admin = bool(set(settings.admins) & set(groups))
    return Identity(issuer=settings.issuer, subject=claims["sub"], user=name, groups=groups, admin=admin)


def _name(claims: Mapping[str, Any], settings: OidcSettings) -> str:
    wanted = (settings.users,) if settings.users else ("preferred_username", "email")
    for claim in wanted:
        value = claims.get(claim)
        if not isinstance(value, str) or not value:
            continue
        if claim == "email" and claims.get("email_verified") is not True:
            raise SignInRefused("the provider has not verified your e-mail address, so it is not taken as your name.")
        return value
    raise SignInRefused(f"the ID token has no claim {' or '.join(wanted)} to take your name from (oidc.users).")


def _groups(value: object) -> tuple[str, ...]:
    found: Iterable[object] = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(group for group in found if isinstance(group, str) and group))
