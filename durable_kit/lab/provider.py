"""A payment and e-mail provider to work against: a real HTTP server with a memory of its own.

    with Provider.start() as provider:
        client = provider.client()
        provider.fail_next("lost_reply")
        client.charge("order-1001", amount_cents=4999, key="charge:order-1001")  # OutcomeUnknown
        provider.charges("order-1001")                                           # one entry

The provider is the outside world of an agent. It runs in a process of its own, keeps a book of its
own (`provider_book.py`), and can be told to fail in the ways in which providers fail
(`provider_server.py`). Our process may be killed at any line: the book stays, and is the only
judge of "was it charged twice?".

    our process    charge ──▶ ✗ killed                    what we think: nothing happened
    the provider             charge-1, 49.99              what happened

`provider.charges(…)` reads the book's file, and asks nobody: it answers when the server is dead,
and it counts what our own database has never heard of.

What is promised: loopback only, a free port, nothing left behind. The server ends with this
process, however this process ends, and after `deadline_s` in any case.
"""

from __future__ import annotations

import json
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Self

from durable_kit.crash.child import Child
from durable_kit.lab.provider_book import BOOK, Entry, read_entries
from durable_kit.lab.provider_client import ProviderClient
from durable_kit.lab.provider_server import LISTENING

SERVER = "durable_kit.lab.provider_server"
_CONTROL_TIMEOUT_S = 30.0


class Provider:
    """A running provider. Use it in a `with`: its process never stays."""

    def __init__(
        self, child: Child, url: str, folder: Path, own: tempfile.TemporaryDirectory[str] | None
    ) -> None:
        self._child = child
        self._own_folder = own
        self.url = url
        self.folder = folder

    @classmethod
    def start(
        cls,
        folder: Path | None = None,
        *,
        port: int = 0,
        deadline_s: float = 3600.0,
        timeout_s: float = 30.0,
        **switches: Any,
    ) -> Self:
        """Start one, with a new book, or with the book that is in `folder` already.

        `folder`: default a temporary one that is removed. `port`: default a free one; give that of
        a provider which has died and it is up again at the same address. `switches`: the fields of
        `provider_book.Switches`, such as `honours_keys=False`.
        """
        own = None
        if folder is None:
            own = tempfile.TemporaryDirectory(prefix="kit-provider-", ignore_cleanup_errors=True)
            folder = Path(own.name)
        child = Child.start(
            SERVER,
            [str(folder), "--port", str(port), "--switches", json.dumps(switches)],
            deadline_s=deadline_s,
        )
        try:
            line = child.until(LISTENING, timeout_s=timeout_s)
        except BaseException:
            child.close()
            if own is not None:
                own.cleanup()
            raise
        return cls(child, line.removeprefix(LISTENING), folder, own)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, *, timeout_s: float = 10.0) -> ProviderClient:
        """A client of this provider. Other processes make their own from `url`."""
        return ProviderClient(self.url, timeout_s=timeout_s)

    # -- what has really happened --------------------------------------------------------------

    def entries(self, order_id: str | None = None) -> list[Entry]:
        """Everything that was done, oldest first; for one order or for all."""
        return self._read(None, order_id)

    def charges(self, order_id: str | None = None) -> list[Entry]:
        return self._read("charge", order_id)

    def refunds(self, order_id: str | None = None) -> list[Entry]:
        return self._read("refund", order_id)

    def emails(self, order_id: str | None = None) -> list[Entry]:
        return self._read("email", order_id)

    def charged_twice(self) -> list[str]:
        """The orders that have more than one charge."""
        counts = Counter(entry.order_id for entry in self.charges())
        return sorted(order_id for order_id, count in counts.items() if count > 1)

    def requests(self) -> list[dict[str, Any]]:
        """Every request that arrived, oldest first: kind, key, fault, status, replayed.

        Attempts, where `entries` are effects. Kept in memory: a provider that died has none.
        """
        found: list[dict[str, Any]] = self._control("requests")["requests"]
        return found

    # -- what shall go wrong -------------------------------------------------------------------

    def fail_next(
        self, fault: str, *, count: int = 1, of: str = "", delay_s: float | None = None
    ) -> None:
        """Let the next `count` requests fail in one of the ways of `provider_server.FAULTS`.

        `of`: only those of this kind: "charge", "refund", "email" or "lookup". `delay_s`: how long
        a slow one takes (default 0.5), or after what time `act_late` acts (default: at `settle`).
        """
        self._control("faults", name=fault, count=count, of=of, delay_s=delay_s)

    def calm(self) -> None:
        """Forget the faults that still wait."""
        self._control("calm")

    def settle(self) -> int:
        """Let everything that was to happen late happen now; how much that was."""
        settled: int = self._control("settle")["settled"]
        return settled

    def switch(self, **switches: Any) -> None:
        """Change some of `provider_book.Switches`."""
        self._control("switches", **switches)

    def advance(self, *, seconds: float) -> None:
        """Move the provider's clock forward: keys grow old without anybody waiting."""
        self._control("advance", seconds=seconds)

    def kill(self) -> None:
        """Let the provider itself die. Its book stays where it is until `close`."""
        self._child.kill()

    def close(self) -> None:
        """End the process, and remove the book if it lies in a temporary folder."""
        self._child.close()
        if self._own_folder is not None:
            self._own_folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, kind: str | None, order_id: str | None) -> list[Entry]:
        return read_entries(self.folder / BOOK, kind=kind, order_id=order_id)

    def _control(self, what: str, **body: Any) -> Any:
        request = urllib.request.Request(
            f"{self.url}/_control/{what}", json.dumps(body).encode(), method="POST"
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_CONTROL_TIMEOUT_S) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(json.load(error)["message"]) from None
