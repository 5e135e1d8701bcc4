"""Where bytes lie in the log.

The body of a 3,000-message conversation is scattered over 3,000 write records. A list of 3,000
address objects would be more work for Python's garbage collector than reading the messages
(measured: 80 ms of a 100 ms read). `Runs` keeps the addresses as plain numbers in one array and
makes `Address` objects only for who asks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

BODY = -1  # the `ordinal` of an address into a checkpoint's own body
PACK = -3  # … into the area of a pack, which is numbered like the record it was made with
LOST = -2  # the `ordinal` of bytes whose place in the log is about to go


class Address(NamedTuple):
    """`length` bytes from `start` of a blob: of the writes (`sequence`, `ordinal`), of the
    checkpoint `sequence` itself where `ordinal` is `BODY`, of a pack where it is `PACK`."""

    sequence: int
    ordinal: int
    start: int
    length: int


class Runs:
    """Addresses in order. Together they locate `length` bytes."""

    __slots__ = ("_numbers", "length")

    def __init__(self, addresses: Iterable[Address] = ()) -> None:
        self._numbers = array("q")
        self.length = 0
        for address in addresses:
            self.add(address)

    @classmethod
    def at(cls, address: Address) -> Runs:
        """The runs of one address."""
        runs = cls()
        if address.length:
            runs._numbers.extend(address)
            runs.length = address.length
        return runs

    def __len__(self) -> int:
        return len(self._numbers) // 4

    def __iter__(self) -> Iterator[Address]:
        numbers = iter(self._numbers)
        return map(Address._make, zip(numbers, numbers, numbers, numbers, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and self._numbers == other._numbers

    __hash__ = None  # type: ignore[assignment] # it grows

    def __repr__(self) -> str:
        return f"Runs({list(self)!r})"

    def add(self, address: Address) -> None:
        """One more; joined with the last where it goes on right behind it.

        Nothing lies nowhere: an address of no bytes would only tie two records together.
        """
        if not address.length:
            return
        numbers = self._numbers
        self.length += address.length
        if (
            numbers
            and numbers[-4] == address.sequence
            and numbers[-3] == address.ordinal
            and numbers[-2] + numbers[-1] == address.start
            and address.ordinal != LOST
        ):
            numbers[-1] += address.length
        else:
            numbers.extend(address)

    def extend(self, others: Iterable[Address]) -> None:
        for address in others:
            self.add(address)

    def first(self, length: int) -> Runs:
        """The runs of the first `length` bytes (of all, if there are fewer)."""
        if length >= self.length:
            return self
        kept = Runs()
        for run in self:
            if kept.length >= length:
                break
            kept.add(run._replace(length=min(run.length, length - kept.length)))
        return kept

    def rest(self, length: int) -> Runs:
        """The runs of what follows the first `length` bytes."""
        left = Runs()
        for run in self:
            dropped = min(run.length, length)
            length -= dropped
            if run.length > dropped:
                left.add(run._replace(start=run.start + dropped, length=run.length - dropped))
        return left

    def without(self, gone: Callable[[Address], bool]) -> Runs:
        """The same runs, with LOST in place of those that are `gone`."""
        return Runs(Address(0, LOST, 0, run.length) if gone(run) else run for run in self)

    def moved(self, move: Callable[[Address], Address | None]) -> Runs:
        """The same runs at their new places, LOST where there is none."""
        return Runs(move(run) or Address(0, LOST, 0, run.length) for run in self)

    # -- as they stand in a record's header ----------------------------------------------------

    def pack(self, sequence: int) -> int | list[int]:
        """Relative to the record `sequence`: [how far back, ordinal, start, length, …].

        The usual case, the next bytes of the record's own blob, is their length alone.
        """
        numbers = self._numbers
        if len(numbers) == 4 and numbers[0] == sequence and numbers[1] == BODY:
            return numbers[3]
        packed = numbers.tolist()
        packed[::4] = [sequence - one for one in packed[::4]]
        return packed

    @classmethod
    def unpack(cls, packed: int | Sequence[int], sequence: int, at: int) -> Runs:
        """The inverse of `pack`. `at`: where the next bytes of the record's own blob start."""
        runs = cls()
        if isinstance(packed, int):
            runs._numbers.extend((sequence, BODY, at, packed))
            runs.length = packed
        else:
            runs._numbers.extend(packed)
            for place in range(0, len(packed), 4):
                runs._numbers[place] = sequence - packed[place]
            runs.length = sum(runs._numbers[3::4])
        return runs

    def places(self) -> set[tuple[int, int]]:
        """The (sequence, ordinal) of every blob that these point into."""
        return set(zip(self._numbers[::4], self._numbers[1::4], strict=True))
