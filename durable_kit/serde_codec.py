"""A LangGraph serde in the clothes of a codec.

Somebody who has chosen a serde has a reason: types of their own, a cipher, a format that other
tools read. `SerdeCodec` lets it encode each value and keeps the shape that deltas live on: a list
is encoded item by item, so that appending a message adds bytes at the end instead of changing
all of them.

Encryption wants one thing more. A cipher draws a new nonce each time, so the same message never
gives the same bytes twice, and comparing ciphertexts would find everything changed at every step.
`for_serde` therefore takes an `EncryptedSerializer` apart: its inner serde encodes, states are
compared in memory as plain bytes, and what goes to disk (deltas, writes, metadata) is sealed by its
cipher. Ids, namespaces, sizes and times are not encrypted.

A serde that is not deterministic by itself is honoured too; its deltas are just not small.
"""

from __future__ import annotations

from typing import Any, Protocol

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.types import Send

from durable_kit.checkpoint_state import path_of
from durable_kit.errors import DurableKitError, UnloadableValue, UnstorableValue
from durable_kit.storage.codec import Codec
from durable_kit.storage.codec_classes import Adapter
from durable_kit.storage.delta import pack_array_header
from durable_kit.storage.seal import NoSeal, Seal

_FOREIGN = 100  # the msgpack extension that holds one value in a serde's own format


_LANGGRAPH_TYPES = (
    ("langgraph.types", "Interrupt"),
    ("langgraph.types", "Command"),
    ("langgraph.types", "Overwrite"),
    ("langgraph.types", "TimeoutPolicy"),
    ("langgraph.types", "RetryPolicy"),
    ("langgraph.types", "CachePolicy"),
    ("langgraph.checkpoint.serde.types", "_DeltaSnapshot"),
    ("langchain_core.documents.base", "Document"),
    *(
        (f"langchain_core.messages.{module}", name + suffix)
        for module, name in (
            ("base", "BaseMessage"),
            ("human", "HumanMessage"),
            ("ai", "AIMessage"),
            ("system", "SystemMessage"),
            ("chat", "ChatMessage"),
            ("tool", "ToolMessage"),
            ("function", "FunctionMessage"),
        )
        for suffix in ("", "Chunk")
    ),
    ("langchain_core.messages.modifier", "RemoveMessage"),
)


def default_codec() -> Codec:
    """The kit's strict codec, allowed to load what LangGraph itself puts into checkpoints."""
    return with_langgraph_types(Codec())


def with_langgraph_types(codec: Codec) -> Codec:
    """The same codec, also for what LangGraph itself puts into checkpoints: whoever allows a class
    of their own has not meant to forbid interrupts and messages."""
    send = Adapter(
        Send,
        to_state=lambda packet: [packet.node, packet.arg, packet.timeout],
        from_state=lambda state: Send(state[0], state[1], timeout=state[2]),
    )
    return codec.allowing(_LANGGRAPH_TYPES, adapters=[send])


class ValueCodec(Protocol):
    """Values to bytes and back: the kit's `Codec`, or a `SerdeCodec`."""

    def encode(self, value: Any, *, path: str = ...) -> bytes: ...

    def decode(self, *parts: bytes | memoryview) -> Any: ...


class ChannelCodec:
    """What `DeltaSaver` gives to the log: channels by their codec, the rest by the kit's."""

    def __init__(self, channels: ValueCodec) -> None:
        self._channels = channels
        self._plain = Codec()

    def encode(self, name: str, value: Any) -> bytes:
        codec = self._channels if ":" in name else self._plain
        try:
            return codec.encode(value)
        except UnstorableValue:
            return codec.encode(value, path=path_of(name))  # raises again, with the full path

    def decode(self, name: str, *parts: bytes | memoryview) -> Any:
        return (self._channels if ":" in name else self._plain).decode(*parts)


def for_serde(serde: SerializerProtocol) -> tuple[ValueCodec, Seal]:
    """What encodes values, and what seals the bytes, for a serde given by the user."""
    if isinstance(serde, EncryptedSerializer):
        codec, _ = for_serde(serde.serde)
        return codec, CipherSeal(serde)
    if isinstance(serde, Codec):
        return with_langgraph_types(serde), NoSeal()
    return SerdeCodec(serde), NoSeal()


class SerdeCodec:
    """Values through `dumps_typed` and `loads_typed`, lists item by item."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde

    def encode(self, value: Any, *, path: str = "state") -> bytes:
        """Raises `UnstorableValue` for what the serde refuses, or would load as None."""
        if type(value) is list:
            items = [self._one(item, f"{path}[{n}]") for n, item in enumerate(value)]
            return pack_array_header(len(items)) + b"".join(items)
        return self._one(value, path)

    def decode(self, *parts: bytes | memoryview) -> Any:
        """Raises `UnloadableValue` where the serde fails, or gives None for what was not None."""
        return ormsgpack.unpackb(b"".join(parts), ext_hook=self._load)

    def _one(self, value: Any, path: str) -> bytes:
        try:
            kind, data = self._serde.dumps_typed(value)
        except DurableKitError:
            raise
        except Exception as error:
            raise UnstorableValue(
                path=path,
                type_name=type(value).__qualname__,
                reason=f"{type(self._serde).__name__} refused it ({error})",
                remedy="Store plain data instead, or use a serde that knows this type.",
            ) from error
        return ormsgpack.packb(ormsgpack.Ext(_FOREIGN, ormsgpack.packb([kind, bytes(data)])))

    def _load(self, code: int, data: bytes) -> Any:
        kind, payload = ormsgpack.unpackb(data)
        try:
            value = self._serde.loads_typed((kind, payload))
        except Exception as error:
            raise self._unloadable(kind, f"{type(error).__name__}: {error}") from error
        if value is None and kind != "null":
            raise self._unloadable(kind, "it gave None for a value that was not None")
        return value

    def _unloadable(self, kind: str, reason: str) -> UnloadableValue:
        return UnloadableValue(
            class_name=f"{type(self._serde).__name__} ({kind})",
            reason=reason,
            remedy="Open the saver with the serde that stored it, with its classes importable.",
        )


class CipherSeal:
    """Sealing by the cipher of an `EncryptedSerializer`."""

    def __init__(self, serde: EncryptedSerializer) -> None:
        self._cipher = serde.cipher

    def seal(self, data: bytes) -> bytes:
        name, sealed = self._cipher.encrypt(data)
        return ormsgpack.packb([name, sealed])

    def unseal(self, data: bytes) -> bytes:
        """Raises ValueError for bytes that this cipher did not seal."""
        try:
            name, sealed = ormsgpack.unpackb(data)
            return self._cipher.decrypt(name, sealed)
        except Exception as error:  # each cipher has errors of its own
            raise ValueError(str(error)) from error
