"""Sign-in with an OIDC provider, as browsers and command lines do it; what anybody may ask, so each step has a limit.

Between two steps the service remembers nothing: what it must know again is sealed and kept by the browser or the command line.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from themis.errors import InputError, ThemisError
from themis.schema import messages as schema
from themis.service.api.access import NAME, Caller, hash_of
from themis.service.api.audit import Audit
from themis.service.api.sign_ins import METHOD, SignIns
from themis.service.api.submission import Limit
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.config import Config, UserSettings
from themis.trust.oidc.asking import ProviderDown
from themis.trust.oidc.provider import Device, Provider, Signed, Waiting
from themis.trust.oidc.seal import Broken, seal, unseal
from themis.trust.oidc.tokens import Identity, SignInRefused, identity_of

FLOW_S = 600.0
"""Seconds that a browser has for its sign-in at the provider."""
MOST_ASKED = 4
"""Requests to the provider under way."""
MOST_OF_ADDRESS, MOST_OF_ALL, WINDOW_S = 60, 600, 60.0
"""Steps of sign-ins within ``WINDOW_S``, of one address and of all."""
MOST_USED = 4096
"""Number of finished browser sign-ins that are remembered, so that none is used twice."""
AGAIN_S = 60.0
"""Seconds between two attempts to reach the provider after the start."""
CONSOLE, DEVICE = "console", "device"

log = logging.getLogger("themis.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A sign-in. ``ends`` : seconds since 1970. ``after`` : the requested page; for browsers only."""

    token: str
    user: str
    ends: float
    after: str = ""


class Oidc:
    """Sign-ins of one provider; for any thread.

    Parameters
    ----------
    place : gives a user the group of the settings that the provider's groups name.
    """

    def __init__(
        self, provider: Provider, sign_ins: SignIns, owner: str, audit: Audit, place: Callable[[Identity], None]
    ) -> None:
        self.provider, self.sign_ins, self.owner, self.audit, self.place = provider, sign_ins, owner, audit, place
        self._key = os.urandom(32)
        self._asking = threading.Semaphore(MOST_ASKED)
        self._rate = Rate()
        self._used: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._ending = threading.Event()

    # ---- the provider ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Ask for the provider's description, in a thread, until it answers; a provider that is down stops nothing else."""
        threading.Thread(target=self._reach, name="themis-oidc", daemon=True).start()

    def close(self) -> None:
        """Stop trying."""
        self._ending.set()

    def _reach(self) -> None:
        said = False
        while not self._ending.is_set():
            try:
                self.provider.description()
            except ProviderDown as error:
                if not said:
                    log.warning("%s Until it does, sign-in with OIDC fails; tokens work.", error)
                said = True
            else:
                log.info("people sign in with %s", self.provider.settings.issuer)
                return
            self._ending.wait(AGAIN_S)

    @contextmanager
    def _step(self, address: str) -> Iterator[None]:
        """One step of a sign-in, which may ask the provider.

        Raises
        ------
        Limit : too many of them.
        """
        self._rate.take(address)
        if not self._asking.acquire(blocking=False):
            raise Limit(
                f"{MOST_ASKED} sign-ins ask the provider at the moment; try again in a few seconds.", retry_s=2.0
            )
        try:
            yield
        finally:
            self._asking.release()

    # ---- browsers ----------------------------------------------------------------------------------------------------

    def begin_console(self, redirect: str, after: str, address: str) -> tuple[str, str]:
        """The provider's address for a browser, and what the browser keeps until it comes back.

        Raises
        ------
        ProviderDown, Limit.
        """
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        with self._step(address):
            url = self.provider.address_of_sign_in(redirect, state, nonce, verifier)
        kept = {"state": state, "nonce": nonce, "verifier": verifier, "redirect": redirect, "after": after[:1000]}
        return url, seal(self._key, CONSOLE, {**kept, "began": time.time()})

    def end_console(self, kept: str, query: Mapping[str, str], address: str) -> Done:
        """A browser comes back from the provider. ``kept`` : as ``begin_console`` gave it.

        Raises
        ------
        SignInRefused : not this browser's sign-in, one that is done, or the provider says no. ProviderDown, Limit.
        """
        with self._recorded(address, "console"), self._step(address):
            flow = self._flow(kept, query.get("state", ""))
            if error := query.get("error"):
                words = "".join(c if c.isprintable() else " " for c in query.get("error_description", error))
                raise SignInRefused(f"the provider refuses the sign-in: {words[:200]}")
            issuer = query.get("iss", self.provider.settings.issuer)  # RFC 9207
            if issuer != self.provider.settings.issuer or not query.get("code"):
                raise SignInRefused("the answer is not from the provider, or has no code; sign in again.")
            signed = self.provider.redeem(query["code"], flow["redirect"], flow["verifier"], flow["nonce"])
            return replace(self._begin(signed, address, "console"), after=str(flow["after"]))

    def _flow(self, kept: str, state: str) -> dict[str, Any]:
        other = SignInRefused("this sign-in was not begun in this browser, or took too long; sign in again.")
        try:
            flow = unseal(self._key, CONSOLE, kept)
        except Broken:
            raise other from None
        if not secrets.compare_digest(str(flow["state"]).encode(), state.encode(errors="surrogatepass")):
            raise other
        if not 0 <= time.time() - flow["began"] <= FLOW_S:
            raise other
        with self._lock:
            if flow["state"] in self._used:
                raise SignInRefused("this sign-in is done; sign in again.")
            self._used[flow["state"]] = None
            while len(self._used) > MOST_USED:
                self._used.popitem(last=False)
        return flow

    # ---- command lines -----------------------------------------------------------------------------------------------

    def call(self, request: schema.SignInRequest, address: str) -> schema.SignInReply:
        """A step of a command line: begin, ask whether the user agreed, or renew.

        Raises
        ------
        SignInRefused, ProviderDown, Limit.
        """
        if request.handle and request.token:
            raise InputError("a step of a sign-in has a handle or a token, got both.")
        if request.handle:
            return self._poll(request.handle, address)
        if request.token:
            with self._recorded(address, "renewal"), self._step(address):
                return _reply(self._renew(request.token, address))
        with self._step(address):
            device = self.provider.begin_device()
        return self._waiting(device.device_code, device.interval_s, time.time() + device.lasts_s, device)

    def _waiting(self, code: str, interval_s: float, ends: float, device: Device | None = None) -> schema.SignInReply:
        handle = seal(self._key, DEVICE, {"code": code, "interval": interval_s, "ends": ends})
        shown = {} if device is None else {"url": device.url, "whole_url": device.whole_url, "code": device.code}
        return schema.SignInReply(handle=handle, interval_s=interval_s, ends=ends, **shown)

    def _poll(self, handle: str, address: str) -> schema.SignInReply:
        try:
            flow = unseal(self._key, DEVICE, handle)
        except Broken:
            raise SignInRefused("this sign-in is not known, or the service was restarted; begin again.") from None
        if time.time() > flow["ends"]:
            raise SignInRefused("the code has expired; begin the sign-in again.")
        with self._recorded(address, "device"), self._step(address):
            found = self.provider.poll_device(flow["code"])
            if isinstance(found, Waiting):
                # RFC 8628 3.5: five seconds more from then on.
                return self._waiting(flow["code"], flow["interval"] + 5.0 * found.slower, flow["ends"])
            return _reply(self._begin(found, address, "device", keep=True))

    def _renew(self, token: str, address: str) -> Done:
        old, refresh = self.sign_ins.refresh_of(token)
        done = self._begin(self.provider.renew(refresh, old.subject), address, "renewal", keep=True)
        self.sign_ins.end(hash_of(token))
        return done

    # ---- all of them -------------------------------------------------------------------------------------------------

    def _begin(self, signed: Signed, address: str, how: str, *, keep: bool = False) -> Done:
        """A token for the user who signed in. ``keep`` : the provider's refresh token with it."""
        who = identity_of(signed.claims, self.provider.settings, NAME.fullmatch)
        if who.user == self.owner and not who.admin:
            raise SignInRefused(
                f"the name {who.user} is that of the service's owner; only an administrator may have it."
            )
        token, ends = self.sign_ins.begin(who, refresh=signed.refresh if keep else "")
        try:
            self.place(who)
        except ThemisError:
            self.sign_ins.end(hash_of(token))
            raise
        self.audit.add(_caller(who.user, who.admin, address), "SignIn", how)
        return Done(token=token, user=who.user, ends=ends)

    @contextmanager
    def _recorded(self, address: str, how: str) -> Iterator[None]:
        """Sign-ins that are refused are entries too, within the limit of steps."""
        try:
            yield
        except (SignInRefused, ProviderDown) as error:
            self.audit.add(_caller("", False, address), "SignIn", how, refused=str(error))
            raise


def _caller(user: str, admin: bool, address: str) -> Caller:
    return Caller(user=user, admin=admin, method=METHOD, address=address)


def _reply(done: Done) -> schema.SignInReply:
    return schema.SignInReply(token=done.token, user=done.user, ends=done.ends)


class Rate:
    """Steps of sign-ins in the last ``WINDOW_S``, by address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._window, self._total, self._of = 0.0, 0, dict[str, int]()

    def take(self, address: str) -> None:
        """Count one; Limit where it is one too many."""
        with self._lock:
            now = self._clock()
            if now - self._window >= WINDOW_S:
                self._window, self._total, self._of = now, 0, {}
            count = self._of.get(address, 0)
            if count >= MOST_OF_ADDRESS or self._total >= MOST_OF_ALL:
                raise Limit(f"Too many steps of sign-ins; try again in {WINDOW_S:.0f} seconds.")
            self._total += 1
            self._of[address] = count + 1


# ---- groups ------------------------------------------------------------------------------------------------------------


def place(arbiter: Arbiter, sign_ins: SignIns, who: Identity) -> None:
    """Put a user who signs in into the first group of the settings that the provider's groups name.

    Where they name none, the user leaves the group that an earlier sign-in gave; one that an administrator gave stays.
    """

    def do() -> None:
        config = arbiter.config
        wanted = next((group for group in config.groups if group in who.groups), "")
        current = config.group_of(who.user)
        if wanted != current and (wanted or current == sign_ins.group(who.user)):
            arbiter.change(lambda before: _with_group(before, who.user, wanted), METHOD)
        sign_ins.set_group(who.user, wanted)

    arbiter.ask(do)


def _with_group(config: Config, name: str, group: str) -> Config:
    """An unlisted user keeps the weight, quota and budget of unlisted users."""
    of = config.users.get(name, config.others)
    user = UserSettings(weight=of.weight, gpus=of.gpus, budget=of.budget, group=group or None)
    return replace(config, users={**config.users, name: user})
