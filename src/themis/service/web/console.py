"""The console as a site below ``/console``: static files, sign-in, the routes of ``routes``, and the headers of each answer.

Every answer forbids frames, inline scripts and other hosts. What changes something is a POST that carries the session's CSRF token
and comes from a page of this site. Rights lie in the methods of the API, which the console calls as the signed-in user.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from themis.errors import InputError, ThemisError, UnknownName
from themis.report.look.palette import colour_number, colour_numbers
from themis.service.api.access import Caller, Forbidden
from themis.service.api.http_app import BODY_S, NO_STORE, Refused, Run, address_of, status_of
from themis.service.api.methods import Api
from themis.service.api.oidc import FLOW_S, Oidc
from themis.service.api.submission import Limit
from themis.service.engine.pending_calls import Closed
from themis.service.web.live import Live
from themis.service.web.render import Renderer
from themis.service.web.sessions import Session, Sessions, same
from themis.service.web.static import Static
from themis.trust.oidc.asking import ProviderDown
from themis.trust.oidc.tokens import SignInRefused

HOME = "/console"
COOKIE, FLOW = "themis_session", "themis_sign_in"
"""Cookies: of a session, and of a sign-in with a provider that is under way."""
BEGIN, END = "/sign-in/oidc", "/sign-in/oidc/done"
MOST_FORM = 1 << 18
"""Bytes of a form."""
NOT_JUDGED = "the request does not come from a page of this console; open the page again."
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
log = logging.getLogger("themis.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request of a signed-in user.

    Attributes
    ----------
    api : the methods, as this user. ``values`` : parts of the path, by name. ``query``, ``form`` : fields, the last of each name.
    """

    console: Console
    request: Request
    session: Session
    api: Api
    values: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def caller(self) -> Caller:
        """The signed-in user."""
        return self.api.caller

    def colours(self) -> Callable[[str], int]:
        """The number of a user's colour: the same in all pages, and unique while colours last."""
        numbers = colour_numbers(self.api.users_in_order())
        return lambda user: numbers[user] if user in numbers else colour_number(user)

    def page(self, template: str, title: str, **values: Any) -> Response:
        """A whole page: the template within the frame."""
        text = self.console.render.text(
            template,
            title=title,
            caller=self.caller,
            csrf=self.session.csrf,
            here=self.request.url.path,
            routes=[r for r in self.console.routes if r.title and (self.caller.admin or not r.admin)],
            **values,
        )
        return _html(text)

    def fragment(self, template: str, **values: Any) -> Response:
        """A part of a page, for a script that replaces it."""
        return _html(self.console.render.text(template, csrf=self.session.csrf, caller=self.caller, **values))

    def go(self, path: str, **query: str) -> Response:
        """Redirect to a page after a change."""
        target = HOME + path + (f"?{urlencode(query)}" if query else "")
        return Response(status_code=303, headers={"Location": target})


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A page, or a part of one.

    Attributes
    ----------
    path : below ``/console``, with ``{name}`` where a part of the path is a value.
    answer : the reply; runs in a thread, because methods of the API wait for the arbiter's thread.
    stream : in place of it, a stream of events.
    title : its name in the navigation; empty: not there. ``admin`` : for administrators alone.
    """

    path: str
    answer: Callable[[Visit], Response] | None = None
    stream: Callable[[Visit], AsyncIterator[bytes]] | None = None
    method: str = "GET"
    title: str = ""
    admin: bool = False

    def match(self, path: str) -> dict[str, str] | None:
        """The values in a path, or None where it is another route's."""
        own, given = self.path.strip("/").split("/"), path.strip("/").split("/")
        if len(own) != len(given) or any(a != b and a[:1] != "{" for a, b in zip(own, given)):
            return None
        return {a[1:-1]: unquote(b) for a, b in zip(own, given) if a[:1] == "{"}


class Console:
    """The site. ``routes`` : its pages, the first of which is the start."""

    def __init__(self, api: Api, routes: tuple[Route, ...]) -> None:
        self.api, self.routes = api, routes
        self.sessions = Sessions(api.access)

    @cached_property
    def static(self) -> Static:
        """Style, scripts and pictures, read when the first one is asked for."""
        return Static()

    @cached_property
    def render(self) -> Renderer:
        """Templates."""
        return Renderer(self.static)

    @cached_property
    def live(self) -> Live:
        """The content of the page Now, computed once for all consoles."""
        return Live(self.api, self.render)

    def serves(self, path: str) -> bool:
        """True if a path of the HTTP port is the console's."""
        return path in ("/", HOME) or path.startswith(HOME + "/")

    async def answer(self, request: Request, path: str, query: str, run: Run) -> Response:
        """Answer a request for one of its paths."""
        name = "console"
        try:
            route, response = await self._answer(request, path, query, run)
            name = f"console {route}"
        except (ThemisError, OSError) as error:
            response = self._refusal(request, error)
        except Exception as error:
            log.error("%s %s failed", request.method, path, exc_info=error)
            response = self._refusal(request, error)
        request.scope["themis.called"] = name
        for header, value in {**HEADERS, **({} if "cache-control" in response.headers else NO_STORE)}.items():
            response.headers[header] = value
        return response

    async def _answer(self, request: Request, path: str, query: str, run: Run) -> tuple[str, Response]:
        inside = path.removeprefix(HOME)
        if path in ("/", HOME, f"{HOME}/"):
            return "start", _to(self.routes[0].path)
        if inside.startswith("/static/") and request.method == "GET":
            return "static", self.static.response(inside.removeprefix("/static/"))
        if request.method not in ("GET", "POST"):
            raise Refused(405, f"{request.method[:20]} is not allowed in the console, which takes GET and POST.")
        form = await _form(request) if request.method == "POST" else {}
        if inside == "/sign-in":
            return "sign-in", await self._sign_in(request, query, form)
        if inside in (BEGIN, END) and request.method == "GET" and self.api.oidc is not None:
            return "sign-in", await self._with_provider(self.api.oidc, request, inside, dict(parse_qsl(query)))
        found = self.sessions.find(request.cookies.get(COOKIE, ""))
        if found is None:
            if request.method == "GET" and "x-themis" not in request.headers:
                after = inside + (f"?{query}" if query else "")
                return "sign-in", _to("/sign-in", after=after)
            raise Refused(401, "You are signed out; sign in again.")
        session, caller = found[0], replace(found[1], address=address_of(request))
        if request.method == "POST" and not same(form.pop("csrf", ""), session.csrf):
            raise Forbidden(NOT_JUDGED)
        if inside == "/sign-out" and request.method == "POST":
            self.sessions.sign_out(session)
            if self.api.oidc is not None:
                self.api.oidc.sign_ins.end(session.token)
            response = _to("/sign-in")
            response.delete_cookie(COOKIE, path=HOME, httponly=True, samesite="strict")
            return "sign-out", response
        route, values = self._find(request.method, inside)
        if route.admin and not caller.admin:
            raise Forbidden(f"Permission denied: only administrators may see this page, and you are {caller.user}.")
        visit = Visit(
            console=self,
            request=request,
            session=session,
            api=self.api.by(caller),
            values=values,
            query=dict(parse_qsl(query, keep_blank_values=True)),
            form=form,
        )
        if route.stream is not None:
            return route.path, StreamingResponse(
                route.stream(visit), headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream"
            )
        response = await run(caller, lambda: route.answer(visit))  # type: ignore[misc]
        if new := self.sessions.rotate(session):
            _set_cookie(request, response, new)
        return route.path, response

    def _find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        found = [(route, values) for route in self.routes if (values := route.match(path)) is not None]
        if not found:
            raise UnknownName("page", path[:100], [route.title for route in self.routes if route.title])
        for route, values in found:
            if route.method == method:
                return route, values
        raise Refused(405, f"{method} is not allowed for this page.")

    async def _sign_in(self, request: Request, query: str, form: Mapping[str, str]) -> Response:
        after = dict(parse_qsl(query)).get("after", "")
        if request.method == "GET":
            return self._form_of_sign_in(after)
        # It does not wait for the arbiter: a token is compared in memory.
        problem, status, token = "This token is not valid.", 401, form.get("token", "").strip()
        address = address_of(request)
        try:
            cookie = self.sessions.sign_in(token, address)
            caller = self.api.access.caller(f"Bearer {token}", address) or Caller(user="", admin=False, address=address)
            self.api.audit.add(caller, "SignIn", "console", refused="" if cookie else problem)
        except ThemisError as error:
            cookie, problem, status = None, str(error), 429
        self._sign_out_before(request)
        if cookie is None:
            return self._form_of_sign_in(after, problem, status)
        response = _to(self._inside(after))
        _set_cookie(request, response, cookie)
        return response

    def _form_of_sign_in(self, after: str, problem: str = "", status: int = 200) -> Response:
        oidc = self.api.oidc is not None
        text = self.render.text("sign_in.html.j2", title="Sign in", problem=problem, after=after, oidc=oidc)
        return _html(text, status)

    def _sign_out_before(self, request: Request) -> None:
        if old := self.sessions.find(request.cookies.get(COOKIE, "")):
            self.sessions.sign_out(old[0])

    def _inside(self, after: str) -> str:
        """A page of the console to go to after a sign-in; never another site."""
        return after if after.startswith("/") and not after.startswith("//") else self.routes[0].path

    async def _with_provider(self, oidc: Oidc, request: Request, inside: str, query: Mapping[str, str]) -> Response:
        """A redirect to or from the OIDC provider. The provider is asked in a thread of its own pool."""
        address = address_of(request)
        try:
            if inside == BEGIN:
                here = oidc.provider.settings.url or f"{request.url.scheme}://{request.headers.get('host', '')}"
                begin = partial(oidc.begin_console, f"{here}{HOME}{END}", query.get("after", ""), address)
                url, kept = await asyncio.to_thread(begin)
                response = Response(status_code=303, headers={"Location": url})
                # Lax: the way back begins at the provider's site.
                response.set_cookie(FLOW, kept, path=f"{HOME}/sign-in", max_age=round(FLOW_S), **_guarded(request))
                return response
            done = await asyncio.to_thread(oidc.end_console, request.cookies.get(FLOW, ""), query, address)
        except (SignInRefused, ProviderDown, Limit, Closed) as error:
            status = 429 if isinstance(error, Limit) else 401 if isinstance(error, SignInRefused) else 503
            return self._form_of_sign_in("", str(error), status)
        self._sign_out_before(request)
        # A page in between: after a redirect from another site, browsers leave out cookies that are SameSite=Strict.
        target = _to(self._inside(done.after)).headers["Location"]
        response = _html(self.render.text("signed_in.html.j2", title="Signed in", user=done.user, target=target))
        response.headers["Refresh"] = f"0; url={target}"
        response.delete_cookie(FLOW, path=f"{HOME}/sign-in", **_guarded(request))
        _set_cookie(request, response, self.sessions.begin(done.token))
        return response

    def _refusal(self, request: Request, error: Exception) -> Response:
        status = status_of(error)
        sentence = str(error)
        if not isinstance(error, ThemisError):
            sentence = f"a bug in Themis: {type(error).__name__}; see the service's log."
        if "x-themis" in request.headers:
            return Response(sentence, status, media_type="text/plain")
        return _html(
            self.render.text("error.html.j2", title="Error", status=status, sentence=sentence, after=_before(request)),
            status,
        )


def _set_cookie(request: Request, response: Response, cookie: str) -> None:
    response.set_cookie(
        COOKIE, cookie, path=HOME, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


def _guarded(request: Request) -> dict[str, Any]:
    """Attributes of the cookie that protects a pending sign-in."""
    return {"httponly": True, "samesite": "lax", "secure": request.url.scheme == "https"}


def _before(request: Request) -> str:
    """The page of the console from which a request came, as far as the browser says."""
    try:
        found = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return ""
    inside = found.path.removeprefix(HOME)
    return inside + (f"?{found.query}" if found.query else "") if inside != found.path else ""


def _html(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="text/html")


def _to(path: str, **query: str) -> Response:
    target = HOME + quote(path, safe="/?&=%:+,") + (f"?{urlencode(query)}" if query else "")
    return Response(status_code=303, headers={"Location": target})


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form that a page of this site sent.

    Raises
    ------
    Forbidden : it comes from elsewhere. Refused : it is too large, no form, or too slow.
    """
    headers = request.headers
    origin = headers.get("origin", "")
    foreign = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    try:
        theirs = urlsplit(origin).netloc.lower()
    except ValueError:
        theirs = "?"
    if foreign or (origin and theirs != headers.get("host", "").lower()):
        raise Forbidden(NOT_JUDGED)
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise Refused(415, "expected the fields of a form (application/x-www-form-urlencoded).")
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                data += piece
                if len(data) > MOST_FORM:
                    raise Refused(413, f"the form has more than {MOST_FORM} bytes.")
    except TimeoutError:
        raise Refused(408, f"the form did not arrive within {BODY_S:g} s.") from None
    try:
        return dict(parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=200))
    except ValueError as error:
        raise InputError(f"the form cannot be read: {error}.") from None
