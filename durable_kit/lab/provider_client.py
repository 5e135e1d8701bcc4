"""The provider's client: every call ends in an answer, or in an error that says what is certain.

The exceptions of an HTTP library tell what went wrong with a socket. A program that moves money
must know something else: may I do it again?

    NoEffect         surely nothing happened          send it again, later if it says so
    Refused          surely nothing happened, and     a business decision: another card, another
                     it will be refused again         amount, a person; with a new key
    OutcomeUnknown   perhaps it happened              never blindly again: the same key, or ask

    connect ✗                     NoEffect            the request never left
    connect ─ send ─ ✗            OutcomeUnknown      it may have arrived
    connect ─ send ─ …timeout     OutcomeUnknown      it may be happening just now
    connect ─ send ─ 500          OutcomeUnknown      before or after acting? it does not say
    connect ─ send ─ 429          NoEffect            turned away at the door
    connect ─ send ─ 402, 422     Refused

The line is drawn where the first byte may have left. What is left out: retries. Who calls this
knows its deadline and its key, and decides.
"""

from __future__ import annotations

import http.client
import json
import select
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from durable_kit import crash_point
from durable_kit.errors import DurableKitError

AFTER_SEND, AFTER_EFFECT = "provider.after_send", "provider.after_effect"
"""Crash points of a call: the request is out; the reply has arrived and was not read."""


class ProviderError(DurableKitError):
    """A call to the provider did not succeed. The subclass says what is certain."""

    def __init__(self, message: str, *, status: int | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class NoEffect(ProviderError):
    """Surely nothing happened. Try again, after `retry_after_s` seconds if that is not None."""

    retry_after_s: float | None = None


class Refused(ProviderError):
    """This request surely did nothing, for a reason of business, and it stays refused.

    With the code "key_reused" the *other* request, the first with this key, may well have acted.
    """


class OutcomeUnknown(ProviderError):
    """It may have happened. Send it again with the same key only, or ask; else stop."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the provider answered. `replayed`: an earlier request with this key did the work."""

    id: str
    state: str
    replayed: bool
    body: dict[str, Any]

    @property
    def done(self) -> bool:
        return self.state == "done"


class ProviderClient:
    """Calls one provider. One connection a call, so it may be used from any OS thread."""

    def __init__(self, url: str, *, timeout_s: float = 10.0) -> None:
        """`timeout_s`: how long connecting, and each wait for bytes, may take.

        Ten seconds are long: a busy machine shall not look like a lost reply.
        """
        self.url = url
        self._address = urlsplit(url).netloc
        self._timeout_s = timeout_s

    def charge(
        self, order_id: str, *, amount_cents: int, key: str | None = None, **how: Any
    ) -> Reply:
        """Take money. `how`: see `act`."""
        return self.act(
            "charge", {"order_id": order_id, "amount_cents": amount_cents}, key=key, **how
        )

    def refund(
        self, order_id: str, *, amount_cents: int, key: str | None = None, **how: Any
    ) -> Reply:
        """Give money back, at most what was taken for the order."""
        return self.act(
            "refund", {"order_id": order_id, "amount_cents": amount_cents}, key=key, **how
        )

    def send_email(
        self, order_id: str, *, to: str, text: str, key: str | None = None, **how: Any
    ) -> Reply:
        """Send an e-mail about an order."""
        return self.act("email", {"order_id": order_id, "to": to, "text": text}, key=key, **how)

    def act(
        self,
        kind: str,
        request: Mapping[str, Any],
        *,
        key: str | None = None,
        poll: bool = False,
        fault: str | None = None,
    ) -> Reply:
        """Ask for an effect of `kind`. Raises `NoEffect`, `Refused` or `OutcomeUnknown`.

        `poll`: be answered at once with the state "pending", and then ask `status`. `fault`: let
        this very request fail so (`provider_server.FAULTS`).
        """
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        if poll:
            headers["Prefer"] = "respond-async"
        if fault is not None:
            headers["X-Fault"] = fault
        status, reply, fields = self._call("POST", f"/{kind}s", headers, dict(request))
        if status in (201, 202):
            return _reply(reply, replayed=fields.get("Idempotent-Replayed") == "true")
        code = str(reply.get("error", ""))
        message = f"{kind} of {request.get('order_id')}: {status} {code}: {reply.get('message')}"
        if status >= 500 or status == 409:
            raise OutcomeUnknown(f"{message}. It may have happened.", status=status, code=code)
        if status in (402, 422):
            raise Refused(message, status=status, code=code)
        error = NoEffect(message, status=status, code=code)
        if "Retry-After" in fields:
            error.retry_after_s = float(fields["Retry-After"])
        raise error

    def status(self, id: str) -> Reply:
        """How far a pending effect is. Raises `OutcomeUnknown` when that cannot be learned."""
        status, reply, _ = self._call("GET", f"/effects/{quote(id)}", {}, None)
        if status != 200:
            raise OutcomeUnknown(
                f"{id}: {status} {reply.get('error')}", status=status, code=str(reply.get("error"))
            )
        return _reply(reply)

    def find(
        self, *, key: str | None = None, order_id: str | None = None, fault: str | None = None
    ) -> list[Reply]:
        """What has happened under `key`, or for `order_id`; empty if the provider knows of nothing.

        Nothing known is not "will never happen": a request may still be on its way. Raises
        `OutcomeUnknown` when the provider cannot be asked.
        """
        asked = {"key": key, "order_id": order_id}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        headers = {} if fault is None else {"X-Fault": fault}
        status, reply, _ = self._call("GET", f"/effects?{query}", headers, None)
        if status not in (200, 404) or "effects" not in reply:
            raise OutcomeUnknown(
                f"look-up of {key or order_id}: {status} {reply.get('error')}",
                status=status,
                code=str(reply.get("error", "")),
            )
        return [_reply(effect) for effect in reply["effects"]]

    def _call(
        self, method: str, path: str, headers: Mapping[str, str], body: dict[str, Any] | None
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        connection = _Connection(self._address, timeout=self._timeout_s)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise NoEffect(f"{self.url} was not reached: {error}. Nothing was sent.") from error
            try:
                connection.request(
                    method, path, None if body is None else json.dumps(body), dict(headers)
                )
                response = connection.getresponse()
                content = response.read()
                found = json.loads(content)
            except (OSError, http.client.HTTPException, ValueError) as error:
                what = f"{method} {path}: no answer ({type(error).__name__})"
                raise OutcomeUnknown(f"{what}. It may have happened.") from error
            return response.status, found, dict(response.headers)
        finally:
            connection.close()


class _Connection(http.client.HTTPConnection):
    """A connection with a crash point on each side of the provider's act.

    The provider answers when the effect is in its book. So a reply that has arrived here, and that
    nobody has read, is the moment at which only the provider knows.
    """

    def getresponse(self) -> http.client.HTTPResponse:
        crash_point.reached(AFTER_SEND)
        if not select.select([self.sock], [], [], self.timeout)[0]:
            raise TimeoutError("no reply")
        crash_point.reached(AFTER_EFFECT)
        return super().getresponse()


def _reply(body: dict[str, Any], *, replayed: bool = False) -> Reply:
    return Reply(str(body["id"]), str(body["state"]), replayed, body)
