"""The table of receipts: every arrow of `receipt.py` as one statement.

Each takes the row as it was seen and says in its WHERE clause what it relies on. Where that no
longer holds it changes nothing and returns False: the caller has been overtaken and looks again.
All of them join the caller's transaction, none commits.
"""

from __future__ import annotations

from typing import Any

from durable_kit.effects.receipt import NOT_SENT, Row, Status
from durable_kit.storage.database import Tx

_COLUMNS = """scope, request_id, tool_name, status, attempt, owner, request_hash, request, response,
              failure, detail, threads, claim_until_us, requested_at_us, first_sent_at_us,
              started_at_us, finished_at_us"""


def _row(columns: Any) -> Row:
    scope, request_id, tool_name, status, attempt, owner, request_hash, *rest = columns
    request, response, failure, detail, *times = rest
    return Row(
        scope,
        request_id,
        tool_name,
        Status(status),
        attempt,
        owner,
        request_hash,
        bytes(request),
        None if response is None else bytes(response),
        failure,
        bytes(detail),
        *times,
    )


def insert(tx: Tx, row: Row) -> bool:
    """Commit to an intent. False if the key is taken; then nothing is changed."""
    cursor = tx.execute(
        """
        INSERT INTO tool_call_receipts
               (scope, request_id, tool_name, status, attempt, owner, request_hash, request,
                detail, threads, claim_until_us, requested_at_us)
        VALUES (:scope, :request_id, :tool_name, 'requested', 0, '', :request_hash, :request,
                :detail, :threads, 0, :requested_at_us)
        ON CONFLICT (scope, request_id) DO NOTHING
        """,
        scope=row.scope,
        request_id=row.request_id,
        tool_name=row.tool_name,
        request_hash=row.request_hash,
        request=row.request,
        detail=row.detail,
        threads=row.threads,
        requested_at_us=row.requested_at_us,
    )
    return bool(cursor.rowcount == 1)


def read(tx: Tx, scope: str, request_id: str) -> Row | None:
    found = tx.row(
        f"""
        SELECT {_COLUMNS}
          FROM tool_call_receipts
         WHERE scope = :scope AND request_id = :request_id
        """,
        scope=scope,
        request_id=request_id,
    )
    return None if found is None else _row(found)


def unsettled(tx: Tx, scope: str, tool_name: str) -> list[Row]:
    """What may have been sent and has no receipt, oldest first."""
    found = tx.rows(
        f"""
        SELECT {_COLUMNS}
          FROM tool_call_receipts
         WHERE status IN ('started', 'unknown') AND scope = :scope AND tool_name = :tool_name
         ORDER BY requested_at_us, request_id
        """,
        scope=scope,
        tool_name=tool_name,
    )
    return [_row(columns) for columns in found]


def join(tx: Tx, row: Row, threads: str) -> bool:
    """Note that one more thread relies on this receipt. False if another was noted meanwhile."""
    cursor = tx.execute(
        """
        UPDATE tool_call_receipts
           SET threads = :threads
         WHERE scope = :scope AND request_id = :request_id AND threads = :seen
        """,
        threads=threads,
        seen=row.threads,
        scope=row.scope,
        request_id=row.request_id,
    )
    return bool(cursor.rowcount == 1)


def start(tx: Tx, row: Row, mine: Row) -> bool:
    """Take the next attempt, from the state that was seen. False if somebody else has."""
    cursor = tx.execute(
        """
        UPDATE tool_call_receipts
           SET status = 'started',
               attempt = :attempt,
               owner = :owner,
               claim_until_us = :claim_until_us,
               started_at_us = :started_at_us,
               first_sent_at_us = :first_sent_at_us,
               response = NULL,
               failure = NULL,
               finished_at_us = NULL
         WHERE scope = :scope AND request_id = :request_id
           AND status = :seen_status AND attempt = :seen_attempt AND owner = :seen_owner
        """,
        attempt=mine.attempt,
        owner=mine.owner,
        claim_until_us=mine.claim_until_us,
        started_at_us=mine.started_at_us,
        first_sent_at_us=mine.first_sent_at_us,
        scope=row.scope,
        request_id=row.request_id,
        seen_status=row.status.value,
        seen_attempt=row.attempt,
        seen_owner=row.owner,
    )
    return bool(cursor.rowcount == 1)


def succeed(tx: Tx, row: Row, done: Row) -> bool:
    """Write the receipt. False if there is one, or the provider's no.

    Here nobody has to be the owner. That it happened is a fact, whoever brings it and however late,
    and without it the next call might send again what has happened.
    """
    cursor = tx.execute(
        """
        UPDATE tool_call_receipts
           SET status = 'succeeded', failure = NULL, response = :response, detail = :detail,
               owner = :owner, first_sent_at_us = :first_sent_at_us,
               finished_at_us = :finished_at_us
         WHERE scope = :scope AND request_id = :request_id
           AND status <> 'succeeded' AND COALESCE(failure, '') <> 'refused'
           AND attempt >= :attempt
        """,
        response=done.response,
        detail=done.detail,
        owner=done.owner,
        first_sent_at_us=done.first_sent_at_us,
        finished_at_us=done.finished_at_us,
        scope=row.scope,
        request_id=row.request_id,
        attempt=row.attempt,
    )
    return bool(cursor.rowcount == 1)


def fail(tx: Tx, row: Row, failed: Row) -> bool:
    """Note a failure whose outcome is known: its `failure` is NOT_SENT or REFUSED."""
    # The window of a provider's key begins with the first attempt that may have been sent.
    forget = ", first_sent_at_us = NULL" if failed.failure == NOT_SENT else ""
    cursor = tx.execute(
        f"""
        UPDATE tool_call_receipts
           SET status = 'failed', failure = :failure, response = :response, detail = :detail,
               finished_at_us = :finished_at_us{forget}
         WHERE scope = :scope AND request_id = :request_id
           AND status IN ('started', 'unknown') AND attempt = :attempt AND owner = :owner
        """,
        failure=failed.failure,
        response=failed.response,
        detail=failed.detail,
        finished_at_us=failed.finished_at_us,
        scope=row.scope,
        request_id=row.request_id,
        attempt=row.attempt,
        owner=row.owner,
    )
    return bool(cursor.rowcount == 1)


def release(tx: Tx, row: Row) -> bool:
    """Give back an attempt that sent nothing, as if it had not been taken."""
    cursor = tx.execute(
        """
        UPDATE tool_call_receipts
           SET status = 'requested', attempt = attempt - 1, owner = '', claim_until_us = 0,
               first_sent_at_us = NULL
         WHERE scope = :scope AND request_id = :request_id
           AND status = 'started' AND attempt = :attempt AND owner = :owner
        """,
        scope=row.scope,
        request_id=row.request_id,
        attempt=row.attempt,
        owner=row.owner,
    )
    return bool(cursor.rowcount == 1)


def doubt(tx: Tx, row: Row, unknown: Row) -> bool:
    """Say that nobody knows, if this attempt is still as it was seen."""
    cursor = tx.execute(
        """
        UPDATE tool_call_receipts
           SET status = 'unknown', detail = :detail
         WHERE scope = :scope AND request_id = :request_id
           AND status IN ('started', 'unknown') AND attempt = :attempt AND owner = :owner
           AND claim_until_us = :seen_until_us
        """,
        detail=unknown.detail,
        scope=row.scope,
        request_id=row.request_id,
        attempt=row.attempt,
        owner=row.owner,
        seen_until_us=row.claim_until_us,
    )
    return bool(cursor.rowcount == 1)


def doubt_own(tx: Tx, row: Row, unknown: Row) -> bool:
    """Say that our attempt ended, and nobody knows how. Its claim ends with it.

    Also where somebody has called it absent meanwhile: it was still being sent then.
    """
    cursor = tx.execute(
        """
        UPDATE tool_call_receipts
           SET status = 'unknown', detail = :detail, owner = :owner,
               claim_until_us = :claim_until_us, first_sent_at_us = :first_sent_at_us
         WHERE scope = :scope AND request_id = :request_id AND attempt = :attempt
           AND (status = 'requested' OR status IN ('started', 'unknown') AND owner = :owner)
        """,
        detail=unknown.detail,
        owner=row.owner,
        claim_until_us=unknown.claim_until_us,
        first_sent_at_us=row.first_sent_at_us,
        scope=row.scope,
        request_id=row.request_id,
        attempt=row.attempt,
    )
    return bool(cursor.rowcount == 1)


def settle_absent(tx: Tx, row: Row, detail: bytes) -> bool:
    """Let it be sent again: what was unknown has surely not happened."""
    cursor = tx.execute(
        """
        UPDATE tool_call_receipts
           SET status = 'requested', detail = :detail, owner = '', claim_until_us = 0,
               first_sent_at_us = NULL
         WHERE scope = :scope AND request_id = :request_id
           AND status = 'unknown' AND attempt = :attempt AND owner = :owner
        """,
        detail=detail,
        scope=row.scope,
        request_id=row.request_id,
        attempt=row.attempt,
        owner=row.owner,
    )
    return bool(cursor.rowcount == 1)


def finished_before(tx: Tx, scope: str, tool_name: str, cutoff_us: int) -> list[tuple[str, str]]:
    """(request_id, threads) of receipts that are older than the cut-off."""
    found = tx.rows(
        """
        SELECT request_id, threads
          FROM tool_call_receipts
         WHERE status IN ('succeeded', 'failed') AND finished_at_us <= :cutoff_us
           AND scope = :scope AND tool_name = :tool_name
        """,
        cutoff_us=cutoff_us,
        scope=scope,
        tool_name=tool_name,
    )
    return [(request_id, threads) for request_id, threads in found]


def remove(tx: Tx, scope: str, request_id: str, threads: str, cutoff_us: int) -> bool:
    """Delete a receipt that nobody has joined or used since it was looked at."""
    cursor = tx.execute(
        """
        DELETE FROM tool_call_receipts
         WHERE scope = :scope AND request_id = :request_id AND threads = :threads
           AND status IN ('succeeded', 'failed') AND finished_at_us <= :cutoff_us
        """,
        scope=scope,
        request_id=request_id,
        threads=threads,
        cutoff_us=cutoff_us,
    )
    return bool(cursor.rowcount == 1)
