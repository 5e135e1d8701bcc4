"""Conversations to store: invented words, the sizes of real agent messages.

How well a checkpointer does depends on what it is fed. A benchmark that appends the same short
message a thousand times flatters every compressor and hides every fixed cost, and a benchmark of
uniform messages hides the tail: an agent writes many short lines, and then a tool answers with
7 kB. So the conversations here are *generated* (nobody's words, no licence to carry, any length)
but have the shape that was counted in recorded ones::

    user  ->  assistant  ->  user  ->  assistant calls a tool  ->  tool  ->  assistant  -> ...
    110 B     300 B          121 B     208 B                      890 B     320 B        (medians)

Two facts about that shape decide the storage lessons. Half of all messages are below 200 bytes,
so the bytes a saver adds *per step* matter more than the messages. And messages are only ever
appended, never edited: the state at step N contains the state at step N - 1.

**Promise.** The same seed and count give the same bytes, on every platform and Python version.
Sizes are stratified: of k messages of one kind, each takes its own k-th of the quantile curve, so
that even a short conversation has the whole distribution, its tail included.

**Left out.** The words carry no meaning from one message to the next, and ``generate(seed, 400)``
is not the beginning of ``generate(seed, 800)``. For the real thing, record a conversation and
give its path to :func:`read_jsonl`.
"""

from __future__ import annotations

import argparse
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

Message = dict[str, Any]
"""One message in the chat-completions shape: role, content, tool_calls, tool_call_id, name."""

SIZE_SOURCE = "tau-bench airline trajectories, MIT; 80 conversations, 2,200 messages"
SIZE_LEVELS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 1.0)
SIZE_BYTES: dict[str, tuple[int, ...]] = {
    "user": (38, 62, 71, 85, 98, 110, 121, 135, 152, 170, 194, 217, 232, 251, 266, 330),
    "assistant": (77, 151, 162, 197, 228, 266, 300, 347, 418, 478, 632, 763, 802, 866, 990, 1317),
    "call": (149, 178, 180, 184, 184, 184, 208, 218, 311, 373, 481, 630, 677, 688, 726, 1228),
    "tool": (90, 90, 98, 108, 174, 817, 890, 915, 992, 1080, 1229, 1524, 2403, 3300, 5445, 7747),
}
"""Quantiles of :func:`message_bytes` per kind of message; ``call`` is an assistant's tool call."""
ALL_SIZE_BYTES = (38, 81, 94, 123, 158, 182, 198, 256, 372, 567, 914, 1078, 1173, 1293, 1525, 7747)
"""The same quantiles over all messages; their mean is 382 bytes."""

# What follows what, counted in the same conversations, and shifted by 0.02 so that one long thread
# has the mix of many short ones (those begin and end with the user).
NEXT_KIND: dict[str, tuple[tuple[str, float], ...]] = {
    "user": (("assistant", 0.60), ("call", 0.40)),
    "assistant": (("user", 1.0),),
    "call": (("tool", 1.0),),
    "tool": (("call", 0.52), ("assistant", 0.48)),
}


def generate(seed: int, messages: int) -> list[Message]:
    """Return one conversation of that many messages; the same arguments give the same bytes.

    It begins with the user and every tool call is answered, except perhaps a last one that the
    count cut off. Raises ValueError when ``messages`` is negative.
    """
    if messages < 0:
        raise ValueError(f"messages must be 0 or more, not {messages}")
    rng = Random(seed)
    kinds = _kinds(rng, messages)
    sizes = {kind: _stratified_sizes(rng, kind, kinds.count(kind)) for kind in SIZE_BYTES}
    conversation: list[Message] = []
    for kind in kinds:
        conversation.append(_WRITERS[kind](rng, sizes[kind].pop(), conversation))
    return conversation


def message_bytes(message: Message) -> int:
    """Size of a message as compact JSON in UTF-8: how every size in this module is counted."""
    return len(_to_line(message))


def write_jsonl(path: str | Path, messages: Iterable[Message]) -> None:
    """Write one message a line. The file's bytes depend on the messages only, not on the OS."""
    Path(path).write_bytes(b"".join(_to_line(message) + b"\n" for message in messages))


def read_jsonl(path: str | Path) -> list[Message]:
    """Read a recorded file as one long thread: its conversations, one after the other.

    See :func:`read_conversations` for the forms that are understood and the errors.
    """
    return [message for conversation in read_conversations(path) for message in conversation]


def read_conversations(path: str | Path) -> list[list[Message]]:
    """Read a recorded file, one JSON value a line, as a list of conversations.

    A line may be an object with ``messages`` (a whole conversation), a list of messages, or a
    single message; single messages that follow one another make one conversation. Empty lines are
    skipped. Raises ValueError, naming the line, for anything else: a line is never passed over.
    """
    conversations: list[list[Message]] = []
    open_ended = False  # the last conversation is being built from single-message lines
    for number, line in enumerate(Path(path).read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        value = _parse_line(line.removeprefix(b"\xef\xbb\xbf"), where)
        if isinstance(value, dict) and "messages" not in value:
            if not open_ended:
                conversations.append([])
            conversations[-1].append(_checked_message(value, where))
            open_ended = True
            continue
        open_ended = False
        items = value["messages"] if isinstance(value, dict) else value
        if not isinstance(items, list):
            raise ValueError(
                f"{where}: expected a message, a list of messages or an object with a list of "
                f"'messages', found {type(items).__name__}."
            )
        conversations.append([_checked_message(item, where) for item in items])
    return conversations


def _parse_line(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text ({error.reason}).") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where}: not JSON ({error.msg} at column {error.colno}). The file needs one whole "
            "JSON value on each line; a document spread over several lines must be joined first."
        ) from error


def _checked_message(value: Any, where: str) -> Message:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: a message must be an object, found {type(value).__name__}.")
    if not isinstance(value.get("role"), str):
        raise ValueError(
            f"{where}: a message needs a text 'role' (user, assistant, tool, ...); "
            f"found the keys {sorted(value)}."
        )
    return value


def _to_line(message: Message) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


# --- sizes ------------------------------------------------------------------------------------


def _kinds(rng: Random, messages: int) -> list[str]:
    kinds: list[str] = []
    kind = "user"
    for _ in range(messages):
        kinds.append(kind)
        ticket = rng.random()
        for following, share in NEXT_KIND[kind]:
            kind = following
            ticket -= share
            if ticket < 0:
                break
    return kinds


def _stratified_sizes(rng: Random, kind: str, count: int) -> list[int]:
    sizes = [_size_at(kind, (i + rng.random()) / count) for i in range(count)]
    if sizes:
        sizes[-1] = SIZE_BYTES[kind][-1]  # the largest is always there: it is what breaks things
    for i in range(count - 1, 0, -1):  # Random.shuffle may change between versions; this does not
        j = int(rng.random() * (i + 1))
        sizes[i], sizes[j] = sizes[j], sizes[i]
    return sizes


def _size_at(kind: str, level: float) -> int:
    right = min(bisect_right(SIZE_LEVELS, level), len(SIZE_LEVELS) - 1)
    low, high = SIZE_LEVELS[right - 1], SIZE_LEVELS[right]
    below, above = SIZE_BYTES[kind][right - 1], SIZE_BYTES[kind][right]
    return round(below + (above - below) * (level - low) / (high - low))


# --- words ------------------------------------------------------------------------------------


def _words(listed: str) -> list[str]:
    return listed.split(", ")


_ITEMS = _words(
    "trowel, watering can, seed tray, hedge shears, wheelbarrow, rain gauge, pruning saw, "
    "compost sieve, bird table, garden hose, clay pot, kneeling mat, cold frame, leaf rake, "
    "plant label, hand fork, bulb planter, wire basket"
)
_NAMES = _words(
    "Ada Quill, Bruno Tarn, Celia Moss, Dario Fenn, Edda Lark, Finn Arbour, Greta Sedge, "
    "Hugo Wren, Ines Thorn, Jonas Vale, Kira Bramble, Lio Heath"
)
_STREETS = ("Willow Lane", "Mill Row", "Orchard Way", "Station Road", "Harbour Street", "High Bank")
_TOWNS = ("Ashford Green", "Northmere", "Saltby", "Elmstead", "Lower Coombe", "Westholm")
_STATES = ("packed", "sent", "delivered", "returned", "on hold", "waiting for payment")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_TOOLS = _words(
    "find_order, list_orders, check_stock, quote_refund, change_address, track_parcel, "
    "read_policy, add_note"
)
_SHORT_RESULTS = (
    "",
    "[]",
    "done",
    "Error: no such order",
    "Error: the parcel has left already",
    "Error: refund exceeds the amount paid",
    "Address changed",
    "Note added",
)

_USER_LINES = (
    "Hello, I am writing about order {order}.",
    "The {item} came on {day}, but the {item} is still missing.",
    "Could you send {count} more of the {item} to {number} {street}, {town}?",
    "I would rather have my money back, please.",
    "Yes, go ahead.",
    "No, leave the {item} as it is and only change the address.",
    "My name is {name} and I moved to {town} last {day}.",
    "How long does a parcel to {town} take?",
    "Please take {price} off the {item}, as your colleague promised on {day}.",
    "Thank you, that is all.",
)
_AGENT_LINES = (
    "I have found order {order}: {count} pieces, {price} in all, and its state is {state}.",
    "The {item} left our store on {day} and should reach {town} within {count} days.",
    "Before I change that I need your consent: the {item} costs {price} more on your card.",
    "I am sorry about the {item}.",
    "There are {count} of the {item} left, and one {item} in our store at {town}.",
    "A {item} can be sent back within {number} days, unused and in its box, for {price}.",
    "The new address is {number} {street}, {town}, in the name of {name}.",
    "Shall I go on, or would you like to look at the {item} first?",
    "A refund of {price} for order {order} takes up to {count} working days.",
    "Is there anything else that I can do for you on this {day}?",
)


def _pick(rng: Random, choices: Sequence[str]) -> str:
    return choices[int(rng.random() * len(choices))]


def _number(rng: Random, low: int, high: int) -> int:
    return low + int(rng.random() * (high - low + 1))


def _order_id(rng: Random) -> str:
    return f"GT-{_number(rng, 100_000, 999_999)}"


def _price(rng: Random) -> float:
    return _number(rng, 199, 24_999) / 100


def _sentence(rng: Random, lines: Sequence[str]) -> str:
    return _pick(rng, lines).format(
        order=_order_id(rng),
        item=_pick(rng, _ITEMS),
        day=_pick(rng, _DAYS),
        count=_number(rng, 2, 14),
        number=_number(rng, 15, 90),
        street=_pick(rng, _STREETS),
        town=_pick(rng, _TOWNS),
        name=_pick(rng, _NAMES),
        state=_pick(rng, _STATES),
        price=f"{_price(rng):.2f} euros",
    )


def _prose(rng: Random, lines: Sequence[str], length: int) -> str:
    """About that many ASCII characters of sentences, cut where a word ends."""
    text = _sentence(rng, lines)
    while len(text) < length:
        text += " " + _sentence(rng, lines)
    if len(text) <= length:
        return text
    cut = text.rfind(" ", 0, max(length, 1))
    return text[: cut if cut > 0 else length].rstrip(" ,:;")


def _write_user(rng: Random, size: int, _: list[Message]) -> Message:
    empty: Message = {"role": "user", "content": ""}
    return {**empty, "content": _prose(rng, _USER_LINES, size - message_bytes(empty))}


def _write_assistant(rng: Random, size: int, _: list[Message]) -> Message:
    empty: Message = {"role": "assistant", "content": ""}
    return {**empty, "content": _prose(rng, _AGENT_LINES, size - message_bytes(empty))}


def _write_call(rng: Random, size: int, _: list[Message]) -> Message:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    call_id = "call_" + "".join(_pick(rng, alphabet) for _ in range(24))
    arguments: dict[str, Any] = {"order_id": _order_id(rng)}
    function = {"name": _pick(rng, _TOOLS), "arguments": _embed(arguments)}
    message: Message = {
        "role": "assistant",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
    room = size - message_bytes(message)
    if room > 24:
        arguments["reason"] = _prose(rng, _AGENT_LINES, room - 16)
        function["arguments"] = _embed(arguments)
    return message


def _write_tool(rng: Random, size: int, before: list[Message]) -> Message:
    call = before[-1]["tool_calls"][0]
    message: Message = {
        "role": "tool",
        "tool_call_id": call["id"],
        "name": call["function"]["name"],
        "content": "",
    }
    room = size - message_bytes(message)
    if room < 220:
        fitting = [text for text in _SHORT_RESULTS if room - 20 < len(text) <= room]
        answer = _pick(rng, fitting) if fitting else _prose(rng, _AGENT_LINES, room)
        message["content"] = answer
        return message
    record: dict[str, Any] = {"order_id": _order_id(rng), "state": _pick(rng, _STATES), "items": []}
    while True:
        message["content"] = _embed(record)
        room = size - message_bytes(message)
        if room < 240:
            break
        record["items"].append(
            {
                "name": _pick(rng, _ITEMS),
                "pieces": _number(rng, 1, 9),
                "price": _price(rng),
                "sent_on": _pick(rng, _DAYS),
                "to": f"{_pick(rng, _STREETS)}, {_pick(rng, _TOWNS)}",
            }
        )
    if room > 24:
        record["note"] = _prose(rng, _AGENT_LINES, room - 14)
        message["content"] = _embed(record)
    return message


def _embed(value: Any) -> str:
    """JSON inside a JSON string, as tools answer: every quotation mark costs three bytes."""
    return json.dumps(value)


_WRITERS: dict[str, Callable[[Random, int, list[Message]], Message]] = {
    "user": _write_user,
    "assistant": _write_assistant,
    "call": _write_call,
    "tool": _write_tool,
}


def main(argv: list[str] | None = None) -> int:
    """Generate a conversation into a file; see ``data/README.md`` for the committed one."""
    parser = argparse.ArgumentParser(
        prog="python -m durable_kit.lab.conversations", description=main.__doc__
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--out", type=Path, required=True, help="one message a line, JSON")
    arguments = parser.parse_args(argv)
    messages = generate(arguments.seed, arguments.messages)
    write_jsonl(arguments.out, messages)
    sizes = [message_bytes(message) for message in messages]
    print(f"{arguments.out}: {len(sizes)} messages, {sum(sizes):,} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
