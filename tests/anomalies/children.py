"""Child processes that begin at once.

Loading LangGraph takes a second, and these tests start dozens of processes. A fork server loads it
once; each child is then a fork of that clean process and not of pytest, with no connection, no
lock and no OS thread to inherit. Where there is no fork, each child loads everything itself.
"""

from __future__ import annotations

import multiprocessing
import sys

context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
if sys.platform != "win32":
    context.set_forkserver_preload(
        [
            "pytest",
            "tests.anomalies.gateway_worker",
            "tests.anomalies.kill_worker",
            "tests.anomalies.maintenance_worker",
            "tests.anomalies.open_worker",
            "tests.anomalies.process_worker",
        ]
    )
