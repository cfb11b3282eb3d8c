"""A small OpenID provider on loopback, with keys of its own: code flow with PKCE, device flow, refresh tokens."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

pytest.importorskip("joserfc", reason="needs joserfc: pip install 'themis-scheduler[oidc]'")

from joserfc import jwt
from joserfc.jwk import ECKey, Key, RSAKey

from themis.trust.oidc.provider import DEVICE_GRANT, challenge

ICON = "<link rel=icon href='data:,'>"
CLIENT, SECRET = "themis", "s3cret & more"
Forge = Callable[["SmallProvider", dict[str, Any]], str]


def rsa(kid: str) -> Key:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


def ec(kid: str) -> Key:
    return ECKey.generate_key("P-256", {"kid": kid, "use": "sig", "alg": "ES256"})


async def fields(request: Request) -> dict[str, str]:
    return dict(parse_qsl((await request.body()).decode(), keep_blank_values=True))


@dataclass
class SmallProvider:
    """Its users by name, with their claims; the test changes what it says."""

    port: int
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=lambda: [rsa("k1")])
    """Published; the last one signs."""
    forge: Forge | None = None
    """An ID token in place of the right one, from its claims."""
    changed: dict[str, Any] = field(default_factory=dict)
    """Claims that differ from the right ones; None: left out."""
    host: str = "127.0.0.1"
    asked: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    devices: dict[str, dict[str, str]] = field(default_factory=dict)
    refresh: dict[str, str] = field(default_factory=dict)

    @property
    def issuer(self) -> str:
        return f"http://{self.host}:{self.port}/realms/lab"

    def token(self, user: str, nonce: str = "") -> str:
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": f"id of {user}",
            "iat": int(time.time()),
            "exp": int(time.time()) + 300,
            "preferred_username": user,
            **({"nonce": nonce} if nonce else {}),
            **self.users[user],
            **self.changed,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        if self.forge is not None:
            return self.forge(self, claims)
        key = self.keys[-1]
        algorithm = "ES256" if key.key_type == "EC" else "RS256"
        return jwt.encode({"alg": algorithm, "kid": key.kid}, claims, key)

    # ---- pages -------------------------------------------------------------------------------------------------------

    def app(self) -> Starlette:
        """All addresses below the issuer's."""
        routes = [
            Route("/.well-known/openid-configuration", self.description),
            Route("/keys", self.published),
            Route("/authorize", self.authorize, methods=["GET", "POST"]),
            Route("/device", self.device, methods=["GET", "POST"]),
            Route("/device-codes", self.device_codes, methods=["POST"]),
            Route("/token", self.tokens, methods=["POST"]),
        ]
        return Starlette(routes=[Route(f"/realms/lab{r.path}", r.endpoint, methods=r.methods) for r in routes])

    async def description(self, request: Request) -> Response:
        self.asked.append("description")
        here = self.issuer
        return JSONResponse(
            {
                "issuer": here,
                "authorization_endpoint": f"{here}/authorize",
                "device_authorization_endpoint": f"{here}/device-codes",
                "token_endpoint": f"{here}/token",
                "jwks_uri": f"{here}/keys",
            }
        )

    async def published(self, request: Request) -> Response:
        self.asked.append("keys")
        return JSONResponse({"keys": [key.as_dict(private=False) for key in self.keys]})

    async def authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        if request.method == "GET":
            return HTMLResponse(f"{ICON}<form method=post><input name=user id=user><button>Sign in</button></form>")
        return RedirectResponse(self.agree(query, (await fields(request))["user"]), 303)

    def agree(self, query: dict[str, str], user: str) -> str:
        """The address of the service that a browser is sent back to, with a code of the user."""
        code = secrets.token_urlsafe(16)
        self.codes[code] = {**query, "user": user}
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    async def device(self, request: Request) -> Response:
        if request.method == "GET":
            return HTMLResponse(
                f"{ICON}<form method=post><input name=code><input name=user><button>Agree</button></form>"
            )
        form = await fields(request)
        self.allow(form["code"], form["user"])
        return HTMLResponse("done")

    def allow(self, code: str, user: str) -> None:
        """A user agrees to a device sign-in; an empty name declines."""
        next(d for d in self.devices.values() if d["code"] == code)["user"] = user or "-"

    async def device_codes(self, request: Request) -> Response:
        if not await self._is_client(request):
            return JSONResponse({"error": "invalid_client"}, 401)
        device, code = secrets.token_urlsafe(16), secrets.token_hex(4)
        self.devices[device] = {"code": code}
        return JSONResponse(
            {
                "device_code": device,
                "user_code": code,
                "verification_uri": f"{self.issuer}/device",
                "expires_in": 60,
                "interval": 1,
            }
        )

    async def _is_client(self, request: Request) -> bool:
        import base64

        given = request.headers.get("authorization", "")
        return given == "Basic " + base64.b64encode(b"themis:s3cret%20%26%20more").decode()

    async def tokens(self, request: Request) -> Response:
        form = await fields(request)
        self.asked.append(form["grant_type"])
        if not await self._is_client(request):
            return JSONResponse({"error": "invalid_client"}, 401)
        nonce = ""
        match form["grant_type"]:
            case "authorization_code":
                found = self.codes.pop(form["code"], None)
                right = found is not None and (found["redirect_uri"], found["code_challenge"]) == (
                    form["redirect_uri"],
                    challenge(form["code_verifier"]),
                )
                user = found["user"] if found is not None and right else ""
                nonce = found["nonce"] if found is not None else ""
            case "refresh_token":
                user = self.refresh.pop(form["refresh_token"], "")
            case grant:
                assert grant == DEVICE_GRANT
                device = self.devices.get(form["device_code"])
                if device is not None and "user" not in device:
                    return JSONResponse({"error": "authorization_pending"}, 400)
                if device is not None and device["user"] == "-":
                    return JSONResponse({"error": "access_denied"}, 400)
                user = self.devices.pop(form["device_code"])["user"] if device is not None else ""
        if user not in self.users:
            return JSONResponse({"error": "invalid_grant", "error_description": "not known here"}, 400)
        again = secrets.token_urlsafe(16)
        self.refresh[again] = user
        return JSONResponse({"token_type": "Bearer", "id_token": self.token(user, nonce), "refresh_token": again})


@contextmanager
def small_provider(host: str = "127.0.0.1", port: int = 0) -> Iterator[SmallProvider]:
    """A provider that listens on loopback; ``host`` : as its issuer names it."""
    listener = socket.create_server(("127.0.0.1", port))
    found = SmallProvider(listener.getsockname()[1], host=host)
    server = uvicorn.Server(
        uvicorn.Config(found.app(), log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield found
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
