"""The provider's process: HTTP in front of its book, and every way in which a call can go wrong.

    POST /charges /refunds /emails   Idempotency-Key: …      act, and answer 201
                                     Prefer: respond-async   accept, answer 202; then poll
    GET  /effects/charge-7                                   poll
    GET  /effects?key=…  or  ?order_id=…                     what has happened?

A caller sees one of four things, and only two of them tell it what to do next:

    fault            the effect   what the caller sees           what the caller knows
    (none)           happens      201                            it happened
    refuse           does not     402                            it did not; a business decision
    too_many         does not     429 and Retry-After            it did not; try again later
    error_before     does not     500                            nothing
    error_after      happens      500                            nothing
    lost_request     does not     the connection ends            nothing
    lost_reply       happens      the connection ends            nothing
    slow             happens      nothing for `delay_s`          nothing, if it is less patient
    act_late         later        the connection ends            nothing; and asking finds nothing

The second and the third block look alike from outside, and that is the whole lesson. A fault is
chosen by the header `X-Fault` of one request, or beforehand for the next n requests of a kind.

Started by `durable_kit.lab.provider.Provider`; it imports the standard library and the kit's
smallest files only, since a lesson starts many of it. It goes when its parent goes.
"""

from __future__ import annotations

import argparse
import json
import socketserver
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from durable_kit.clock import SystemClock
from durable_kit.crash.child import stay_no_longer_than_the_parent
from durable_kit.lab.provider_book import BOOK, KINDS, Answer, Book, Switches

LISTENING = "listening at "
RETRY_AFTER_S = 1
LONGEST_DELAY_S = 60.0
FAULTS = (
    "refuse",
    "too_many",
    "error_before",
    "error_after",
    "lost_request",
    "lost_reply",
    "slow",
    "act_late",
)
_NEVER_ACTS = {
    "too_many": Answer(429, {"error": "too_many_requests", "message": "slow down"}),
    "error_before": Answer(500, {"error": "server_error", "message": "something went wrong"}),
    "lost_request": None,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with a request. `of`: only for this kind ("lookup" for GET); "" for any."""

    name: str
    of: str = ""
    delay_s: float | None = None

    def __post_init__(self) -> None:
        if self.name not in FAULTS:
            raise ValueError(f"There is no fault {self.name!r}; there are {', '.join(FAULTS)}.")
        if not 0 <= (self.delay_s or 0) <= LONGEST_DELAY_S:
            raise ValueError(f"delay_s goes up to {LONGEST_DELAY_S:g}, not {self.delay_s}.")


class ShiftedClock(SystemClock):
    """The machine's clock, moved forward on demand: a day passes without anybody waiting."""

    shift_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.shift_us


class ProviderServer(ThreadingHTTPServer):
    """One provider: its book, its switches, and the faults that wait for the next requests."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, port: int) -> None:
        self.clock = ShiftedClock()
        self.book = Book(folder / BOOK, clock=self.clock)
        self.switches = Switches()
        self.waiting: list[Fault] = []
        self.seen: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)

    def server_bind(self) -> None:
        # HTTPServer would look up this machine's name here, which takes seconds on some networks.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def fault_for(self, kind: str) -> Fault | None:
        """The first waiting fault that fits; it waits no longer."""
        with self.lock:
            for index, fault in enumerate(self.waiting):
                if fault.of in ("", kind):
                    return self.waiting.pop(index)
        return None

    def control(self, what: str, body: Mapping[str, Any]) -> Any:
        """What the experimenter may do, and no caller: set switches and faults, let time pass."""
        if what == "switches":
            self.switches = replace(self.switches, **body)
            return asdict(self.switches)
        if what == "faults":
            fault = Fault(body["name"], body.get("of", ""), body.get("delay_s"))
            with self.lock:
                self.waiting += [fault] * int(body.get("count", 1))
            return {"waiting": len(self.waiting)}
        if what == "calm":
            with self.lock:
                self.waiting.clear()
            return {"waiting": 0}
        if what == "advance":
            self.clock.shift_us += round(body["seconds"] * 1_000_000)
            return {"now_us": self.clock.now_us()}
        if what == "settle":
            return {"settled": self.book.settle()}
        if what == "requests":
            with self.lock:
                return {"requests": list(self.seen)}
        raise ValueError(f"The provider cannot be told {what!r}.")


class Handler(BaseHTTPRequestHandler):
    """One connection, one request, one answer, or none."""

    server: ProviderServer
    timeout = 30  # a caller that sends half a request does not hold an OS thread for ever
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        body = self._body()
        if body is None:
            self._send(Answer(400, {"error": "bad_json", "message": "a JSON object, please"}))
        elif path.startswith("/_control/"):
            try:
                self._send(Answer(200, self.server.control(path.removeprefix("/_control/"), body)))
            except (KeyError, TypeError, ValueError) as error:
                self._send(Answer(400, {"error": "bad_control", "message": str(error)}))
        elif (kind := path.removeprefix("/").removesuffix("s")) not in KINDS:
            self._send(Answer(404, {"error": "not_found", "message": f"nothing is at {path}"}))
        elif not body.get("order_id"):
            self._send(Answer(400, {"error": "no_order", "message": "order_id is missing"}))
        else:
            self._act(kind, body)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        fault = self._fault("lookup")
        if fault is not None and fault.name in ("error_before", "error_after", "too_many"):
            answer = _NEVER_ACTS["too_many" if fault.name == "too_many" else "error_before"]
        elif fault is not None and fault.name in ("lost_request", "lost_reply"):
            answer = None
        elif parts.path.startswith("/effects/"):
            answer = self.server.book.poll(parts.path.removeprefix("/effects/"))
        elif parts.path == "/effects" and (query.get("key") or query.get("order_id")):
            answer = self.server.book.find(
                key=query.get("key"),
                order_id=query.get("order_id"),
                switches=self.server.switches,
            )
        else:
            answer = Answer(404, {"error": "not_found", "message": "ask for a key or an order_id"})
        self._note("lookup", query.get("key"), fault, answer)
        self._answer(fault, answer)

    def _act(self, kind: str, body: Mapping[str, Any]) -> None:
        key = self.headers.get("Idempotency-Key")
        fault = self._fault(kind)
        name = fault.name if fault else ""
        if name in _NEVER_ACTS:
            answer = _NEVER_ACTS[name]
            self._note(kind, key, fault, answer)
            self._answer(fault, answer)
            return
        polled = "respond-async" in self.headers.get("Prefer", "")
        done = self.server.book.act(
            kind,
            body,
            key=key,
            switches=self.server.switches,
            refuse=name == "refuse",
            state="late" if name == "act_late" else "pending" if polled else "done",
        )
        seen: Answer | None = done
        if name == "error_after":
            seen = _NEVER_ACTS["error_before"]  # word for word what it says before acting
        elif name == "lost_reply":
            seen = None
        elif name == "act_late" and done.status == 202:
            seen = None
            if fault is not None and fault.delay_s is not None:
                no = int(done.body["id"].rpartition("-")[2])
                timer = threading.Timer(fault.delay_s, self.server.book.settle, (no,))
                timer.daemon = True
                timer.start()
        self._note(kind, key, fault, seen)
        self._answer(fault, seen)

    def _fault(self, kind: str) -> Fault | None:
        name = self.headers.get("X-Fault")
        if name in FAULTS:
            delay_s = min(float(self.headers.get("X-Fault-Delay-S", "0.5")), LONGEST_DELAY_S)
            return Fault(name, delay_s=delay_s if name == "slow" else None)
        return self.server.fault_for(kind)

    def _note(self, kind: str, key: str | None, fault: Fault | None, answer: Answer | None) -> None:
        with self.server.lock:
            self.server.seen.append(
                {
                    "kind": kind,
                    "key": key,
                    "fault": fault.name if fault else "",
                    "status": answer.status if answer else None,
                    "replayed": answer is not None and answer.replayed,
                }
            )

    def _body(self) -> dict[str, Any] | None:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or "{}")
        except ValueError:
            return None
        return body if isinstance(body, dict) else None

    def _answer(self, fault: Fault | None, answer: Answer | None) -> None:
        if fault is not None and fault.name == "slow":
            time.sleep(fault.delay_s if fault.delay_s is not None else 0.5)
        if answer is None:
            self.close_connection = True  # and not one byte is sent: the caller sees an end
        else:
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        content = json.dumps(answer.body).encode()
        try:
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if answer.replayed:
                self.send_header("Idempotent-Replayed", "true")
            if answer.status == 429:
                self.send_header("Retry-After", str(RETRY_AFTER_S))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True  # the caller has gone; what was done is done

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: stdout belongs to the parent's handshake."""


def main(argv: list[str] | None = None) -> int:
    """Serve until the parent goes, or kills this process."""
    parser = argparse.ArgumentParser(prog="python -m durable_kit.lab.provider_server")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--switches", default="{}")
    arguments = parser.parse_args(argv)
    stay_no_longer_than_the_parent()
    server = ProviderServer(arguments.folder, arguments.port)
    server.control("switches", json.loads(arguments.switches))
    print(f"{LISTENING}http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
