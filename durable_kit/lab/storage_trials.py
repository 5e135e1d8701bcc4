"""The trials of lesson 05: store a conversation, read it back, and look at single fields.

Each function is one trial for `measure.run_trials`, on a database file of its own that is closed
before it is weighed: as long as a database is open, its newest bytes lie in a write-ahead log
beside it, and what is weighed then is the moment, not the saver.

`field_changes` measures something smaller: the delta of one field for one step, by the library's
own `diff`. A field that grows at its end, or by one key, has small deltas; one that is reordered or
rewritten has none worth the name. And a balance has a tiny delta, and is the one field of the list
that must not be kept as deltas: size is not the question there.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from durable_kit.delta_saver import DeltaSaver
from durable_kit.lab.storage_worker import SAVERS, open_saver
from durable_kit.lab.workloads import replay_conversation, sqlite_url
from durable_kit.storage.codec import Codec
from durable_kit.storage.delta import diff
from durable_kit.storage.snapshot_policy import EveryN, SizeRatio, SnapshotPolicy

THREAD: dict[str, Any] = {"configurable": {"thread_id": "conversation"}}


def raw_bytes(messages: Sequence[Any]) -> int:
    """The messages alone, each encoded once: what no saver can go below without compressing."""
    codec = Codec()
    return sum(len(codec.encode(message)) for message in messages)


def store(saver: str, messages: Sequence[Any], *, folder: Path) -> dict[str, float]:
    """Store `messages`, a checkpoint each, with a saver of `storage_worker.SAVERS`.

    Returns the bytes on disk once the database is closed, and the time of the run divided by its
    steps. The file is removed.
    """
    path = folder / f"trial-{saver}.db"
    with open_saver(saver, sqlite_url(path)) as opened:
        began = time.perf_counter()
        replay_conversation(opened, messages, thread_id="conversation")
        run_s = time.perf_counter() - began
    size = file_bytes(path)
    remove(path)
    return {"disk_bytes": size, "step_ms": run_s * 1000 / len(messages)}


def growth_trial(
    saver: str, steps: int, *, messages: Sequence[Any], folder: Path
) -> dict[str, Any]:
    """Store the first `steps` messages. The saver "raw" only counts them, for comparison."""
    part = messages[:steps]
    if saver == "raw":
        return {"label": "the messages alone", "disk_bytes": raw_bytes(part)}
    return {"label": SAVERS[saver].label, **store(saver, part, folder=folder)}


def bytes_per_step(messages: Sequence[Any], *, folder: Path) -> pd.DataFrame:
    """What each super-step adds to the stored bytes: its checkpoint, and the writes before it."""
    queries = {
        "sqlite": "SELECT checkpoint_id, length(checkpoint) FROM checkpoints "
        "UNION ALL SELECT checkpoint_id, length(value) FROM writes",
        "delta": "SELECT sequence, length(body) FROM checkpoints "
        "UNION ALL SELECT sequence + 1, length(body) FROM checkpoint_writes",
    }
    rows = []
    for saver, query in queries.items():
        path = folder / f"steps-{saver}.db"
        with open_saver(saver, sqlite_url(path)) as opened:
            replay_conversation(opened, messages, thread_id="conversation")
        with closing(sqlite3.connect(path)) as connection:
            added = pd.read_sql(query, connection)
        remove(path)
        added.columns = ["checkpoint", "added_bytes"]
        per_step = added.groupby("checkpoint", sort=True)["added_bytes"].sum().tolist()
        # The first two checkpoints are the input and the start; then comes one a message.
        rows += [
            {"saver": SAVERS[saver].label, "step": step, "added_bytes": size}
            for step, size in enumerate(per_step[2 : len(messages) + 2], start=1)
        ]
    return pd.DataFrame(rows)


def policies_by_depth(messages: int) -> dict[str, SnapshotPolicy]:
    """Policies under which the newest state of so many messages has very different depths.

    A run stores two checkpoints more than messages. `EveryN(n)` then leaves the newest one
    (messages + 1) modulo n deltas above its snapshot.
    """
    last = messages + 1
    depths = [round(last * share) for share in (0.12, 0.25, 0.49)]
    return {
        "EveryN(1)": EveryN(1),
        "SizeRatio(8), the default": SizeRatio(),
        **{f"EveryN({last - depth})": EveryN(last - depth) for depth in depths},
        "no snapshot after the first": EveryN(last + 1),
    }


@dataclass(frozen=True, slots=True)
class Stored:
    """A conversation in a closed database, stored under one policy."""

    name: str
    path: Path
    disk_bytes: int
    snapshots: int
    replay_depth: int


def store_under(
    policies: dict[str, SnapshotPolicy], messages: Sequence[Any], *, folder: Path
) -> dict[str, Stored]:
    """The same conversation once under each policy, to read it from there."""
    stored: dict[str, Stored] = {}
    for number, (name, policy) in enumerate(policies.items()):
        path = folder / f"policy-{number}.db"
        with DeltaSaver.open(sqlite_url(path), policy=policy) as saver:
            replay_conversation(saver, messages, thread_id="conversation")
            stats = saver.stats("conversation")
        stored[name] = Stored(name, path, file_bytes(path), stats.snapshots, stats.replay_depth)
    return stored


def read_trial(policy: str, *, stored: dict[str, Stored], reads: int = 5) -> dict[str, Any]:
    """Open the database anew and read the newest state; the median of `reads` such openings."""
    chosen = stored[policy]
    times_ms: list[float] = []
    for _ in range(reads):
        with DeltaSaver.open(sqlite_url(chosen.path)) as saver:
            began = time.perf_counter()
            saver.get_tuple(THREAD)  # type: ignore[arg-type]
            times_ms.append((time.perf_counter() - began) * 1000)
    return {
        "replay_depth_deltas": chosen.replay_depth,
        "snapshots_count": chosen.snapshots,
        "disk_bytes": chosen.disk_bytes,
        "read_ms": median(times_ms),
    }


def field_changes(*, steps: int = 60, seed: int = 5) -> pd.DataFrame:
    """For each kind of field: how it is stored as a delta, and how large that is in one step.

    The median over `steps` steps of one run; the values are generated from `seed`.
    """
    codec = Codec()
    rows = []
    for name, changes, values in _fields(steps, random.Random(seed)):
        encoded = [codec.encode(value) for value in values]
        deltas = [diff(a, b) for a, b in pairwise(encoded)]
        known = [delta for delta in deltas if delta is not None]
        kinds = [delta.op for delta in known]
        rows.append(
            {
                "field": name,
                "changes by": changes,
                "stored as": max(set(kinds), key=kinds.count),
                "value_bytes": len(encoded[-1]),
                "delta_bytes": int(median(len(delta.new) for delta in known)),
            }
        )
    table = pd.DataFrame(rows)
    table["delta_over_value_ratio"] = table["delta_bytes"] / table["value_bytes"]
    return table


def file_bytes(path: Path) -> int:
    """A SQLite database with all that stands beside it."""
    found = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    return sum(file.stat().st_size for file in found if file.exists())


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _fields(steps: int, rng: random.Random) -> list[tuple[str, str, list[Any]]]:
    def words(count: int) -> str:
        return " ".join(rng.choice(_WORDS) for _ in range(count))

    messages = [{"role": "assistant", "content": words(40)} for _ in range(steps)]
    texts = [words(12) for _ in range(steps)]
    tools = {f"tool_{i}": 0 for i in range(40)}
    counts = []
    for _ in range(steps):
        tools = {**tools, rng.choice(list(tools)): rng.randrange(1000)}
        counts.append(tools)
    plan = [words(6) for _ in range(30)]
    plans = [rng.sample(plan, len(plan)) for _ in range(steps)]
    balances = []
    balance = 100_000
    for _ in range(steps):
        balance -= rng.randrange(1, 500)
        balances.append(balance)
    return [
        ("messages", "appending an item", [messages[:n] for n in range(1, steps + 1)]),
        ("draft", "appending text", [" ".join(texts[:n]) for n in range(1, steps + 1)]),
        ("calls per tool", "setting one key", counts),
        ("plan", "reordering its items", plans),
        ("summary", "writing it anew", [words(120) for _ in range(steps)]),
        ("balance", "replacing a number", balances),
    ]


_WORDS = (
    "order parcel refund customer address invoice delivery note stock return price answer shelf "
    "week garden tool letter change confirm cancel payment account question reply"
).split()
