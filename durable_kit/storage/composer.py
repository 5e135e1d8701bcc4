"""What a record says: a delta on its parent's state, or a snapshot.

The state has been compared with the parent's (`tip.plan`); what remains is to say the changes in as
few bytes as can be, and to sign them. A delta is made from what is in memory alone, so it can be
made before the transaction, while another writer waits for the disk. A snapshot moves older writes
into a pack, and needs the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from durable_kit.storage.fold import Writer, write_delta, write_snapshot
from durable_kit.storage.image import Image, full_size, snapshot_size
from durable_kit.storage.packs import PACK_AT_LEAST, take_apart, write_pack
from durable_kit.storage.record import (
    ZERO,
    Record,
    blob_of,
    header_of,
    pack_body,
)
from durable_kit.storage.rows import LogRows
from durable_kit.storage.seal import Seal
from durable_kit.storage.snapshot_policy import Chain, SnapshotPolicy
from durable_kit.storage.tip import Plan, StateCodec, Tip, plan_snapshot


@dataclass(frozen=True, slots=True)
class Draft:
    """What is known of a record before its place in the log is."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    parent_id: str | None
    metadata: bytes
    run_key: int | None
    created_at_us: int
    state_version: int


class Composer:
    """Makes the records of one log. Keeps nothing between two of them."""

    def __init__(
        self, codec: StateCodec, seal: Seal, policy: SnapshotPolicy, *, trust_identity: bool
    ) -> None:
        self.codec = codec
        self.seal = seal
        self.policy = policy
        self.trust_identity = trust_identity

    def delta(
        self,
        draft: Draft,
        sequence: int,
        tip: Tip,
        planned: Plan,
        sources: Sequence[tuple[int, int, bytes]],
    ) -> tuple[Record, Tip] | None:
        """The record as a delta, and the tip that it leaves; None if a snapshot is due."""
        image = tip.image
        size = full_size if self.policy.self_contained else snapshot_size
        chain = Chain(
            depth=tip.depth + 1,
            delta_bytes=tip.delta_bytes + planned.new_bytes,
            snapshot_bytes=size(image) + 16,
        )
        if self.policy.wants_snapshot(chain):
            return None
        writer = Writer(sequence, sources)
        header, image = write_delta(image, planned.changes, writer)
        record = self.sealed(draft, sequence, header, bytes(writer.blob), tip)
        return record, Tip.of(record, chain.delta_bytes, image, objects=planned.objects)

    def snapshot(
        self,
        rows: LogRows,
        draft: Draft,
        sequence: int,
        tip: Tip | None,
        planned: Plan,
        state: Mapping[str, Any],
    ) -> tuple[Record, Tip]:
        """The record as a snapshot, and the tip that it leaves."""
        image: Image = {}
        sources: list[tuple[int, int, bytes]] = []
        if tip is not None:
            image, sources = tip.image, tip.sources
            if self.trust_identity:
                planned = plan_snapshot(tip, planned, state, self.codec)
            # write_snapshot tells the tip's values that they lie in this record. If it is rolled
            # back they never did: without its checksum, the tip is read from the log again.
            tip.checksum = b""
        finder = Writer(sequence, sources, finds_only=True)
        _, image = write_delta(image, planned.changes, finder)
        if tip is not None:
            self._pack_writes(rows, sequence, image)
        writer = Writer(sequence)
        header = write_snapshot(image, writer, self_contained=self.policy.self_contained)
        record = self.sealed(draft, sequence, header, bytes(writer.blob), None)
        return record, Tip.of(record, 0, image, objects=planned.objects)

    def _pack_writes(self, rows: LogRows, sequence: int, image: Image) -> None:
        """Move the write records before `sequence` into one pack, if there are enough of them."""
        places = rows.not_packed(sequence)
        waiting = {place[0] for place in places}
        if len(waiting) < PACK_AT_LEAST:
            return
        records = [
            take_apart(*write[:4], header_of(write.body), blob_of(write.body))
            for write in rows.writes(waiting, {})
            if write[:2] in places  # the others lie in a pack already: these came late
        ]
        first, last = min(waiting), max(waiting)
        header, area, move = write_pack(first, sequence, records)
        rows.delete_writes(waiting)
        rows.insert_pack(sequence, first, last, pack_body(header, area))
        for value in image.values():
            value.move(move)

    def sealed(
        self,
        draft: Draft | Record,
        sequence: int,
        header: list[Any],
        blob: bytes,
        parent: Tip | Record | None,
    ) -> Record:
        """The record that says `header` and `blob`: a delta on `parent`, or a snapshot."""
        record = Record(
            draft.thread_id,
            draft.namespace,
            draft.checkpoint_id,
            draft.parent_id,
            sequence=sequence,
            parent_sequence=parent.sequence if parent is not None else None,
            kind="delta" if parent is not None else "snapshot",
            depth=parent.depth + 1 if parent is not None else 0,
            state_version=draft.state_version,
            created_at_us=draft.created_at_us,
            run_key=draft.run_key,
            writes_count=draft.writes_count if isinstance(draft, Record) else 0,
            metadata=draft.metadata,
            body=self.seal.seal(pack_body(header, blob)),
            checksum=ZERO,
        )
        return record.signed(parent.checksum if parent is not None else None)
