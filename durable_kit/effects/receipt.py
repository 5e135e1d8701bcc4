"""What is remembered of a call: one row, and the ways from one state to the next.

                    ┌──────────── surely not sent, paused, surely not there ───────────┐
                    ▼                                                                  │
    (nothing) ─▶ requested ─▶ started ─▶ succeeded      the response is kept           │
                                 │  └──▶ failed         NotSent: may start again ──────┤
                                 │                      Refused: stays refused         │
                                 └─────▶ unknown ─▶ succeeded (found) ─────────────────┘

Every arrow is one UPDATE in its own transaction, and its WHERE clause names what it starts from:
the status, the attempt, and the owner. Whoever finds no row to update has been overtaken, and
looks again. So an owner that was thought dead and wakes up cannot overwrite what has been found
out in the meantime, and of two that want to send, one gets the attempt:

    A  started, attempt 1 ── paused ─────────────────────── "unknown WHERE owner = A …": 0 rows
    B  ………………………… claim ran out ─ unknown ─ asks ─ succeeded

One arrow needs no owner: that it succeeded is a fact, and the first to bring it writes it down.

`attempt` counts how often it may have been sent. Requests and responses are the codec's bytes, so
that a NaN or a NUL is stored as it is and on both databases alike.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from durable_kit.storage.codec import Codec
from durable_kit.storage.record import unescape_text


class Status(StrEnum):
    """Where a call stands."""

    REQUESTED = "requested"  # the intent is committed, nobody is sending
    STARTED = "started"  # its owner may be sending now
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # with `failure` "not sent" or "refused"
    UNKNOWN = "unknown"  # it may have happened


NOT_SENT, REFUSED = "not sent", "refused"


@dataclass(frozen=True, slots=True)
class Intent:
    """What is to be sent: as it was committed, on the first attempt and on every later one."""

    idempotency_key: str
    request: Any
    attempt: int
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What is known of one call. `replayed` is True where this call did not send it itself."""

    scope: str
    idempotency_key: str
    tool_name: str
    status: Status
    attempt: int
    owner: str
    request_hash: str
    request: Any
    response: Any
    failure: str | None
    detail: str
    threads: tuple[str, ...]
    requested_at_us: int
    first_sent_at_us: int | None
    started_at_us: int | None
    finished_at_us: int | None
    replayed: bool = field(default=True, compare=False)


class Row(NamedTuple):
    """One row of `tool_call_receipts`, its request and response still encoded."""

    scope: str
    request_id: str
    tool_name: str
    status: Status
    attempt: int
    owner: str
    request_hash: str
    request: bytes
    response: bytes | None
    failure: str | None
    detail: bytes
    threads: str
    claim_until_us: int
    requested_at_us: int
    first_sent_at_us: int | None
    started_at_us: int | None
    finished_at_us: int | None

    def receipt(self, codec: Codec, *, replayed: bool = True) -> Receipt:
        return Receipt(
            scope=unescape_text(self.scope),
            idempotency_key=unescape_text(self.request_id),
            tool_name=unescape_text(self.tool_name),
            status=self.status,
            attempt=self.attempt,
            owner=self.owner,
            request_hash=self.request_hash,
            request=codec.decode(self.request),
            response=None if self.response is None else codec.decode(self.response),
            failure=self.failure,
            detail=self.said,
            threads=threads_of(self.threads),
            requested_at_us=self.requested_at_us,
            first_sent_at_us=self.first_sent_at_us,
            started_at_us=self.started_at_us,
            finished_at_us=self.finished_at_us,
            replayed=replayed,
        )

    @property
    def said(self) -> str:
        return self.detail.decode("utf-8", "surrogatepass")


def threads_text(threads: tuple[str, ...]) -> str:
    """The threads as JSON in ASCII: a NUL becomes an escape, which PostgreSQL can hold."""
    return json.dumps(threads)


def threads_of(column: str) -> tuple[str, ...]:
    """The inverse of `threads_text`."""
    return () if column == "[]" else tuple(json.loads(column))


def detail_bytes(detail: str) -> bytes:
    """Any text, with NUL and lone surrogates too, as a column of bytes."""
    return detail.encode("utf-8", "surrogatepass")
