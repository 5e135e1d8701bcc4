"""The newest checkpoint of every thread, without its state.

One statement for all threads: each head says which record is the newest, and a record's metadata
stands in front of its body, so the database does not touch the pages that hold the states.

What is proved: every head, and that none is missing (as in every list of threads); and that the
record a head leads to is there. What is not: the record itself, whose checksum covers its body.
Whoever acts on what the metadata says keeps a check of their own in it, or reads the thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from durable_kit.storage.namespaces import all_logs
from durable_kit.storage.record import thread_key, unpack_id

if TYPE_CHECKING:
    from durable_kit.storage.checkpoint_log import CheckpointLog


class Newest(NamedTuple):
    """What is known of a thread's newest checkpoint. `metadata` is encoded (and sealed)."""

    thread_id: str
    checkpoint_id: str
    state_version: int
    created_at_us: int
    metadata: bytes


def newest_records(log: CheckpointLog) -> list[Newest]:
    """The newest checkpoint in the root namespace of each thread that has one, by thread id.

    Raises `BrokenChain` if a thread may be missing.
    """
    with log.database.read() as tx:
        names = {thread_key(t, ns): t for t, ns in all_logs(tx) if not ns}
        found = tx.rows(
            """
            SELECT h.thread_key, h.latest_sequence, r.checkpoint_id, r.state_version,
                   r.created_at_us, r.metadata
              FROM checkpoint_heads h
              LEFT JOIN checkpoints r
                     ON r.thread_key = h.thread_key AND r.sequence = h.latest_sequence
             WHERE h.namespace = '' AND h.latest_sequence > 0
             ORDER BY h.thread_id
            """
        )
        newest: list[Newest] = []
        for key, sequence, checkpoint_id, state_version, created_at_us, metadata in found:
            if checkpoint_id is None:
                log.rows(tx, names[key], "").broken(
                    "the newest checkpoint is missing", sequence=sequence
                )
            name = unpack_id(checkpoint_id)
            newest.append(Newest(names[key], name, state_version, created_at_us, bytes(metadata)))
        return newest
