"""One record of the log, and how damage to it is noticed.

A database returns the bytes of a row without asking whether they are still the bytes that were
stored. A cosmic ray, a bad cable, a restore from half a backup or a helpful UPDATE by hand all
look the same: a row. So every record carries a sha256 over everything it says *and* over its
parent's checksum:

    7 snapshot  checksum = H(header, metadata, body)
    8 delta     checksum = H(header, metadata, body, checksum of 7)
    9 delta     checksum = H(header, metadata, body, checksum of 8)

A changed byte breaks its own record. A record swapped with another, moved to another thread or
hung under another parent breaks too, since the header says where it belongs. A record that was
replaced by an older, valid version of itself breaks its children.

The writes of a checkpoint form a chain of the same kind, each covering the one before; the
checkpoint counts them, so the last cannot vanish quietly either.

What this is not: protection against somebody who wants to deceive you. Whoever can write rows can
compute checksums. That takes a key (`EncryptedSerializer` brings one).

The body of a record is a small header (what changed, and where the new bytes are) and a blob (the
new bytes). An `Address` points into a blob, of this record or of an earlier one, so that a
message stored as a pending write is not stored again in the checkpoint that adopts it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import ormsgpack

from durable_kit.errors import BadInput

Kind = Literal["snapshot", "delta", "awaited"]

STATE_VERSION = 1  # the shape of the states that a log stores, unless it is told another
ZERO = bytes(32)


@dataclass(frozen=True, slots=True)
class Record:
    """A stored checkpoint, without its state. Sizes in bytes, `created_at_us` in UTC."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    parent_id: str | None
    sequence: int
    parent_sequence: int | None
    kind: Kind
    depth: int
    state_version: int
    created_at_us: int
    run_key: int | None
    writes_count: int
    metadata: bytes
    body: bytes
    checksum: bytes

    @property
    def stored_bytes(self) -> int:
        return len(self.metadata) + len(self.body)

    def signed(self, parent_checksum: bytes | None) -> Record:
        """This record with the checksum that it must have under its parent."""
        checksum = self.expected_checksum(parent_checksum)
        fields: list[Any] = [*_all_but_checksum(self), checksum]
        return Record(*fields)

    def expected_checksum(self, parent_checksum: bytes | None) -> bytes:
        """The checksum this record must have under a parent with `parent_checksum`.

        A snapshot does not rest on its parent's bytes: it may outlive it.
        """
        header = (
            self.thread_id,
            self.namespace,
            pack_id(self.checkpoint_id),
            # A delta's parent is named by its row; the parent's checksum below covers its id.
            None if self.parent_id is None or self.kind == "delta" else pack_id(self.parent_id),
            self.sequence,
            self.parent_sequence,
            self.kind,
            self.depth,
            self.state_version,
            self.created_at_us,
            self.run_key,
            parent_checksum if self.kind == "delta" else None,
            len(self.metadata),
        )
        return _hash(header, self.metadata, self.body)


_all_but_checksum = attrgetter(*Record.__match_args__[:-1])  # the checksum is the last field


class WriteRecord(NamedTuple):
    """What one call of put_writes stored: the writes of one task, started from one checkpoint.

    `task_id` and `task_path` are packed, as they lie in the row: thousands of these are checked
    in one read.
    """

    sequence: int
    ordinal: int
    task_id: bytes
    task_path: bytes
    body: bytes
    checksum: bytes

    def expected_checksum(self, key: int, previous: bytes) -> bytes:
        """The checksum this record must have after a write record with the checksum `previous`."""
        return _hash((key, *self[:4], previous), self.body)


class PackRecord(NamedTuple):
    """Many write records in one row; see `packs.py`."""

    pack: int
    first_sequence: int
    last_sequence: int
    body: bytes
    checksum: bytes

    def expected_checksum(self, key: int) -> bytes:
        return _hash((key, *self[:3]), self.body)

    def checksum_of(self, sequence: int, ordinal: int) -> bytes:
        """What stands for the checksum of one packed record, for a late one to follow."""
        return _hash((sequence, ordinal), self.checksum)


@dataclass(frozen=True, slots=True)
class Head:
    """What one log must add up to. See `schema.py`."""

    thread_id: str
    namespace: str
    next_sequence: int
    latest_sequence: int
    records: int
    sequence_sum: int
    namespaces: int
    digest: bytes

    @property
    def checksum(self) -> bytes:
        return _hash(
            (
                self.thread_id,
                self.namespace,
                self.next_sequence,
                self.latest_sequence,
                self.records,
                self.sequence_sum,
                self.namespaces,
                self.digest,
            )
        )

    def with_one_more(self, sequence: int, checksum: bytes, latest: int | None = None) -> Head:
        """The head after one more record, the highest so far; `latest` if it is a checkpoint."""
        return Head(
            self.thread_id,
            self.namespace,
            sequence + 1,
            self.latest_sequence if latest is None else latest,
            self.records + 1,
            self.sequence_sum + sequence,
            self.namespaces,
            xor(self.digest, checksum),
        )

    def with_one_less(self, sequence: int, checksum: bytes) -> Head:
        """The head after one record has gone."""
        return replace(
            self,
            records=self.records - 1,
            sequence_sum=self.sequence_sum - sequence,
            digest=xor(self.digest, checksum),
        )


def xor(a: bytes, b: bytes) -> bytes:
    """Combine two checksums in a way that does not depend on order and can be taken back."""
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).to_bytes(32, "big")


@lru_cache(maxsize=4096)
def thread_key(thread_id: str, namespace: str) -> int:
    """The eight-byte name of a log."""
    return _short_hash(thread_id, namespace)


def run_key(run_id: str) -> int:
    """The eight-byte name of a run."""
    return _short_hash("run", run_id)


@lru_cache(maxsize=4096)
def pack_id(text: str) -> bytes:
    """An id as bytes: 17 for a UUID in its usual form, otherwise its UTF-8 and one more."""
    if len(text) == 36:
        try:
            raw = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            pass
        else:
            if len(raw) == 16 and _uuid_text(raw) == text:
                return b"u" + raw
    return b"t" + text.encode("utf-8", "surrogatepass")


def unpack_id(data: bytes) -> str:
    """The inverse of `pack_id`. Raises ValueError for bytes that it never gives."""
    if data[:1] == b"u" and len(data) == 17:
        return _uuid_text(data[1:])
    if data[:1] == b"t":
        return bytes(data[1:]).decode("utf-8", "surrogatepass")
    raise ValueError("not a packed id")


def _uuid_text(raw: bytes) -> str:
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def escape_text(text: str) -> str:
    """Make any text fit a TEXT column: PostgreSQL has no NUL, and lone surrogates fit nowhere."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{text!r} holds a lone surrogate at {error.start}, which is not text. Use another id."
        ) from error
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def unescape_text(text: str) -> str:
    """The inverse of `escape_text`."""
    if "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))


def pack_body(header: Sequence[Any], blob: bytes) -> bytes:
    """Header and blob as one string. A long header (a list of many addresses) is deflated."""
    packed = ormsgpack.packb(header)
    if len(packed) > 512:
        packed = ormsgpack.packb(zlib.compress(packed, 6))
    return len(packed).to_bytes(4, "big") + packed + blob


def header_of(body: bytes) -> list[Any]:
    """The header that `pack_body` was given. Raises ValueError or zlib.error for other bytes."""
    header = ormsgpack.unpackb(body[4 : 4 + int.from_bytes(body[:4], "big")])
    if isinstance(header, bytes):
        header = ormsgpack.unpackb(zlib.decompress(header))
    if not isinstance(header, list):
        raise ValueError("not the body of a record")
    return header


def blob_of(body: bytes) -> bytes:
    """The blob that `pack_body` was given."""
    return body[4 + int.from_bytes(body[:4], "big") :]


def view_of_blob(body: bytes) -> memoryview:
    """The same without a copy, for large ones that are only cut from."""
    return memoryview(body)[4 + int.from_bytes(body[:4], "big") :]


def _hash(header: tuple[Any, ...], *parts: bytes) -> bytes:
    digest = hashlib.sha256(ormsgpack.packb(header))
    for part in parts:
        digest.update(part)
    return digest.digest()


def _short_hash(*texts: str) -> int:
    packed = ormsgpack.packb([text.encode("utf-8", "surrogatepass") for text in texts])
    return int.from_bytes(hashlib.sha256(packed).digest()[:8], "big", signed=True)
