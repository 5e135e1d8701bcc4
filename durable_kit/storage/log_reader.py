"""Reading a log: one checkpoint, a history, a line of ancestors.

Each is one read transaction, so everything in it belongs to the same moment, and each takes a fixed
number of statements, whatever the length of the history.

    read        the newest checkpoint, or the one with an id
    history     many, the one written last first, sharing the buffers of what they have in common
    ancestors   a checkpoint, its parent, its parent's parent …

`CheckpointLog` adds the writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from durable_kit.storage.database import Database, Tx
from durable_kit.storage.listing import check_identity, find_checkpoint, list_checkpoints
from durable_kit.storage.materialize import Entry, Reader
from durable_kit.storage.record import Head, Record
from durable_kit.storage.rows import LogRows
from durable_kit.storage.seal import NoSeal, Seal
from durable_kit.storage.tip import StateCodec


class LogReader:
    """The logs of one database, for reading. Raises `BrokenChain`, never gives a wrong state."""

    def __init__(self, database: Database, codec: StateCodec, *, seal: Seal | None = None) -> None:
        self.database = database
        self.codec = codec
        self.seal = seal or NoSeal()
        self.reader = Reader()

    def rows(self, tx: Tx, thread_id: str, namespace: str) -> LogRows:
        """The rows of one log in a transaction."""
        return LogRows(tx, thread_id, namespace, self.seal)

    def read(
        self, thread_id: str, namespace: str, checkpoint_id: str | None = None
    ) -> Entry | None:
        """One checkpoint, the newest if no id is given; None if there is none.

        Raises `BrokenChain` rather than give a state that does not check out.
        """
        with self.database.read() as tx:
            rows = self.rows(tx, thread_id, namespace)
            head = rows.head()
            if head is None:
                return None
            if checkpoint_id is not None:
                return self._entry(rows, head, checkpoint_id)
            latest = head.latest_sequence
            return self.reader.entries(rows, [latest])[latest] if latest else None

    def _entry(self, rows: LogRows, head: Head, checkpoint_id: str) -> Entry | None:
        found = find_checkpoint(rows, head, checkpoint_id)
        if found is None:
            return None
        entry = self.reader.entries(rows, [found.sequence])[found.sequence]
        check_identity(rows, entry.record, checkpoint_id)
        return entry

    def history(
        self,
        thread_id: str,
        namespace: str,
        *,
        checkpoint_id: str | None = None,
        before: str | None = None,
        limit: int | None = None,
        matches: Callable[[Record], bool] | None = None,
    ) -> list[Entry]:
        """The checkpoints of one log, the one written last first.

        A fixed number of statements, whatever the length. The entries share the buffers of what
        their states have in common.
        """
        with self.database.read() as tx:
            rows = self.rows(tx, thread_id, namespace)
            head = rows.head()
            if head is None:
                return []
            chosen = list_checkpoints(
                rows,
                head,
                checkpoint_id=checkpoint_id,
                before=before,
                limit=limit,
                matches=matches,
            )
            entries = self.reader.entries(rows, sorted(chosen))
        return [entries[sequence] for sequence in chosen]

    def ancestors(self, thread_id: str, namespace: str, checkpoint_id: str) -> Iterator[Entry]:
        """A checkpoint and its ancestors, child before parent, read in stretches of one chain."""
        wanted: str | None = checkpoint_id
        while wanted is not None:
            with self.database.read() as tx:
                rows = self.rows(tx, thread_id, namespace)
                head = rows.head()
                found = find_checkpoint(rows, head, wanted) if head is not None else None
                if found is None:
                    return
                stretch = sorted(rows.chain([found.sequence]), reverse=True)
                entries = self.reader.entries(rows, sorted(stretch))
                check_identity(rows, entries[found.sequence].record, wanted)
            for sequence in stretch:
                yield entries[sequence]
            wanted = entries[stretch[-1]].record.parent_id
