"""What happens to bytes between encoding and the disk.

Nothing, normally. With encryption, every body and all metadata pass through a cipher. It stands at
this one place because a cipher draws a new nonce each time: the same message never gives the same
bytes twice, so comparing and addressing must happen on plain bytes, before it.
"""

from __future__ import annotations

from typing import Protocol


class Seal(Protocol):
    """Bytes to disk and back. `unseal` raises ValueError for bytes that `seal` did not make."""

    def seal(self, data: bytes) -> bytes: ...

    def unseal(self, data: bytes) -> bytes: ...


class NoSeal:
    """Bytes go to disk as they are."""

    def seal(self, data: bytes) -> bytes:
        return data

    def unseal(self, data: bytes) -> bytes:
        return data
