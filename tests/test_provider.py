"""The provider: what its callers see, what its book says, and that the two are different things."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from durable_kit.crash.child import ChildFailed
from durable_kit.lab.provider import Provider
from durable_kit.lab.provider_client import NoEffect, OutcomeUnknown, ProviderClient, Refused
from durable_kit.lab.provider_server import FAULTS, RETRY_AFTER_S

ORDER = "order-1001"


@pytest.fixture(scope="module")
def shared() -> Iterator[Provider]:
    with Provider.start() as provider:
        yield provider


@pytest.fixture
def provider(shared: Provider) -> Provider:
    """One process for all tests of this file, calm and with its first switches."""
    shared.calm()
    shared.settle()
    shared.switch(
        honours_keys=True, key_ttl_s=None, lookup=True, lookup_ttl_s=None, polls_until_done=2
    )
    return shared


@pytest.fixture
def order(request: pytest.FixtureRequest) -> str:
    """An order of this test alone."""
    return f"order-{request.node.name}"


def charge(provider: Provider, order: str, **how: Any) -> Any:
    how.setdefault("key", f"charge:{order}")
    return provider.client().charge(order, amount_cents=4999, **how)


# --------------------------------------------------------------------------- without faults


def test_a_charge_a_refund_and_an_email_are_in_the_book_in_order(
    provider: Provider, order: str
) -> None:
    client = provider.client()
    reply = client.charge(order, amount_cents=4999, key="a")
    client.refund(order, amount_cents=999, key="b")
    client.send_email(order, to="ada@example.org", text="Thank you.", key="c")
    assert (reply.done, reply.replayed) == (True, False)
    assert [(e.kind, e.amount_cents, e.key) for e in provider.entries(order)] == [
        ("charge", 4999, "a"),
        ("refund", 999, "b"),
        ("email", None, "c"),
    ]
    assert [e.request["to"] for e in provider.emails(order)] == ["ada@example.org"]
    assert [e.amount_cents for e in provider.refunds(order)] == [999]


def test_the_same_key_charges_once_and_says_that_it_repeats_itself(
    provider: Provider, order: str
) -> None:
    first, second = charge(provider, order), charge(provider, order)
    assert (second.id, second.replayed) == (first.id, True)
    assert len(provider.charges(order)) == 1


def test_a_provider_that_does_not_honour_keys_charges_twice(provider: Provider, order: str) -> None:
    provider.switch(honours_keys=False)
    first, second = charge(provider, order), charge(provider, order)
    assert first.id != second.id
    assert len(provider.charges(order)) == 2
    assert order in provider.charged_twice()


def test_the_same_key_with_another_request_is_refused_and_does_nothing(
    provider: Provider, order: str
) -> None:
    charge(provider, order)
    with pytest.raises(Refused, match="key_reused") as refused:
        provider.client().charge(order, amount_cents=7000, key=f"charge:{order}")
    assert refused.value.status == 422
    with pytest.raises(Refused, match="key_reused"):  # another kind is another request, too
        provider.client().refund(order, amount_cents=4999, key=f"charge:{order}")
    assert [e.amount_cents for e in provider.entries(order)] == [4999]


def test_a_key_is_forgotten_after_its_time_and_acts_again(provider: Provider, order: str) -> None:
    provider.switch(key_ttl_s=24 * 3600)
    charge(provider, order)
    provider.advance(seconds=23 * 3600)
    assert charge(provider, order).replayed
    provider.advance(seconds=2 * 3600)
    assert not charge(provider, order).replayed
    assert len(provider.charges(order)) == 2


def test_twenty_callers_with_one_key_at_once_charge_once(provider: Provider, order: str) -> None:
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda _: charge(provider, order), range(20)))
    assert len({reply.id for reply in replies}) == 1
    assert sum(not reply.replayed for reply in replies) == 1
    assert len(provider.charges(order)) == 1


@pytest.mark.parametrize("amount_cents", [0, -5, None, "12", 4.5])
def test_an_amount_that_is_none_is_refused(
    provider: Provider, order: str, amount_cents: Any
) -> None:
    with pytest.raises(Refused, match="bad_amount"):
        provider.client().charge(order, amount_cents=amount_cents)
    assert provider.entries(order) == []


def test_a_refund_is_at_most_what_was_paid(provider: Provider, order: str) -> None:
    client = provider.client()
    with pytest.raises(Refused, match="nothing_to_refund"):
        client.refund(order, amount_cents=1)
    client.charge(order, amount_cents=100)
    client.refund(order, amount_cents=60)
    with pytest.raises(Refused, match="40 cents are left"):
        client.refund(order, amount_cents=60)
    assert [e.kind for e in provider.entries(order)] == ["charge", "refund"]


# --------------------------------------------------------------------------- asking


def test_a_lookup_by_key_and_by_order_tells_what_happened(provider: Provider, order: str) -> None:
    client = provider.client()
    assert client.find(key=f"charge:{order}") == []
    reply = charge(provider, order)
    [by_key] = client.find(key=f"charge:{order}")
    [by_order] = client.find(order_id=order)
    assert by_key.id == by_order.id == reply.id
    assert by_key.body["amount_cents"] == 4999


def test_a_provider_that_cannot_be_asked_leaves_the_outcome_unknown(
    provider: Provider, order: str
) -> None:
    charge(provider, order)
    provider.switch(lookup=False)
    with pytest.raises(OutcomeUnknown, match="no_lookup"):
        provider.client().find(key=f"charge:{order}")


def test_a_lookup_finds_nothing_after_its_time_although_it_happened(
    provider: Provider, order: str
) -> None:
    provider.switch(lookup_ttl_s=3600)
    charge(provider, order)
    assert len(provider.client().find(key=f"charge:{order}")) == 1
    provider.advance(seconds=3601)
    assert provider.client().find(key=f"charge:{order}") == []
    assert len(provider.charges(order)) == 1


@pytest.mark.parametrize("fault", ["lost_reply", "error_before", "too_many"])
def test_a_lookup_can_fail_and_says_that_nothing_was_learned(
    provider: Provider, order: str, fault: str
) -> None:
    charge(provider, order)
    provider.fail_next(fault, of="lookup")
    with pytest.raises(OutcomeUnknown):
        provider.client().find(key=f"charge:{order}")
    assert len(provider.client().find(key=f"charge:{order}")) == 1


def test_create_and_poll_acts_when_it_says_done(provider: Provider, order: str) -> None:
    reply = charge(provider, order, poll=True)
    assert reply.state == "pending"
    assert charge(provider, order, poll=True).id == reply.id
    assert [r.state for r in provider.client().find(key=f"charge:{order}")] == ["pending"]
    assert provider.client().status(reply.id).state == "pending"
    assert provider.charges(order) == []
    assert provider.client().status(reply.id).done
    assert len(provider.charges(order)) == 1
    with pytest.raises(OutcomeUnknown, match="404"):
        provider.client().status("charge-999999")


# --------------------------------------------------------------------------- faults

# fault -> (what the caller is told, charges in the book, charges after the same key again)
OUTCOMES = {
    "refuse": (Refused, 0, 0),
    "too_many": (NoEffect, 0, 1),
    "error_before": (OutcomeUnknown, 0, 1),
    "error_after": (OutcomeUnknown, 1, 1),
    "lost_request": (OutcomeUnknown, 0, 1),
    "lost_reply": (OutcomeUnknown, 1, 1),
    "slow": (OutcomeUnknown, 1, 1),
    "act_late": (OutcomeUnknown, 0, 0),
}


def test_every_fault_has_a_case_here() -> None:
    assert set(OUTCOMES) == set(FAULTS)


@pytest.mark.parametrize("chosen", ["beforehand", "by this request"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_does_what_it_says(provider: Provider, order: str, fault: str, chosen: str) -> None:
    told, charges, charges_after_again = OUTCOMES[fault]
    how: dict[str, Any] = {"fault": fault} if chosen == "by this request" else {}
    if not how:
        provider.fail_next(fault)
    impatient = ProviderClient(provider.url, timeout_s=0.25)
    with pytest.raises(told) as raised:
        impatient.charge(order, amount_cents=4999, key=f"charge:{order}", **how)
    assert type(raised.value) is told
    assert len(provider.charges(order)) == charges
    if charges_after_again:
        assert charge(provider, order).done
    else:
        with pytest.raises(told):  # refused again, or still being worked on
            charge(provider, order)
    assert len(provider.charges(order)) == charges_after_again


def test_the_unknown_outcomes_look_alike_from_outside(provider: Provider, order: str) -> None:
    """An error text that told 500-before from 500-after would teach something untrue."""
    said = {}
    for fault in ("error_before", "error_after", "lost_request", "lost_reply"):
        with pytest.raises(OutcomeUnknown) as raised:
            charge(provider, order, fault=fault, key=f"{fault}:{order}")
        said[fault] = str(raised.value)
    assert said["error_before"] == said["error_after"]
    assert said["lost_request"] == said["lost_reply"]
    assert len(provider.charges(order)) == 2


def test_too_many_says_when_to_come_again(provider: Provider, order: str) -> None:
    with pytest.raises(NoEffect) as turned_away:
        charge(provider, order, fault="too_many")
    assert turned_away.value.retry_after_s == RETRY_AFTER_S


def test_a_refusal_is_remembered_and_a_new_key_is_a_new_attempt(
    provider: Provider, order: str
) -> None:
    with pytest.raises(Refused, match="card_declined"):
        charge(provider, order, fault="refuse")
    with pytest.raises(Refused, match="card_declined"):
        charge(provider, order)
    assert charge(provider, order, key=f"second:{order}").done
    assert len(provider.charges(order)) == 1


def test_who_acts_late_is_found_by_no_lookup_and_acts_all_the_same(
    provider: Provider, order: str
) -> None:
    with pytest.raises(OutcomeUnknown):
        charge(provider, order, fault="act_late")
    assert provider.client().find(key=f"charge:{order}") == []  # and yet:
    with pytest.raises(OutcomeUnknown, match="in_progress"):
        charge(provider, order)
    assert provider.charges(order) == []
    assert provider.settle() == 1
    assert len(provider.charges(order)) == 1
    assert charge(provider, order).replayed
    assert len(provider.charges(order)) == 1


def test_a_careless_retry_with_a_new_key_after_a_late_one_charges_twice(
    provider: Provider, order: str
) -> None:
    with pytest.raises(OutcomeUnknown):
        charge(provider, order, fault="act_late")
    assert provider.client().find(order_id=order) == []
    charge(provider, order, key=f"another:{order}")
    provider.settle()
    assert len(provider.charges(order)) == 2


def test_a_fault_waits_for_its_kind_and_for_its_count(provider: Provider, order: str) -> None:
    provider.fail_next("error_before", of="email", count=2)
    client = provider.client()
    client.charge(order, amount_cents=1)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            client.send_email(order, to="ada@example.org", text="x")
    client.send_email(order, to="ada@example.org", text="x")
    assert [e.kind for e in provider.entries(order)] == ["charge", "email"]


def test_a_fault_or_a_switch_that_does_not_exist_is_refused(provider: Provider) -> None:
    with pytest.raises(ValueError, match="There is no fault 'explode'"):
        provider.fail_next("explode")
    with pytest.raises(ValueError, match="moonlight"):
        provider.switch(moonlight=True)


def test_requests_are_attempts_and_entries_are_effects(provider: Provider, order: str) -> None:
    before = len(provider.requests())
    with pytest.raises(OutcomeUnknown):
        charge(provider, order, fault="lost_reply")
    charge(provider, order)
    assert provider.requests()[before:] == [
        {
            "kind": "charge",
            "key": f"charge:{order}",
            "fault": "lost_reply",
            "status": None,
            "replayed": False,
        },
        {"kind": "charge", "key": f"charge:{order}", "fault": "", "status": 201, "replayed": True},
    ]
    assert len(provider.entries(order)) == 1


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff"])
def test_a_request_that_is_none_is_turned_away(provider: Provider, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", provider.port, timeout=5)
    connection.request("POST", "/charges", body)
    assert connection.getresponse().status == 400
    connection.close()


# --------------------------------------------------------------------------- its process


def test_the_book_outlives_the_provider_and_a_new_one_goes_on_with_it(tmp_path: Path) -> None:
    with Provider.start(tmp_path) as first:
        with pytest.raises(OutcomeUnknown):
            charge(first, ORDER, fault="lost_reply")
        first.kill()
        assert [e.order_id for e in first.charges(ORDER)] == [ORDER]  # no server is asked
        with pytest.raises(NoEffect, match="not reached"):
            charge(first, ORDER)
    with Provider.start(tmp_path, port=first.port) as second:
        assert second.url == first.url
        assert charge(second, ORDER).replayed
        assert len(second.charges(ORDER)) == 1


def test_a_port_that_is_taken_is_said_at_once(provider: Provider) -> None:
    with pytest.raises(ChildFailed, match=r"[Aa]ddress"):
        Provider.start(port=provider.port)


def test_it_listens_on_loopback_only_and_leaves_nothing(tmp_path: Path) -> None:
    with Provider.start() as provider:
        process = psutil.Process(provider.pid)
        listening = [c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"]
        assert listening == ["127.0.0.1"]
        folder = provider.folder
        assert folder.exists()
    assert not process.is_running()
    assert not folder.exists()


def test_it_goes_when_its_parent_is_killed() -> None:
    script = (
        "from durable_kit.lab.provider import Provider\n"
        "p = Provider.start()\nprint(p.pid, p.folder, flush=True)\ninput()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid, folder = parent.stdout.readline().split()
    server = psutil.Process(int(pid))
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    psutil.wait_procs([server], timeout=10)
    assert not server.is_running()
    for left in Path(folder).iterdir():  # a killed process removes nothing; we do
        left.unlink()
    Path(folder).rmdir()


def test_the_server_loads_the_standard_library_and_little_else() -> None:
    """A lesson starts many; what it imports decides how long that takes."""
    code = (
        "import durable_kit.lab.provider_server, sys, json\n"
        "print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = set(json.loads(run.stdout))
    assert {"durable_kit", "http", "sqlite3"} <= loaded
    assert not loaded & {"langgraph", "langchain_core", "sqlalchemy", "pandas", "numpy"}


def test_a_slow_caller_does_not_hold_up_the_others(provider: Provider, order: str) -> None:
    slow = threading.Thread(
        target=lambda: ProviderClient(provider.url, timeout_s=10).charge(
            order, amount_cents=1, fault="slow"
        )
    )
    slow.start()
    other = ProviderClient(provider.url, timeout_s=5)
    assert other.charge(f"{order}-other", amount_cents=1).done
    slow.join(10)
    assert len(provider.charges(order)) == 1


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "http_proxy", "http://127.0.0.1:1")
    with Provider.start() as provider:
        assert charge(provider, ORDER).done
        assert provider.requests()[0]["status"] == 201
