"""Many small rows into one.

Reading a conversation of 3,000 messages from 3,000 write records means 3,000 rows, 3,000
checksums and 3,000 cuts in Python, most of the time of a read. And each row costs more than a
hundred bytes beside its message: keys, an index entry, a checksum.

So when a snapshot is written, the write records that have piled up before it are moved into one
*pack*. Nothing is lost: `expand` gives the records back, for a history, a resume or a late write.
But the values lie in columns now, one channel after the other:

    rows     (7,0) messages=[m7] n=7    (8,0) messages=[m8] n=8    (9,0) messages=[m9] n=9
    pack     header: which record wrote what     area: m7 m8 m9 │ 7 8 9

and the messages of sixty-four super-steps are one piece of bytes, which a snapshot addresses with
four numbers and a read takes in one cut. Each byte is moved once; the rows' space is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from durable_kit.storage.delta import array_header, pack_array_header
from durable_kit.storage.runs import PACK, Address

PACK_AT_LEAST = 64  # write records; below this a pack is not worth the moving


@dataclass(frozen=True, slots=True)
class Piece:
    """One write of one record on its way into or out of a pack: `items` is -1 for a non-list."""

    slot: int
    name: str
    items: int
    body: bytes


@dataclass(frozen=True, slots=True)
class PackedWrites:
    """The writes of one record: `pieces` make its blob, in order."""

    sequence: int
    ordinal: int
    task_id: bytes
    task_path: bytes
    pieces: list[Piece]

    def header(self) -> list[list[Any]]:
        """The header of the record that was packed."""
        return [[p.slot, p.name, len(p.body) + _lead(p)] for p in self.pieces]

    def blob(self) -> bytes:
        """The blob of the record that was packed."""
        return b"".join(
            part
            for piece in self.pieces
            for part in (
                (pack_array_header(piece.items), piece.body) if piece.items >= 0 else (piece.body,)
            )
        )


def take_apart(
    sequence: int, ordinal: int, task_id: bytes, task_path: bytes, header: list[Any], blob: bytes
) -> PackedWrites:
    """The writes of one record, its lists without their headers."""
    pieces: list[Piece] = []
    at = 0
    for slot, name, size in header:
        value = blob[at : at + size]
        lead = array_header(value)
        pieces.append(
            Piece(slot, name, -1, value)
            if lead is None
            else Piece(slot, name, lead[0], value[lead[1] :])
        )
        at += size
    return PackedWrites(sequence, ordinal, task_id, task_path, pieces)


def write_pack(
    first: int, pack: int, records: Sequence[PackedWrites]
) -> tuple[list[Any], bytes, Callable[[Address], Address | None]]:
    """(header, area, where an address into one of the records is now) of a pack."""
    names = list(dict.fromkeys(piece.name for record in records for piece in record.pieces))
    paths = list(dict.fromkeys(record.task_path for record in records))
    columns: dict[str, list[bytes]] = {name: [] for name in names}
    entries: list[list[Any]] = []
    for record in records:
        flat: list[int] = []
        for piece in record.pieces:
            columns[piece.name].append(piece.body)
            flat += (piece.slot, names.index(piece.name), piece.items, len(piece.body))
        place = [record.sequence - first, record.ordinal]
        entries.append([*place, record.task_id, paths.index(record.task_path), flat])
    area = b"".join(body for bodies in columns.values() for body in bodies)
    return [names, paths, entries], area, _mover(pack, records, names, columns)


def read_pack(first: int, header: list[Any], area: bytes) -> Iterator[PackedWrites]:
    """The inverse of `write_pack`."""
    names, paths, entries = header
    sizes = dict.fromkeys(range(len(names)), 0)
    for *_, flat in entries:
        for name, size in zip(flat[1::4], flat[3::4], strict=True):
            sizes[name] += size
    at, starts = 0, dict[int, int]()
    for name, size in sizes.items():
        starts[name] = at
        at += size
    for back, ordinal, task_id, path, flat in entries:
        pieces: list[Piece] = []
        for place in range(0, len(flat), 4):
            slot, name, items, size = flat[place : place + 4]
            start = starts[name]
            starts[name] = start + size
            pieces.append(Piece(slot, names[name], items, area[start : start + size]))
        yield PackedWrites(first + back, ordinal, task_id, paths[path], pieces)


def _mover(
    pack: int,
    records: Sequence[PackedWrites],
    names: list[str],
    columns: dict[str, list[bytes]],
) -> Callable[[Address], Address | None]:
    next_in_area: dict[str, int] = {}
    at = 0
    for name in names:
        next_in_area[name] = at
        at += sum(map(len, columns[name]))
    moved: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for record in records:
        in_blob = 0
        spots = moved[record.sequence, record.ordinal] = []
        for piece in record.pieces:
            in_blob += _lead(piece)
            spots.append((in_blob, in_blob + len(piece.body), next_in_area[piece.name]))
            in_blob += len(piece.body)
            next_in_area[piece.name] += len(piece.body)

    def move(address: Address) -> Address | None:
        spots = moved.get((address.sequence, address.ordinal))
        if spots is None:
            return address
        for start, end, in_area in spots:
            if start <= address.start and address.start + address.length <= end:
                return Address(pack, PACK, in_area + address.start - start, address.length)
        return None  # it lies across two values: let it be written out

    return move


def _lead(piece: Piece) -> int:
    return len(pack_array_header(piece.items)) if piece.items >= 0 else 0
