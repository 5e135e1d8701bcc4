"""durable_kit: durable execution for AI agents, to learn, measure and prototype with.

The public names, grouped by what they are for. They are loaded when first used, so that
`import durable_kit` is quick and a part that does not need LangGraph does not load it.

Keeping state           DeltaSaver, Database
When to snapshot        SizeRatio, EveryN
What can be stored      Codec, Adapter, check_state
Effects, each once      IdempotentGateway, Contract, Receipt, request_fingerprint
Messages and facts      Outbox, Relay, EventLog
What a lookup answers   Found, Absent, CannotTell
What an effect raises   NotSent, Refused
What a call raises      IdempotencyConflict, InProgress, InDoubt, NotRecorded
What can go wrong       DurableKitError, BadInput, UnstorableValue, UnloadableValue, BrokenChain,
                        SchemaMismatch, StorageFull, StorageBusy
Old work, new code      FlowRouter, Migrations, Step, drain_report, graph_fingerprint
Time                    Clock, SystemClock, FakeClock
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durable_kit.clock import Clock, FakeClock, SystemClock
    from durable_kit.delta_saver import DeltaSaver
    from durable_kit.effects.fingerprint import request_fingerprint
    from durable_kit.effects.gateway import IdempotentGateway
    from durable_kit.effects.outbox import Outbox
    from durable_kit.effects.outcomes import (
        Absent,
        CannotTell,
        Contract,
        Found,
        IdempotencyConflict,
        InDoubt,
        InProgress,
        NotRecorded,
        NotSent,
        Refused,
    )
    from durable_kit.effects.receipt import Receipt
    from durable_kit.effects.relay import Relay
    from durable_kit.errors import (
        BadInput,
        BrokenChain,
        DurableKitError,
        SchemaMismatch,
        StorageBusy,
        StorageFull,
        UnloadableValue,
        UnstorableValue,
    )
    from durable_kit.event_log import EventLog
    from durable_kit.storage.check_state import check_state
    from durable_kit.storage.codec import Adapter, Codec
    from durable_kit.storage.database import Database
    from durable_kit.storage.snapshot_policy import EveryN, SizeRatio
    from durable_kit.versions.drain import drain_report
    from durable_kit.versions.flow_router import FlowRouter
    from durable_kit.versions.graph_fingerprint import graph_fingerprint
    from durable_kit.versions.migration import Migrations, Step

__version__ = "0.1.0"

_HOME = {
    "DeltaSaver": "durable_kit.delta_saver",
    "Database": "durable_kit.storage.database",
    "SizeRatio": "durable_kit.storage.snapshot_policy",
    "EveryN": "durable_kit.storage.snapshot_policy",
    "Codec": "durable_kit.storage.codec",
    "Adapter": "durable_kit.storage.codec",
    "check_state": "durable_kit.storage.check_state",
    "IdempotentGateway": "durable_kit.effects.gateway",
    "Receipt": "durable_kit.effects.receipt",
    "request_fingerprint": "durable_kit.effects.fingerprint",
    "Contract": "durable_kit.effects.outcomes",
    "Found": "durable_kit.effects.outcomes",
    "Absent": "durable_kit.effects.outcomes",
    "CannotTell": "durable_kit.effects.outcomes",
    "NotSent": "durable_kit.effects.outcomes",
    "Refused": "durable_kit.effects.outcomes",
    "IdempotencyConflict": "durable_kit.effects.outcomes",
    "InProgress": "durable_kit.effects.outcomes",
    "InDoubt": "durable_kit.effects.outcomes",
    "NotRecorded": "durable_kit.effects.outcomes",
    "Outbox": "durable_kit.effects.outbox",
    "Relay": "durable_kit.effects.relay",
    "EventLog": "durable_kit.event_log",
    "DurableKitError": "durable_kit.errors",
    "BadInput": "durable_kit.errors",
    "UnstorableValue": "durable_kit.errors",
    "UnloadableValue": "durable_kit.errors",
    "BrokenChain": "durable_kit.errors",
    "SchemaMismatch": "durable_kit.errors",
    "StorageFull": "durable_kit.errors",
    "StorageBusy": "durable_kit.errors",
    "FlowRouter": "durable_kit.versions.flow_router",
    "Migrations": "durable_kit.versions.migration",
    "Step": "durable_kit.versions.migration",
    "drain_report": "durable_kit.versions.drain",
    "graph_fingerprint": "durable_kit.versions.graph_fingerprint",
    "Clock": "durable_kit.clock",
    "SystemClock": "durable_kit.clock",
    "FakeClock": "durable_kit.clock",
}

__all__ = [
    "Absent",
    "Adapter",
    "BadInput",
    "BrokenChain",
    "CannotTell",
    "Clock",
    "Codec",
    "Contract",
    "Database",
    "DeltaSaver",
    "DurableKitError",
    "EventLog",
    "EveryN",
    "FakeClock",
    "FlowRouter",
    "Found",
    "IdempotencyConflict",
    "IdempotentGateway",
    "InDoubt",
    "InProgress",
    "Migrations",
    "NotRecorded",
    "NotSent",
    "Outbox",
    "Receipt",
    "Refused",
    "Relay",
    "SchemaMismatch",
    "SizeRatio",
    "Step",
    "StorageBusy",
    "StorageFull",
    "SystemClock",
    "UnloadableValue",
    "UnstorableValue",
    "check_state",
    "drain_report",
    "graph_fingerprint",
    "request_fingerprint",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'durable_kit' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
