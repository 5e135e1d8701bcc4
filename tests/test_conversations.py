"""Generated conversations: the same bytes from the same seed, with the sizes of real messages."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from durable_kit.lab.conversations import (
    ALL_SIZE_BYTES,
    SIZE_BYTES,
    SIZE_LEVELS,
    Message,
    generate,
    message_bytes,
    read_conversations,
    read_jsonl,
    write_jsonl,
)

COMMITTED = Path(__file__).parent.parent / "data" / "conversation.jsonl"


def kind_of(message: Message) -> str:
    return "call" if message.get("tool_calls") else str(message["role"])


def quantiles(sizes: list[int]) -> list[float]:
    ordered = sorted(sizes)
    found = []
    for level in SIZE_LEVELS:
        place = level * (len(ordered) - 1)
        below, share = int(place), place % 1
        above = min(below + 1, len(ordered) - 1)
        found.append(ordered[below] + (ordered[above] - ordered[below]) * share)
    return found


def assert_near(found: list[float], expected: list[float], *, share: float, slack: float) -> None:
    for level, size, wanted in zip(SIZE_LEVELS, found, expected, strict=True):
        if level == 0.99 and share > 0:
            continue  # one or two values of a few hundred, where the curve is steepest
        assert abs(size - wanted) <= share * wanted + slack, f"at {level}: {size}, not {wanted}"


def test_the_committed_conversation_is_made_by_the_documented_command(tmp_path: Path) -> None:
    out = tmp_path / "again.jsonl"
    command = "durable_kit.lab.conversations --seed 1 --messages 400 --out".split()
    subprocess.run([sys.executable, "-m", *command, str(out)], check=True, capture_output=True)
    assert out.read_bytes() == COMMITTED.read_bytes()
    assert len(COMMITTED.read_bytes()) < 300_000
    assert " ".join(command) in (COMMITTED.parent / "README.md").read_text(encoding="utf-8")


def test_another_seed_gives_another_conversation() -> None:
    assert generate(1, 50) == generate(1, 50)
    assert generate(1, 50) != generate(2, 50)
    assert generate(1, 0) == []
    with pytest.raises(ValueError, match="0 or more"):
        generate(1, -1)


@pytest.mark.parametrize("count", [400, 3000])
def test_sizes_follow_the_table_for_each_kind_of_message(count: int) -> None:
    messages = generate(7, count)
    for kind, expected in SIZE_BYTES.items():
        sizes = [message_bytes(m) for m in messages if kind_of(m) == kind]
        assert_near(quantiles(sizes), list(expected), share=0.2, slack=50)


def test_sizes_follow_the_table_over_all_messages() -> None:
    sizes = [message_bytes(message) for message in read_jsonl(COMMITTED)]
    found = quantiles(sizes)
    assert_near(found, list(ALL_SIZE_BYTES), share=0.15, slack=20)
    assert abs(sum(sizes) / len(sizes) - 382) < 20


def test_every_tool_call_is_answered_and_the_user_begins() -> None:
    messages = generate(3, 1000)
    assert messages[0]["role"] == "user"
    for before, after in itertools.pairwise(messages):
        if kind_of(before) == "call":
            assert after["role"] == "tool"
            assert after["tool_call_id"] == before["tool_calls"][0]["id"]
        else:
            assert after["role"] != "tool"


def test_tool_calls_carry_arguments_that_parse() -> None:
    for message in generate(4, 300):
        for call in message.get("tool_calls", []):
            assert "order_id" in json.loads(call["function"]["arguments"])


def test_what_was_written_reads_back_equal(tmp_path: Path) -> None:
    messages = [*generate(5, 40), {"role": "user", "content": "grüße \u2028 \n 🌱"}]
    write_jsonl(tmp_path / "out.jsonl", messages)
    assert read_jsonl(tmp_path / "out.jsonl") == messages


def test_whole_conversations_and_single_messages_can_share_a_file(tmp_path: Path) -> None:
    a, b, c = ({"role": "user", "content": text} for text in "abc")
    lines = [a, b, {"trajectory": 0, "messages": [c]}, [a, c], b]
    path = tmp_path / "mixed.jsonl"
    text = "\ufeff" + "\r\n\r\n".join(json.dumps(line) for line in lines)
    path.write_bytes(text.encode("utf-8"))
    assert read_conversations(path) == [[a, b], [c], [a, c], [b]]
    assert read_jsonl(path) == [a, b, c, a, c, b]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"role": "user"', "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b'"hello"', "found str"),
        (b'{"messages": 3}', "found int"),
        (b'{"messages": ["hello"]}', "must be an object"),
        (b'{"text": "hello"}', "needs a text 'role'"),
        (b"NaN", "found float"),
    ],
)
def test_a_line_that_is_no_message_is_refused_by_its_number(
    tmp_path: Path, line: bytes, complaint: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"role": "user", "content": "fine"}\n\n' + line + b"\n")
    with pytest.raises(ValueError, match=rf"line 3: .*{complaint}"):
        read_jsonl(path)


def test_generated_conversations_are_like_the_recorded_ones() -> None:
    """With DURABLE_KIT_TRAJECTORIES naming the recorded file, else with the committed one."""
    path = os.environ.get("DURABLE_KIT_TRAJECTORIES")
    recorded = read_jsonl(path or COMMITTED)
    for kind, expected in SIZE_BYTES.items():
        sizes = [message_bytes(m) for m in recorded if kind_of(m) == kind]
        if path:  # the table is a fact about that file
            assert_near(quantiles(sizes), list(expected), share=0, slack=1)
        else:
            assert_near(quantiles(sizes), list(expected), share=0.2, slack=50)
    generated = generate(1, len(recorded))
    assert_near(
        quantiles([message_bytes(m) for m in generated]),
        quantiles([message_bytes(m) for m in recorded]),
        share=0.15,
        slack=30,
    )
    shares = {kind: n / len(recorded) for kind, n in Counter(map(kind_of, recorded)).items()}
    for kind, n in Counter(map(kind_of, generated)).items():
        assert abs(n / len(generated) - shares[kind]) < 0.05
