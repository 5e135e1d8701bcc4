"""A look at every connection that the kit takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from durable_kit import Database


@contextmanager
def each_connection(database: Database, look: Callable[[Any], None]) -> Iterator[None]:
    """Call `look` with the driver's connection whenever one is taken in the block."""
    if not database.is_sqlite:
        sa.event.listen(database.engine, "checkout", seen := lambda driver, *_: look(driver))
        yield
        sa.event.remove(database.engine, "checkout", seen)
        return
    connections: Any = database._sqlite
    take = connections.take

    def taken() -> Any:
        connection = take()
        look(connection)
        return connection

    connections.take = taken
    try:
        yield
    finally:
        del connections.take
