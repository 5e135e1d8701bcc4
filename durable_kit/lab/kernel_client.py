"""A client of a Jupyter kernel that does not miss a reply.

A ZeroMQ socket says once that something has arrived, and forgets it at the next send (its FD is
edge-triggered). nbclient waits for a cell's reply without a limit, and meanwhile sends on the same
socket whatever an Output widget asks for. When the reply arrives just before such a send, the
kernel is idle, the reply lies there, and nbclient waits for ever: now and then, on a busy machine,
with a notebook that has an Output widget (https://github.com/jupyter/nbclient/issues/312).

    nbclient ── waits for the shell ──────────────── (for ever)
             ── sends a widget's state ─▶ the notice of the reply is gone

Here the wait is made of short ones, each of which begins with a look at the socket.

    NotebookClient(notebook, kernel_manager_class=KernelManager)
"""

from __future__ import annotations

import time
from queue import Empty
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.manager import AsyncKernelManager
from traitlets import Type

LOOK_S = 0.25


class _ShellChannel(AsyncZMQSocketChannel):
    async def get_msg(  # type: ignore[override]
        self, timeout: float | None = None
    ) -> dict[str, Any]:
        """The next message. Raises `queue.Empty` if none comes within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = LOOK_S if deadline is None else deadline - time.monotonic()
            try:
                return await super().get_msg(timeout=max(0.0, min(left, LOOK_S)))
            except Empty:
                if left <= LOOK_S and deadline is not None:
                    raise


class _KernelClient(AsyncKernelClient):
    shell_channel_class = Type(_ShellChannel)


class KernelManager(AsyncKernelManager):
    """jupyter_client's, whose clients look at the shell channel again and again."""

    client_factory = Type(_KernelClient)
