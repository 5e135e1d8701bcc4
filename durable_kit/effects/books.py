"""The gateway's bookkeeping: each method is one short transaction.

The gateway decides, the books remember. No method here calls the provider, and none leaves a
transaction open: between two of them minutes may pass, the process may die, and another one may
take over. So each says what it relies on (see `receipt_rows.py`) and reports whether that held.
"""

from __future__ import annotations

from typing import Any

from durable_kit import crash_point
from durable_kit.clock import Clock
from durable_kit.effects import receipt_rows as rows
from durable_kit.effects.fingerprint import VERSION, request_fingerprint
from durable_kit.effects.outcomes import Refused
from durable_kit.effects.receipt import (
    NOT_SENT,
    REFUSED,
    Intent,
    Receipt,
    Row,
    Status,
    detail_bytes,
    threads_of,
    threads_text,
)
from durable_kit.errors import BadInput, UnloadableValue, UnstorableValue
from durable_kit.storage.codec import Codec
from durable_kit.storage.database import Database
from durable_kit.storage.record import escape_text, unescape_text

_LONGEST_NAME_BYTES = 1000  # an entry of PostgreSQL's index takes about 2,700 in all


def column_text(what: str, value: object, *, empty: bool = False) -> str:
    """A name as its column holds it. Raises `BadInput` for what one of the databases cannot."""
    if isinstance(value, str) and (value or empty):
        text = escape_text(value)
        if len(text.encode()) <= _LONGEST_NAME_BYTES:
            return text
    raise BadInput(
        f"{what} is {value!r:.60}; it must be a text of {0 if empty else 1} to "
        f"{_LONGEST_NAME_BYTES} bytes, such as charge:order-1001."
    )


class Books:
    """The rows of one tool in one scope, as one owner keeps them."""

    def __init__(
        self,
        database: Database,
        *,
        tool_name: str,
        scope: str,
        owner: str,
        claim_life_s: float,
        codec: Codec,
        clock: Clock,
    ) -> None:
        self.database = database
        self.tool_name = column_text("tool_name", tool_name)
        self.scope = column_text("scope", scope, empty=True)
        self.codec = codec
        self.clock = clock
        self._owner = owner
        self._claim_life_us = round(claim_life_s * 1e6)

    # ------------------------------------------------------------------------ intent

    def wanted(self, idempotency_key: str, request: Any, thread_id: str | None) -> Row:
        """The row that a call wants to be there. Raises `BadInput` for what cannot be stored."""
        return Row(
            scope=self.scope,
            request_id=column_text("idempotency_key", idempotency_key),
            tool_name=self.tool_name,
            status=Status.REQUESTED,
            attempt=0,
            owner="",
            request_hash=request_fingerprint(request),
            request=self.encoded(request, path="request"),
            response=None,
            failure=None,
            detail=b"",
            threads=threads_text(() if thread_id is None else (thread_id,)),
            claim_until_us=0,
            requested_at_us=self.clock.now_us(),
            first_sent_at_us=None,
            started_at_us=None,
            finished_at_us=None,
        )

    def encoded(self, value: Any, *, path: str) -> bytes:
        """The bytes of a request or response. Raises `UnstorableValue` with its path."""
        try:
            return self.codec.encode(value, path=path)
        except UnstorableValue as error:  # the codec thinks that it works for a checkpointer
            remedy = error.remedy.replace("DeltaSaver(..., serde=", "IdempotentGateway(..., codec=")
            raise UnstorableValue(
                path=error.path, type_name=error.type_name, reason=error.reason, remedy=remedy
            ) from None

    def record(self, wanted: Row) -> Row:
        """Commit the intent, unless the key has a row already; return the one that is there."""
        crash_point.reached("gateway.before_intent")
        row: Row | None = None
        while row is None:  # again if PostgreSQL cleans it up between the two statements
            with self.database.write() as tx:
                fresh = rows.insert(tx, wanted)
                row = wanted if fresh else rows.read(tx, wanted.scope, wanted.request_id)
        crash_point.reached("gateway.after_intent")
        return row

    def read(self, request_id: str) -> Row | None:
        """The row of a key (as the column has it)."""
        with self.database.read() as tx:
            return rows.read(tx, self.scope, request_id)

    def unsettled(self) -> list[Row]:
        with self.database.read() as tx:
            return rows.unsettled(tx, self.scope, self.tool_name)

    def join(self, row: Row, threads: str) -> Row:
        """Note the thread in `threads` beside those that rely on this receipt already."""
        for thread in threads_of(threads):
            while thread not in threads_of(row.threads):
                more = threads_text((*threads_of(row.threads), thread))
                with self.database.write() as tx:
                    if rows.join(tx, row, more):
                        return row._replace(threads=more)
                    now = rows.read(tx, row.scope, row.request_id)
                if now is None:
                    return row  # cleaned up at this moment; what we hold is still the answer
                row = row._replace(threads=now.threads)
        return row

    def intent(self, row: Row, *, attempt: int, written: Row | None = None) -> Intent:
        """What is to be sent with `attempt`, decoded from what is stored, the first time as well.

        Raises `UnloadableValue` if it is not what was fingerprinted. `written`: the row that this
        call has written itself; what comes from there needs no check.
        """
        request = self.codec.decode(row.request)
        key = unescape_text(row.request_id)
        ours = written is not None and row.request is written.request
        by_rules_of_today = row.request_hash.partition(":")[0] == VERSION
        if not ours and by_rules_of_today and request_fingerprint(request) != row.request_hash:
            raise UnloadableValue(
                class_name="a request",
                reason="the stored bytes do not fit their fingerprint",
                remedy="The row is damaged: nothing was sent. Restore it, or decide by hand.",
                where=f"key {key}",
            )
        return Intent(key, request, attempt, unescape_text(row.scope))

    def same(self, row: Row, wanted: Row) -> bool:
        """Whether both rows stand for the same request to the same tool."""
        stored = row.request_hash
        if stored.partition(":")[0] != VERSION:  # other rules: compare by those of today
            stored = request_fingerprint(self.codec.decode(row.request))
        return stored == wanted.request_hash and row.tool_name == wanted.tool_name

    # ------------------------------------------------------------------------ attempts

    def start(self, row: Row) -> Row | None:
        """Take the next attempt. None if somebody else was quicker."""
        now_us = self.clock.now_us()
        mine = row._replace(
            status=Status.STARTED,
            attempt=row.attempt + 1,
            owner=self._owner,
            claim_until_us=now_us + self._claim_life_us,
            started_at_us=now_us,
            first_sent_at_us=now_us if row.first_sent_at_us is None else row.first_sent_at_us,
            failure=None,
            response=None,
            finished_at_us=None,
        )
        with self.database.write() as tx:
            return mine if rows.start(tx, row, mine) else None

    def claim_is_over(self, row: Row) -> bool:
        return self.clock.now_us() >= row.claim_until_us

    def give_up(self, row: Row) -> Row | None:
        """Call a started attempt unknown whose claim has run out. None if it was settled since."""
        return self.still_in_doubt(row, f"{row.owner} took it and did not report within its claim")

    def still_in_doubt(self, row: Row, detail: str) -> Row | None:
        """Note what was found out of somebody's attempt, without settling it."""
        unknown = row._replace(status=Status.UNKNOWN, detail=detail_bytes(detail))
        with self.database.write() as tx:
            return unknown if rows.doubt(tx, row, unknown) else None

    def doubt(self, row: Row, detail: str) -> Row | None:
        """Call our own attempt unknown: it is over now, with an outcome that nobody knows."""
        unknown = row._replace(
            status=Status.UNKNOWN,
            detail=detail_bytes(detail),
            claim_until_us=self.clock.now_us(),
        )
        with self.database.write() as tx:
            return unknown if rows.doubt_own(tx, row, unknown) else None

    def release(self, row: Row) -> None:
        """Give back an attempt that has sent nothing."""
        with self.database.write() as tx:
            rows.release(tx, row)

    # ------------------------------------------------------------------------ outcomes

    def succeed(self, row: Row, response: bytes, detail: str) -> Row | None:
        """Write the receipt, also for an attempt that was given up. None if there is one."""
        done = row._replace(
            status=Status.SUCCEEDED,
            response=response,
            detail=detail_bytes(detail),
            finished_at_us=self.clock.now_us(),
        )
        with self.database.write() as tx:
            return done if rows.succeed(tx, row, done) else None

    def not_sent(self, row: Row, reason: str) -> None:
        """Note that this attempt surely had no effect."""
        self._fail(row, NOT_SENT, None, reason)

    def refuse(self, row: Row, refusal: Refused) -> None:
        """Note the provider's no, for good."""
        try:
            details = self.encoded(refusal.details, path="details")
        except UnstorableValue:  # the no itself must not be lost for its details
            details = self.encoded(repr(refusal.details), path="details")
        self._fail(row, REFUSED, details, refusal.reason)

    def _fail(self, row: Row, failure: str, details: bytes | None, reason: str) -> None:
        failed = row._replace(
            status=Status.FAILED,
            failure=failure,
            response=details,
            detail=detail_bytes(reason),
            finished_at_us=self.clock.now_us(),
        )
        with self.database.write() as tx:
            rows.fail(tx, row, failed)

    def absent(self, row: Row, detail: str) -> bool:
        """An unknown call has surely not happened: the next call may send it."""
        with self.database.write() as tx:
            return rows.settle_absent(tx, row, detail_bytes(detail))

    # ------------------------------------------------------------------------ the end

    def finished_before(self, cutoff_us: int) -> list[tuple[str, str]]:
        """(request_id, threads) of receipts that are at least so old."""
        with self.database.read() as tx:
            return rows.finished_before(tx, self.scope, self.tool_name, cutoff_us)

    def remove(self, request_id: str, threads: str, cutoff_us: int) -> bool:
        """Delete one of them, unless it was joined or used since."""
        with self.database.write() as tx:
            return rows.remove(tx, self.scope, request_id, threads, cutoff_us)

    def receipt_of(self, row: Row, *, replayed: bool = True) -> Receipt:
        return row.receipt(self.codec, replayed=replayed)
