"""The sign-ins of a service that has an OIDC provider."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from themis.trust.oidc.provider_settings import OidcSettings

if TYPE_CHECKING:
    from themis.service.api.access import Access
    from themis.service.api.oidc import Oidc
    from themis.service.engine.arbiter import Arbiter


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
