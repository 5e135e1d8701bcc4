"""Errors, grouped by what the caller does next.

A program that survives crashes meets errors at two very different moments. While it writes, the
value is in its hands and the fix is one line away. While it reads, perhaps after a deploy and on
another machine, the value exists only as bytes, and a wrong guess destroys it for good:

    process A   put(state)  ──────────────▶  bytes on disk
    deploy      class Order moves to another module
    process B   get() ──▶ class not found ──▶ returns None ──▶ next put() writes None over the order

So every error here says three things: *where* it happened, *what* was found, and *what to do
next*; and reading never answers with something smaller than what was written. Catch by the act
that follows, not by the place that raised:

    BadInput            change what you passed, nothing was written
      UnstorableValue     this value could not come back equal; its key path is in `path`
    UnloadableValue     bring the code back (or name its new place); the bytes are untouched
    BrokenChain         the stored history does not hold together; look, then `recover`
    SchemaMismatch      the tables belong to another release; migrate, or run the newer code
    StorageFull         make room, then run again; the last committed step is still there
    StorageDamaged      the file is no database any more; restore a backup, or salvage
    StorageBusy         someone else writes; try the same call again later

Left out: errors of the outside world (a refused payment, a lost lease). They live beside the
mechanism that raises them, under the same root, so that one `except DurableKitError` is enough
at the top of a program.
"""

from __future__ import annotations

from typing import Any


class DurableKitError(Exception):
    """Root of all errors of the kit. Survives pickling, so that it can cross a process pool."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception pickles by calling cls(*args); our classes take keyword-only facts instead.
        return _revive, (type(self), self.args, dict(self.__dict__))


def _revive(
    cls: type[DurableKitError], args: tuple[Any, ...], facts: dict[str, Any]
) -> DurableKitError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class BadInput(DurableKitError, ValueError):
    """The call cannot be carried out as asked. Change the arguments; nothing was written."""


class UnstorableValue(BadInput):
    """A value that would not come back equal, found before anything was written.

    `path` leads to it the way you would type it: `state['messages'][3].meta['when']`.
    """

    def __init__(self, *, path: str, type_name: str, reason: str, remedy: str) -> None:
        super().__init__(f"{path} ({type_name}) cannot be stored: {reason}. {remedy}")
        self.path = path
        self.type_name = type_name
        self.reason = reason
        self.remedy = remedy


class UnloadableValue(DurableKitError):
    """Stored bytes that cannot become the value they were. The bytes are left as they are.

    `class_name` is `module.qualname` where a class is missing, else the kind of value that
    was being read. The codec does not know which thread it reads for; a caller that does raises
    `error.at("thread t-1, checkpoint 1ef…")` instead.
    """

    def __init__(self, *, class_name: str, reason: str, remedy: str, where: str = "") -> None:
        place = f"{where}: " if where else ""
        super().__init__(f"{place}{class_name} cannot be loaded: {reason}. {remedy}")
        self.class_name = class_name
        self.reason = reason
        self.remedy = remedy
        self.where = where

    def at(self, where: str) -> UnloadableValue:
        """The same error with its place in front; raise it `from` this one."""
        return UnloadableValue(
            class_name=self.class_name, reason=self.reason, remedy=self.remedy, where=where
        )


class BrokenChain(DurableKitError):
    """A thread's records do not prove the state they should add up to.

    Raised in place of a shorter or older value. `checkpoint_id` and `sequence` name the first
    record that failed; they are None when the record itself is missing.
    """

    def __init__(
        self,
        *,
        thread_id: str,
        namespace: str,
        checkpoint_id: str | None,
        sequence: int | None,
        found: str,
        remedy: str,
    ) -> None:
        super().__init__(
            f"thread {thread_id!r}, namespace {namespace!r}, checkpoint {checkpoint_id!r}, "
            f"sequence {sequence}: {found}. {remedy}"
        )
        self.thread_id = thread_id
        self.namespace = namespace
        self.checkpoint_id = checkpoint_id
        self.sequence = sequence
        self.found = found
        self.remedy = remedy


class SchemaMismatch(DurableKitError):
    """The tables were made by another release of the kit. Migrate them, or run the newer code."""


class StorageFull(DurableKitError):
    """No room left. Nothing is damaged and nothing was deleted: make room and run again."""


class StorageDamaged(DurableKitError):
    """The database file itself cannot be read. Keep a copy; restore a backup, or salvage."""


class StorageBusy(DurableKitError):
    """Another writer held the database longer than the documented wait. Try the call again."""
