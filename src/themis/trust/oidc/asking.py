"""Requests to the provider: JSON answers with limits of time and size; redirects are not followed."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.parse import quote, urlencode

from themis.errors import InputError

TIMEOUT_S = 8.0
"""Seconds for one request."""
MOST_BYTES = 1 << 20
"""Bytes of an answer."""


class ProviderDown(InputError):
    """The provider does not answer, or its answer is not the one of an OpenID provider."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """A redirect is an answer: the address that was configured is asked, and no other."""


_opener = urllib.request.build_opener(_NoRedirect)


def ask(
    url: str, form: Mapping[str, str] | None = None, client: tuple[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Status and JSON object of an answer; a POST if a form is given. ``client`` : id and secret, as RFC 6749 2.3.1
    sends them.

    Raises
    ------
    ProviderDown : no answer in time, one that is too large, or no JSON object.
    """
    headers = {"Accept": "application/json", "User-Agent": "themis"}
    if client is not None:
        pair = ":".join(quote(part, safe="") for part in client)
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    data = None if form is None else urlencode(form).encode()
    end = time.monotonic() + TIMEOUT_S
    try:
        try:
            with _opener.open(urllib.request.Request(url, data, headers), timeout=TIMEOUT_S) as reply:
                status, body = reply.status, _read(reply, end)
        except urllib.error.HTTPError as error:
            with error:
                status, body = error.code, _read(error, end)
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise ProviderDown(f"the OIDC provider does not answer at {url}: {why}.") from None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ProviderDown(f"the OIDC provider answers {url} with status {status} and no JSON object.")
    return status, value


def _read(reply: Any, end: float) -> bytes:
    data = bytearray()
    while piece := reply.read1(1 << 16):
        data += piece
        if len(data) > MOST_BYTES:
            raise ValueError(f"the answer has more than {MOST_BYTES} bytes")
        if time.monotonic() > end:
            raise TimeoutError(f"the answer takes more than {TIMEOUT_S:g} s")
    return bytes(data)
