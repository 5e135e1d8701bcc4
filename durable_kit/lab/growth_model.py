"""A log on paper: what a snapshot policy would do, without writing a byte.

A slider cannot wait for 3,000 commits. So this file goes through the same steps with numbers
only, and asks the *real* policy objects (`EveryN`, `SizeRatio`) at every one of them, with the
same three numbers that `CheckpointLog` hands them:

    step   chain so far          policy says    what is written
    1      –                     –              snapshot   (the first record always is one)
    2      1 delta,  300 B       no             delta
    3      2 deltas, 600 B       no             delta
    4      3 deltas, 900 B       yes            snapshot

For a bare log of one list that grows by one item a step, *which* records are snapshots, and so the
replay depth at every step, is exact; a test runs the real log beside it. A LangGraph run stores
more than the list: each checkpoint has its clock and its names, and two checkpoints come before
the first message. `LANGGRAPH` says how much that is; a test holds it against a `DeltaSaver`: the
number of snapshots and the deepest read are exact for `EveryN`, and within a tenth for `SizeRatio`
(a fifth if its snapshots are self-contained). That a message lies in a pending write makes no
difference to the policy: it counts what a delta brings, wherever the bytes are.

Bytes on disk are a model: the message, the addresses of a snapshot, and what SQLite and the
records' own headers take, as constants that were measured. The figures made of this are labelled
"modelled".

A snapshot lists where the messages lie, so its size is the number of *addresses*: one for each
write record, until `PACK_AT_LEAST` of them are moved into one pack, which has one address.

For comparison, a saver that writes the whole state at every step. No policy saves it: its bytes
are the sum 1 + 2 + … + N of the messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from durable_kit.storage.packs import PACK_AT_LEAST
from durable_kit.storage.snapshot_policy import Chain, EveryN, SizeRatio, SnapshotPolicy

# What the log adds to the encoded items of an append, for the policy (Plan.new_bytes) …
DELTA_EXTRA_BYTES = 4
# … and what image.snapshot_size and the log count for a snapshot beside the addresses.
SNAPSHOT_EXTRA_BYTES = 8 + 16
ADDRESS_BYTES = 5

# Measured on SQLite: a step's two rows with their keys, checksums and index entries; the file of
# an empty database with all tables of the kit; one address in a snapshot, deflated; a checkpoint of
# the saver compared with, and its empty file.
ROW_OF_A_STEP_BYTES = 240
ROW_OF_A_WRITE_BYTES = 200
PACKED_WRITE_BYTES = 50
EMPTY_FILE_BYTES = 135_168
STORED_ADDRESS_BYTES = 1.6
WHOLE_STATE_EXTRA_BYTES = 1_200
EMPTY_WHOLE_STATE_BYTES = 20_480


@dataclass(frozen=True, slots=True)
class Bookkeeping:
    """What a checkpoint holds beside the messages.

    `delta_bytes`: what changes at every step. `snapshot_bytes`: what a snapshot has in addition.
    `opening_records`: checkpoints before the one of the first message.
    """

    delta_bytes: int
    snapshot_bytes: int
    opening_records: int


BARE_LOG = Bookkeeping(0, 0, 0)
LANGGRAPH = Bookkeeping(24, 80, 2)  # clock, names and a branch; the input and START come first


@dataclass(frozen=True, slots=True)
class GrowthRequest:
    """What to model: how many steps, how large a message (bytes, encoded), and which policy."""

    steps: int
    message_bytes: int
    policy: SnapshotPolicy
    name: str = "messages"
    bookkeeping: Bookkeeping = BARE_LOG

    def __post_init__(self) -> None:
        if self.steps < 1 or self.message_bytes < 1:
            raise ValueError("steps and message_bytes must be 1 or more.")


@dataclass(frozen=True, slots=True)
class Growth:
    """The modelled log, step by step (the first step is item 0). Bytes add up, depths do not.

    `depths`: deltas to fold for the state at this step. `snapshots`: the records, counted from 1,
    that are snapshots; a bare log has one record a step. `log_bytes`: the file after this step.
    `whole_state_bytes`: the file of a saver that writes the whole state. `raw_bytes`: the messages
    alone.
    """

    request: GrowthRequest
    depths: tuple[int, ...]
    snapshots: tuple[int, ...]
    log_bytes: tuple[int, ...]
    whole_state_bytes: tuple[int, ...]
    raw_bytes: tuple[int, ...]

    @property
    def replay_depth(self) -> int:
        return self.depths[-1]

    @property
    def max_replay_depth(self) -> int:
        return max(self.depths)


def simulate(request: GrowthRequest) -> Growth:
    """Go through the steps, asking the policy at each. 3,000 steps take a few milliseconds."""
    size, beside = request.message_bytes, request.bookkeeping
    depth = delta_bytes = 0
    addresses = unpacked = 0
    file_bytes = float(EMPTY_FILE_BYTES)
    whole = EMPTY_WHOLE_STATE_BYTES
    depths: list[int] = []
    snapshots: list[int] = []
    log: list[int] = []
    whole_state: list[int] = []
    for n in range(beside.opening_records + request.steps):
        before = max(0, n - beside.opening_records)  # messages in the parent's state
        brings = n >= beside.opening_records  # a message
        items = before + brings
        chain = Chain(
            depth=depth + 1,
            delta_bytes=delta_bytes + brings * size + DELTA_EXTRA_BYTES + beside.delta_bytes,
            snapshot_bytes=_snapshot_bytes(request, before, addresses),
        )
        addresses += brings
        unpacked += brings and n > 0  # in a bare log, the first record itself holds a message
        file_bytes += ROW_OF_A_STEP_BYTES + brings * (size + ROW_OF_A_WRITE_BYTES)
        if n == 0 or request.policy.wants_snapshot(chain):
            depth = delta_bytes = 0
            snapshots.append(n + 1)
            if unpacked >= PACK_AT_LEAST:
                addresses += 1 - unpacked
                file_bytes -= unpacked * (ROW_OF_A_WRITE_BYTES - PACKED_WRITE_BYTES)
                unpacked = 0
            stored = addresses * STORED_ADDRESS_BYTES
            file_bytes += items * size if request.policy.self_contained else stored
        else:
            depth, delta_bytes = chain.depth, chain.delta_bytes
        whole += items * size + WHOLE_STATE_EXTRA_BYTES
        if not brings:
            continue
        depths.append(depth)
        # Space that a pack has freed is used again; the file itself does not shrink.
        log.append(max(round(file_bytes), log[-1] if log else 0))
        whole_state.append(whole)
    raw = [size * n for n in range(1, request.steps + 1)]
    return Growth(
        request, tuple(depths), tuple(snapshots), tuple(log), tuple(whole_state), tuple(raw)
    )


def policy_of(kind: str, knob: float, *, self_contained: bool) -> SnapshotPolicy:
    """The policy that two controls describe: "EveryN" with n, "SizeRatio" with its ratio."""
    if kind == "EveryN":
        return EveryN(max(1, round(knob)), self_contained=self_contained)
    return SizeRatio(float(knob), self_contained=self_contained)


def _snapshot_bytes(request: GrowthRequest, items: int, addresses: int) -> int:
    """What the log tells the policy that a snapshot of the state before this step would take."""
    content = items * request.message_bytes
    if not request.policy.self_contained:
        content = min(content, addresses * ADDRESS_BYTES)
    extra = SNAPSHOT_EXTRA_BYTES + request.bookkeeping.snapshot_bytes
    return len(request.name) + extra + content
