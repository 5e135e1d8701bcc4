"""Reading a state back, and never a wrong one.

To give the state of checkpoint 9, `Reader` fetches the chain 9 → 8 → 7 (one statement), checks
every record, collects the addresses that the records point to, fetches those blobs (one
statement), checks them too, and folds. The first failure raises `BrokenChain`. There is no
"best effort": a shorter list or an older value looks like a state and is a lie.

Which checkpoints there are at all is another question; see `listing`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from durable_kit.errors import UnloadableValue
from durable_kit.storage.delta import BrokenDelta
from durable_kit.storage.fold import addresses, brought, read_delta, read_snapshot
from durable_kit.storage.image import Image
from durable_kit.storage.record import (
    ZERO,
    Record,
    WriteRecord,
    blob_of,
    header_of,
    unpack_id,
    view_of_blob,
)
from durable_kit.storage.rows import LogRows
from durable_kit.storage.runs import BODY, PACK


class PendingWrite(NamedTuple):
    """One write of one task, still encoded."""

    task_id: str
    task_path: str
    slot: int
    name: str
    encoded: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint as read: its record, its state (encoded), and the writes that followed it.

    `delta_bytes`: the data that the deltas since the last snapshot brought.
    """

    record: Record
    image: Image
    writes: list[PendingWrite]
    delta_bytes: int

    def state(self, decode: Callable[[str, bytes], Any]) -> dict[str, Any]:
        """The values by name. Entries read together share the objects that they have in common."""
        try:
            return {name: value.decode(partial(decode, name)) for name, value in self.image.items()}
        except UnloadableValue as error:
            raise error.at(
                f"thread {self.record.thread_id!r}, checkpoint {self.record.checkpoint_id}"
            ) from error


class Reader:
    """Turns checked rows into entries."""

    def entries(self, rows: LogRows, sequences: Sequence[int]) -> dict[int, Entry]:
        """The checkpoints `sequences` of one log, by sequence. Three or four statements in all."""
        if not sequences:
            return {}
        records = rows.chain(sequences)
        bodies = {n: self._unpacked(rows, record) for n, record in records.items()}
        wanted: set[tuple[int, int]] = set()
        for sequence, (header, _) in bodies.items():
            wanted |= addresses(header, records[sequence].kind, sequence)
        elsewhere = sorted({n for n, ordinal in wanted if ordinal == BODY} - set(bodies))
        if elsewhere:
            for row in rows.these(elsewhere):
                record = rows.record(row)
                bodies[record.sequence] = self._unpacked(rows, record)
        blobs: dict[tuple[int, int], bytes | memoryview] = {
            (n, BODY): blob for n, (_, blob) in bodies.items()
        }
        counts = {n: record.writes_count for n, record in records.items()}
        targets = set(sequences)
        written: dict[int, list[tuple[WriteRecord, list[Any], bytes]]] = {n: [] for n in targets}
        for write in rows.writes({n for n, at in wanted if at >= 0} | targets, counts):
            blob = blob_of(write.body)
            blobs[write.sequence, write.ordinal] = blob
            if write.sequence in targets:
                written[write.sequence].append((write, header_of(write.body), blob))
        packs = [n for n, at in wanted if at == PACK]
        if packs:
            between = "AND pack BETWEEN :low AND :high"
            for pack in rows.packs(between, low=min(packs), high=max(packs)):
                blobs[pack.pack, PACK] = view_of_blob(pack.body)
        images: dict[int, Image] = {}
        spent: dict[int, int] = {}
        by_id = {record.checkpoint_id: n for n, record in records.items()}
        for sequence, record in records.items():  # ascending: parents first
            header, blob = bodies[sequence]
            try:
                if record.kind == "delta":
                    assert record.parent_sequence is not None
                    images[sequence] = read_delta(
                        images[record.parent_sequence], header, blob, sequence, blobs
                    )
                    spent[sequence] = spent[record.parent_sequence] + brought(header)
                else:
                    image = read_snapshot(header, blob, sequence, blobs)
                    parent = images.get(by_id.get(record.parent_id or "", 0), {})
                    images[sequence] = _sharing(image, parent)
                    spent[sequence] = 0
            except (BrokenDelta, LookupError, TypeError, ValueError) as error:
                rows.broken(
                    f"the record cannot be folded: {error}",
                    sequence=sequence,
                    checkpoint_id=record.checkpoint_id,
                )
        return {
            n: Entry(
                records[n],
                images[n],
                pending(written[n]),
                spent[n],
            )
            for n in sequences
        }

    def header(self, rows: LogRows, record: Record) -> list[Any]:
        """What the body of a record says, without its blob."""
        return self._unpacked(rows, record)[0]

    def sources(
        self, rows: LogRows, sequence: int, count: int
    ) -> tuple[list[tuple[int, int, bytes]], bytes]:
        """The blobs of the writes of one checkpoint, as (sequence, ordinal, blob), and the
        checksum of the last."""
        found = list(rows.writes([sequence], {sequence: count}))
        blobs = [(sequence, write.ordinal, blob_of(write.body)) for write in found]
        return blobs, found[-1].checksum if found else ZERO

    def _unpacked(self, rows: LogRows, record: Record) -> tuple[list[Any], bytes]:
        if record.kind == "awaited":
            return [], b""
        body = rows.plain(record.body, record.sequence)
        try:
            return header_of(body), blob_of(body)
        except (ValueError, zlib.error) as error:
            rows.broken(
                f"the header of the body cannot be read ({error})", sequence=record.sequence
            )


def pending(records: Sequence[tuple[WriteRecord, list[Any], bytes]]) -> list[PendingWrite]:
    """What the write records of one checkpoint come to, in the order in which a run applies them.

    Regular slots keep the first value stored, negative ones the last. The order is by task path,
    task id and slot: the one that LangGraph applies a super-step's writes in.
    """
    kept: dict[tuple[str, int], PendingWrite] = {}
    for record, header, blob in records:
        task_id, task_path = unpack_id(record.task_id), unpack_id(record.task_path)
        at = 0
        for slot, name, size in header:
            if slot < 0 or (task_id, slot) not in kept:
                encoded = blob[at : at + size]
                kept[task_id, slot] = PendingWrite(task_id, task_path, slot, name, encoded)
            at += size
    return sorted(kept.values(), key=lambda write: (write.task_path, write.task_id, write.slot))


def _sharing(image: Image, parent: Image) -> Image:
    """The image of a snapshot, sharing the buffers of the state before it.

    Folding starts afresh at each snapshot. When a history is read, the state before it is there
    as well, and most of the two is the same.
    """
    return {
        name: value.sharing(parent[name]) if name in parent else value
        for name, value in image.items()
    }
