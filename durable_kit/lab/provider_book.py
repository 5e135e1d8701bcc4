"""The book of the payment and e-mail provider: what it has done, and which keys it remembers.

"Was the customer charged twice?" must never be answered from our own database: what it does not
know is just what went wrong. So the provider of the lessons keeps a book of its own, in a file of
its own, written by a process of its own. This file is that book, without the network.

    our agent      charge(key=K) ───────▶ provider: effect no. 7, key K      one commit, fsync
                   ✗ the reply is lost
                   charge(key=K) ───────▶ K is known: the first reply again  still one effect
                   … 24 hours later …
                   charge(key=K) ───────▶ K is forgotten: effect no. 8       the window has closed

What is promised, when keys are honoured: an effect and the memory of its key are committed in one
transaction, so there is no moment at which the money is gone and the key unknown. A key that comes
again with another request is refused and does nothing. A refusal is remembered like a success: the
same key gets the same answer, and a new attempt needs a new key.

What is left out: authentication, currencies, partial captures, and everything else for which one
would not write a provider in 200 lines.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_kit.clock import Clock

BOOK = "provider.db"
KINDS = ("charge", "refund", "email")

_TABLES = """
CREATE TABLE IF NOT EXISTS effect (
    no            INTEGER PRIMARY KEY,  -- the order in which the provider accepted them
    kind          TEXT NOT NULL,        -- charge, refund or email
    order_id      TEXT NOT NULL,
    amount_cents  INTEGER,              -- NULL for an e-mail
    key           TEXT,                 -- the Idempotency-Key it came with, honoured or not
    request       TEXT NOT NULL,        -- the whole request, as JSON
    state         TEXT NOT NULL,        -- done | pending (shown to who asks) | late (not even that)
    polls_left    INTEGER NOT NULL,     -- a pending one is done after so many looks at it
    at_us         INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS effect_by_key ON effect (key);
CREATE INDEX IF NOT EXISTS effect_by_order ON effect (order_id);
CREATE TABLE IF NOT EXISTS remembered (
    key           TEXT PRIMARY KEY,
    fingerprint   TEXT NOT NULL,        -- of the request that came first with this key
    status        INTEGER,              -- of its answer (HTTP); NULL: being worked on
    answer        TEXT,
    at_us         INTEGER NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that the provider has done in the world."""

    no: int
    kind: str
    order_id: str
    amount_cents: int | None
    key: str | None
    request: dict[str, Any]
    at_us: int


@dataclass(frozen=True, slots=True)
class Switches:
    """How this provider treats keys and questions. Real ones differ in each of these."""

    honours_keys: bool = True
    key_ttl_s: float | None = None
    """Seconds after which a key is forgotten and acts anew; None: never."""
    lookup: bool = True
    """May one ask "what has happened under this key, for this order"?"""
    lookup_ttl_s: float | None = None
    """Seconds after which a look-up finds nothing any more; None: never."""
    polls_until_done: int = 2
    """How often a request that is answered with "pending" has to be polled until it is done."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: status, body, and whether it is the repetition of an earlier one."""

    status: int
    body: dict[str, Any]
    replayed: bool = False


class Book:
    """The provider's database and its rules. Safe to use from several OS threads."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # a bank answers when it is on the disk
        self._db.executescript(_TABLES)

    def act(
        self,
        kind: str,
        request: Mapping[str, Any],
        *,
        key: str | None,
        switches: Switches,
        refuse: bool = False,
        state: str = "done",
    ) -> Answer:
        """Do what is asked, once per key if keys are honoured, and say so.

        `refuse` declines for a business reason. `state`: "done" at once, "pending" until it has
        been polled, "late" until `settle`, and unknown to everybody before.
        """
        text = json.dumps(request, sort_keys=True)
        fingerprint = hashlib.sha256(f"{kind} {text}".encode()).hexdigest()
        now_us = self._clock.now_us()
        known_key = key if switches.honours_keys else None
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            known = self._remembered(known_key, fingerprint, now_us, switches)
            if known is not None:
                return known
            refusal = _declined() if refuse else self._business_refusal(kind, request)
            if refusal is not None:
                self._remember(known_key, fingerprint, refusal, now_us)
                return refusal
            no = self._db.execute(
                "INSERT INTO effect (kind, order_id, amount_cents, key, request, state,"
                "                    polls_left, at_us)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    kind,
                    str(request["order_id"]),
                    request.get("amount_cents"),
                    key,
                    text,
                    state,
                    switches.polls_until_done if state == "pending" else 0,
                    now_us,
                ),
            ).lastrowid
            body = {**request, "id": f"{kind}-{no}", "kind": kind, "state": state}
            answer = Answer(201 if state == "done" else 202, body)
            self._remember(known_key, fingerprint, None if state == "late" else answer, now_us)
            return answer

    def poll(self, id: str) -> Answer:
        """The state of one effect. A pending one comes nearer to its end with every look."""
        no = id.rpartition("-")[2]
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(
                "UPDATE effect SET polls_left = polls_left - 1,"
                "       state = CASE WHEN polls_left <= 1 THEN 'done' ELSE 'pending' END"
                " WHERE no = ? AND state = 'pending'",
                (no,),
            )
            found = self._shown("no = ?", no)
            if not found or found[0]["id"] != id:
                return Answer(404, {"error": "not_found", "message": f"there is no {id}"})
            return Answer(200, found[0])

    def find(self, *, key: str | None, order_id: str | None, switches: Switches) -> Answer:
        """What has happened under a key or for an order. Nothing late is among it: that is late."""
        if not switches.lookup:
            return Answer(501, {"error": "no_lookup", "message": "this provider cannot be asked"})
        since_us = self._clock.now_us() - round((switches.lookup_ttl_s or 0) * 1_000_000)
        with self._lock:
            found = self._shown(
                "(key = ? OR order_id = ?) AND (? OR at_us > ?)",
                key,
                order_id,
                switches.lookup_ttl_s is None,
                since_us,
            )
        return Answer(200 if found else 404, {"effects": found})

    def settle(self, no: int | None = None) -> int:
        """Do what was accepted late (all of it, or effect `no`); how many that were."""
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            late = self._db.execute(
                "SELECT no, kind, request, key FROM effect"
                " WHERE state = 'late' AND (? IS NULL OR no = ?)",
                (no, no),
            ).fetchall()
            for late_no, kind, request, key in late:
                body = {**json.loads(request), "id": f"{kind}-{late_no}", "kind": kind}
                self._db.execute("UPDATE effect SET state = 'done' WHERE no = ?", (late_no,))
                self._db.execute(
                    "UPDATE remembered SET status = 201, answer = ?"
                    " WHERE key = ? AND status IS NULL",
                    (json.dumps({**body, "state": "done"}), key),
                )
            return len(late)

    def close(self) -> None:
        """Close the file. Everything that was answered is in it already."""
        self._db.close()

    def _remembered(
        self, key: str | None, fingerprint: str, now_us: int, switches: Switches
    ) -> Answer | None:
        row = self._db.execute(
            "SELECT fingerprint, status, answer, at_us FROM remembered WHERE key = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        first, status, answer, at_us = row
        ttl_s = switches.key_ttl_s
        if ttl_s is not None and now_us - at_us >= ttl_s * 1_000_000:
            self._db.execute("DELETE FROM remembered WHERE key = ?", (key,))
            return None
        if first != fingerprint:
            message = f"key {key} was used with another request; use a new key"
            return Answer(422, {"error": "key_reused", "message": message})
        if status is None:
            message = f"the first request with key {key} is still being worked on"
            return Answer(409, {"error": "in_progress", "message": message})
        return Answer(status, json.loads(answer), replayed=True)

    def _remember(
        self, key: str | None, fingerprint: str, answer: Answer | None, now_us: int
    ) -> None:
        if key is not None:
            self._db.execute(
                "INSERT INTO remembered (key, fingerprint, status, answer, at_us)"
                " VALUES (?, ?, ?, ?, ?)",
                (
                    key,
                    fingerprint,
                    answer.status if answer else None,
                    json.dumps(answer.body) if answer else None,
                    now_us,
                ),
            )

    def _business_refusal(self, kind: str, request: Mapping[str, Any]) -> Answer | None:
        amount_cents = request.get("amount_cents")
        if kind == "email":
            return None
        if not isinstance(amount_cents, int) or amount_cents <= 0:
            message = f"amount_cents must be a whole number above 0, not {amount_cents!r}"
            return Answer(422, {"error": "bad_amount", "message": message})
        if kind == "refund":
            [paid_cents] = self._db.execute(
                "SELECT COALESCE(SUM(CASE kind WHEN 'charge' THEN amount_cents"
                "                              WHEN 'refund' THEN -amount_cents END), 0)"
                "  FROM effect WHERE order_id = ? AND state = 'done'",
                (str(request["order_id"]),),
            ).fetchone()
            if amount_cents > paid_cents:
                message = f"{paid_cents} cents are left of what was paid, not {amount_cents}"
                return Answer(422, {"error": "nothing_to_refund", "message": message})
        return None

    def _shown(self, where: str, *values: Any) -> list[dict[str, Any]]:
        rows = self._db.execute(
            "SELECT kind, no, key, request, state, at_us FROM effect"  # noqa: S608 - `where` is ours
            f" WHERE state <> 'late' AND {where} ORDER BY no",
            values,
        )
        return [
            {
                **json.loads(request),
                "id": f"{kind}-{no}",
                "kind": kind,
                "key": key,
                "state": state,
                "at_us": at_us,
            }
            for kind, no, key, request, state, at_us in rows
        ]


def read_entries(path: Path, *, kind: str | None, order_id: str | None) -> list[Entry]:
    """What has really happened, oldest first, read from the file: no server is asked."""
    db = sqlite3.connect(path)
    try:
        rows = db.execute(
            "SELECT no, kind, order_id, amount_cents, key, request, at_us FROM effect"
            " WHERE state = 'done' AND (? IS NULL OR kind = ?) AND (? IS NULL OR order_id = ?)"
            " ORDER BY no",
            (kind, kind, order_id, order_id),
        ).fetchall()
    finally:
        db.close()
    return [
        Entry(no, kind_, order, amount_cents, key, json.loads(request), at_us)
        for no, kind_, order, amount_cents, key, request, at_us in rows
    ]


def _declined() -> Answer:
    return Answer(402, {"error": "card_declined", "message": "the card was declined"})
