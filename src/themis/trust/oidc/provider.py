"""The provider: its description and keys, kept for a while, and the flows: code with PKCE, device (RFC 8628), refresh."""

from __future__ import annotations

import base64
import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from themis.trust.oidc.asking import ProviderDown, ask
from themis.trust.oidc.provider_settings import OidcSettings, is_safe
from themis.trust.oidc.tokens import SignInRefused, claims_of

if TYPE_CHECKING:
    from joserfc.jwk import Key

DESCRIPTION = "/.well-known/openid-configuration"
KEPT_S = 3600.0
"""Seconds that description and keys are kept."""
AGAIN_S = 5.0
"""Minimum seconds between two requests for description or keys: failures and unknown keys cause no flood."""
LEAST_INTERVAL_S, MOST_INTERVAL_S = 1.0, 60.0
"""Seconds between two polls of a device sign-in that are taken over from the provider."""
MOST_DEVICE_S = 1800.0
"""Seconds that a device sign-in is waited for, at most."""
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """Valid claims of a user who signed in, and the provider's refresh token, or empty."""

    claims: Mapping[str, Any]
    refresh: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device sign-in that has begun: where the user enters which code. Times in seconds."""

    device_code: str
    code: str
    url: str
    whole_url: str
    interval_s: float
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """The user has not agreed yet. ``slower`` : the provider asks for fewer polls."""

    slower: bool


class Provider:
    """One provider; for any thread. ``clock`` : seconds since 1970."""

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.time) -> None:
        self.settings, self.clock = settings, clock
        self._lock = threading.Lock()
        self._description: dict[str, Any] = {}
        self._described = self._keyed = self._tried = -math.inf
        self._keys: list[Key] = []
        self._failure = ""

    # ---- the provider's description
    # ------------------------------------------------------------------------------------

    def description(self) -> Mapping[str, Any]:
        """Endpoints of the provider.

        Raises
        ------
        ProviderDown : it does not answer, or describes another issuer.
        """
        with self._lock:
            now = time.monotonic()
            if self._description and now - self._described < KEPT_S:
                return self._description
            if self._failure and now - self._tried < AGAIN_S:
                raise ProviderDown(self._failure)
            self._tried = now
            try:
                self._description = self._described_now()
                self._described, self._failure = now, ""
            except ProviderDown as error:
                if not self._description:
                    self._failure = str(error)
                    raise
                self._described = now - KEPT_S + AGAIN_S  # the one from before serves until the next try
            return self._description

    def _described_now(self) -> dict[str, Any]:
        issuer = self.settings.issuer
        status, found = ask(issuer.rstrip("/") + DESCRIPTION)
        if status != 200 or found.get("issuer") != issuer:
            raise ProviderDown(
                f"{issuer}{DESCRIPTION} answers with status {status} and the issuer {str(found.get('issuer'))[:200]!r}, expected "
                f"{issuer!r}; correct oidc.issuer."
            )
        return found

    def endpoint(self, name: str, what: str) -> str:
        """An address of the description, which must be encrypted unless it is on this machine.

        Raises
        ------
        ProviderDown : there is none.
        """
        url = self.description().get(name)
        if not isinstance(url, str) or not is_safe(url.partition("?")[0]):
            raise ProviderDown(f"the OIDC provider {self.settings.issuer} offers no {what} ({name}).")
        return url

    def key(self, kid: str, algorithm: str) -> Key | None:
        """The public key for a key id and an algorithm; asks again where it is not known, for providers change their keys."""
        url = self.endpoint("jwks_uri", "keys")
        with self._lock:
            now = time.monotonic()
            if now - self._keyed < KEPT_S and (found := self._fitting(kid, algorithm)):
                return found
            if now - self._keyed >= AGAIN_S:
                self._keys, self._keyed = _keys(url), now
            return self._fitting(kid, algorithm)

    def _fitting(self, kid: str, algorithm: str) -> Key | None:
        found = [key for key in self._keys if _fits(key, algorithm) and kid in ("", key.kid)]
        # Without a key id, only one key may be meant.
        return found[0] if len(found) == 1 or (found and kid) else None

    # ---- flows -------------------------------------------------------------------------------------------------------

    def address_of_sign_in(self, redirect: str, state: str, nonce: str, verifier: str) -> str:
        """Address at which a browser signs in (authorization code with PKCE)."""
        url = self.endpoint("authorization_endpoint", "sign-in for browsers")
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect,
            "scope": self.settings.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge(verifier),
            "code_challenge_method": "S256",
        }
        return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"

    def redeem(self, code: str, redirect: str, verifier: str, nonce: str) -> Signed:
        """The user who signed in, by the code that the browser brought back.

        Raises
        ------
        SignInRefused : the provider refuses, or its token is invalid. ProviderDown : it does not answer properly.
        """
        found = self._tokens(
            {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": verifier}
        )
        if isinstance(found, Waiting):
            raise SignInRefused("the provider does not accept the code; sign in again.")
        return self._signed(found, nonce=nonce)

    def begin_device(self) -> Device:
        """Begin a sign-in on another device.

        Raises
        ------
        SignInRefused, ProviderDown.
        """
        url = self.endpoint("device_authorization_endpoint", "sign-in for command lines")
        status, found = self._post(url, {"scope": self.settings.scope})
        texts = [found.get(name) for name in ("device_code", "user_code", "verification_uri")]
        if status != 200 or not all(isinstance(text, str) and 0 < len(text) < 4096 for text in texts):
            raise SignInRefused(f"the provider does not begin a sign-in: {_reason(status, found)}.")
        device, code, where = map(str, texts)
        whole = found.get("verification_uri_complete")
        addresses = [where, whole] if isinstance(whole, str) else [where]
        if not all(text.isprintable() for text in (code, *addresses)):
            raise SignInRefused("the provider's address or code for the sign-in has characters that cannot be shown.")
        return Device(
            device_code=device,
            code=code,
            url=where,
            whole_url=addresses[-1],
            interval_s=min(max(_number(found.get("interval"), 5.0), LEAST_INTERVAL_S), MOST_INTERVAL_S),
            lasts_s=min(_number(found.get("expires_in"), 600.0), MOST_DEVICE_S),
        )

    def poll_device(self, device_code: str) -> Signed | Waiting:
        """The user who signed in on the other device, or ``Waiting`` until a sign-in.

        Raises
        ------
        SignInRefused : the user refused, or the time is over. ProviderDown : the provider does not answer properly.
        """
        found = self._tokens({"grant_type": DEVICE_GRANT, "device_code": device_code})
        return found if isinstance(found, Waiting) else self._signed(found)

    def renew(self, refresh: str, subject: str) -> Signed:
        """The claims of a user as they are now; the provider refuses where the user is no longer there.

        Raises
        ------
        SignInRefused, ProviderDown.
        """
        found = self._tokens({"grant_type": "refresh_token", "refresh_token": refresh})
        if isinstance(found, Waiting):
            raise SignInRefused("the provider does not renew the sign-in; sign in again.")
        out = self._signed(found, subject=subject)
        return out if out.refresh else Signed(claims=out.claims, refresh=refresh)

    def _tokens(self, form: dict[str, str]) -> dict[str, Any] | Waiting:
        status, found = self._post(self.endpoint("token_endpoint", "tokens"), form)
        if status == 200:
            return found
        match found.get("error"):
            case "authorization_pending":
                return Waiting(False)
            case "slow_down":
                return Waiting(True)
            case "access_denied":
                raise SignInRefused("the sign-in was declined at the provider.")
            case "expired_token":
                raise SignInRefused("the code has expired; begin the sign-in again.")
        if status >= 500:
            raise ProviderDown(f"the OIDC provider {self.settings.issuer} fails with status {status}; try again later.")
        raise SignInRefused(f"the provider refuses the sign-in: {_reason(status, found)}.")

    def _post(self, url: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        settings = self.settings
        methods = self.description().get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if not settings.client_secret:
            return ask(url, {**form, "client_id": settings.client_id})
        if isinstance(methods, list) and "client_secret_basic" not in methods and "client_secret_post" in methods:
            return ask(url, {**form, "client_id": settings.client_id, "client_secret": settings.client_secret})
        return ask(url, {**form, "client_id": settings.client_id}, (settings.client_id, settings.client_secret))

    def _signed(self, found: Mapping[str, Any], *, nonce: str | None = None, subject: str | None = None) -> Signed:
        claims = claims_of(
            found.get("id_token"), self.settings, self.key, now=self.clock(), nonce=nonce, subject=subject
        )
        refresh = found.get("refresh_token")
        return Signed(claims=claims, refresh=refresh if isinstance(refresh, str) else "")


def challenge(verifier: str) -> str:
    """PKCE's challenge of a verifier (RFC 7636, S256)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _keys(url: str) -> list[Key]:
    """The provider's public keys for signatures; secret ones are no keys of a provider."""
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    status, found = ask(url)
    given = found.get("keys")
    if status != 200 or not isinstance(given, list):
        raise ProviderDown(f"the OIDC provider answers {url} with status {status} and no keys.")
    out: list[Key] = []
    for entry in given[:100]:
        if not isinstance(entry, dict) or entry.get("kty") not in ("RSA", "EC", "OKP") or entry.get("use") == "enc":
            continue
        try:
            out.append(JWKRegistry.import_key(entry))
        except (JoseError, ValueError, TypeError, KeyError):
            continue  # of a kind that is not known here
    return out


def _fits(key: Key, algorithm: str) -> bool:
    kind = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}[algorithm[:2]]
    return key.key_type == kind and key.get("alg") in (None, algorithm)


def _number(value: object, otherwise: float) -> float:
    whole = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9
    return float(value) if whole else otherwise  # type: ignore[arg-type]


def _reason(status: int, found: Mapping[str, Any]) -> str:
    words = [found[name] for name in ("error", "error_description") if isinstance(found.get(name), str)]
    text = ": ".join(words)[:300]
    return "".join(c if c.isprintable() else " " for c in text).rstrip(". ") or f"status {status}"
