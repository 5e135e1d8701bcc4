"""Several transactions, one commit.

A commit that survives a power loss waits for the disk, and that wait is most of the time of a small
write. SQLite has one writer at a time, so while one OS thread waits for the disk the next waits for
its turn. They could have shared the wait:

    put_writes  BEGIN  INSERT  COMMIT ~~ disk ~~
    put                   (waits for its turn …)  BEGIN  INSERT  COMMIT ~~ disk ~~

    put_writes  BEGIN  INSERT ─┐ hands over                            ┌─ returns
    put                        └─ SAVEPOINT  INSERT  COMMIT ~~ disk ~~ ┴─ returns

So a transaction that ends while another OS thread of this process is waiting does not commit: it
leaves that to the one that follows, and returns when the commit has happened. LangGraph writes a
task's result and the next checkpoint in two threads at nearly the same moment; with this a
super-step costs one wait instead of two. Who has something to prepare before its transaction can
say so (`soon`); and who knows that another one follows almost always, as a checkpoint follows the
writes of its step, can leave the door open for a moment (`linger`).

What is promised is the same as without it: `transaction` returns when its own work is on the disk,
and raises when it is not. If a later member's block raises, only that member's work is undone (its
savepoint). If the commit fails, all members hear it.

Left out: writers of other processes. SQLite's own lock makes them queue, each with its own commit.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from durable_kit.storage.sqlite_connections import SqliteConnections
from durable_kit.storage.tx import Tx

_AT_MOST = 16  # members of a group: the first should not wait for ever
_IN_VAIN, _TRY_AGAIN = 4, 32  # after so many vain waits, linger one time in so many
_NUMBERS = count(1)  # of writers. A child made by fork goes on counting: it must not meet a moment
# that its parent has named


class _Group:
    """Transactions that are committed together.

    The flag is the truth, and the lock only wakes who waits: an interrupt may come between any two
    of these lines, and must not leave anybody waiting for a lock that nobody will release.
    """

    __slots__ = ("_wake", "closed", "error", "members")

    def __init__(self) -> None:
        self.members = 1
        self.closed = False
        self.error: BaseException | None = None
        self._wake = threading.Lock()
        self._wake.acquire()

    def close(self, error: BaseException | None) -> None:
        self.error, self.closed = error, True
        if self._wake.locked():
            self._wake.release()

    def wait(self, timeout_s: float) -> bool:
        """Whether it is closed, at the latest after that time."""
        if not self.closed and self._wake.acquire(timeout=timeout_s):
            self._wake.release()  # for the next one
        return self.closed


class _Here(threading.local):
    announced = False  # whether this OS thread has an entry among those waiting


class GroupCommit:
    """The write transactions of one process on one SQLite database.

    `patience_s`: a transaction whose commit was left to another does it itself after that time.
    `linger_s`: how long one that lingers waits for another to be announced. It keeps the write
    lock meanwhile, which other processes wait for.
    """

    def __init__(
        self,
        connections: SqliteConnections,
        *,
        patience_s: float = 0.005,
        linger_s: float = 0.001,
    ) -> None:
        self.patience_s = patience_s
        self.linger_s = linger_s
        self._connections = connections
        self._lock = threading.RLock()
        self._waiting: deque[None] = deque()  # one entry for each OS thread that wants the lock
        self._here = _Here()
        self._group: _Group | None = None  # whose transaction is open, between two members
        self._writer: sqlite3.Connection | None = None
        self._number = self._writes = 0  # of the writer, and how many there were: `Tx.moments`
        self._asked = self._vain = 0  # how often somebody wanted to linger, and nobody came

    @contextmanager
    def transaction(self, *, linger: bool = False) -> Iterator[Tx]:
        """One transaction: on the disk when this returns, undone when the block raises.

        `linger`: wait a moment with the commit, since another one is likely to follow at once.
        """
        self._announce()
        try:
            self._lock.acquire()
        finally:
            self._arrive()
        group: _Group | None = None
        lingers = False
        try:
            try:
                try:
                    group = self._join()
                    tx = self._new_tx()
                    yield tx
                    for act in tx.then:
                        act()
                    if group.members > 1:
                        self._run("RELEASE member")
                except BaseException as error:
                    self._undo(group, error)
                    raise
                finally:
                    if group is not None and self._group is group:
                        lingers = self._commit_or_leave(group, linger)
            finally:
                self._lock.release()
            self._settle(group, lingers)
        except BaseException:
            if group is not None:
                self._commit_after_all(group)  # or it stays open, and no other process can write
            raise

    @contextmanager
    def soon(self) -> Iterator[None]:
        """Say that a transaction of this OS thread follows in the block, worth waiting for."""
        self._announce()
        try:
            yield
        finally:
            self._arrive()

    def acquire(self, *, timeout_s: float = -1, within: bool = False) -> bool:
        """Take the turn of a writer without a transaction; whether it was to be had in time.

        `within`: the caller's own transaction is open, and stays so.
        """
        held = self._lock.acquire(timeout=timeout_s)
        if held and self._group is not None and not within:
            self._commit(self._group)
        return held

    def release(self) -> None:
        """Give the turn back."""
        self._lock.release()

    def drop_writer(self) -> None:
        """Let the connection go, rolling back what it has open. Only for who has the turn."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._connections.give(writer)

    # -- helpers -----------------------------------------------------------------------------

    def _announce(self) -> None:
        if not self._here.announced:
            self._here.announced = True
            self._waiting.append(None)

    def _arrive(self) -> None:
        if self._here.announced:
            self._here.announced = False
            self._waiting.pop()

    def _join(self) -> _Group:
        if self._group is None:
            if self._writer is None:
                self._writer = self._connections.take()
                self._number = next(_NUMBERS)
            self._run("BEGIN IMMEDIATE")
            self._group = _Group()
        else:
            self._vain = 0
            self._group.members += 1
            self._run("SAVEPOINT member")
        return self._group

    def _new_tx(self) -> Tx:
        self._writes += 1
        counted = 0 if self._connections.in_memory else self._writes
        return Tx(self._writer, number=(self._number, counted))

    def _run(self, sql: str) -> None:
        assert self._writer is not None
        self._writer.execute(sql)

    def _undo(self, group: _Group | None, error: BaseException) -> None:
        """Undo the work of the last member; of all, where SQLite has already done so."""
        group = group or self._group  # it was interrupted while it joined
        if group is not None and group.members > 1 and self._writer is not None:
            try:
                self._run("ROLLBACK TO member")
                self._run("RELEASE member")
                group.members -= 1
                self._number = next(_NUMBERS)  # what its `then` has remembered is not so
                return
            except sqlite3.Error:  # a full disk, for one, ends the whole transaction
                pass
        self.drop_writer()  # the next transaction gets a fresh start
        self._close(group, error)

    def _commit_or_leave(self, group: _Group, linger: bool) -> bool:
        """Returns whether the caller lingers."""
        # Who lingers does so alone: others would have to wait with it.
        lingers = linger and group.members == 1 and self._is_worth_it()
        if not lingers and not (self._waiting and group.members < _AT_MOST):
            self._commit(group)
        return lingers

    def _is_worth_it(self) -> bool:
        """Whether to linger: not where one OS thread does one thing after the other."""
        self._asked += 1
        return self.linger_s > 0 and (self._vain < _IN_VAIN or self._asked % _TRY_AGAIN == 0)

    def _commit(self, group: _Group) -> None:
        assert self._writer is not None
        try:
            # A crash before this loses what all members wrote, and none of them has returned.
            self._writer.commit()
        except BaseException as error:
            self.drop_writer()
            self._close(group, error)
        else:
            self._close(group, None)

    def _close(self, group: _Group | None, error: BaseException | None) -> None:
        self._group = None
        if group is not None:
            group.close(error)

    def _settle(self, group: _Group, lingers: bool) -> None:
        """Wait for the commit, if it was left to another."""
        if lingers and not group.wait(self.linger_s) and not (self._waiting or group.members > 1):
            self._vain += 1
            self._commit_after_all(group)
        while not group.wait(self.patience_s):
            self._commit_after_all(group)
        if group.error is not None:
            raise group.error

    def _commit_after_all(self, group: _Group) -> None:
        """Where the one it was left to takes long, or was sent away."""
        if group.closed:
            return  # whoever has the turn now need not be waited for
        with self._lock:
            if self._group is group:
                self._commit(group)
