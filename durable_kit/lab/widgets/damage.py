"""Damage a byte, look, recover: on a small real database in a temporary directory.

Nothing is modelled here. The button opens the database file as any program could and changes one
bit of one stored message; `verify`, the failing read and `recover` are the library's own.
"""

from __future__ import annotations

import html
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import ipywidgets

from durable_kit.lab import damage
from durable_kit.lab.damage import Damaged, Flip
from durable_kit.lab.widgets.base import Job, Panel
from durable_kit.storage.recovery import Recovery

Action = Literal["damage", "recover"]
SHOWN_PROBLEMS = 4


@dataclass(frozen=True, slots=True)
class DamageRequest:
    """What to do to which specimen. The same request on a new file flips the same bit."""

    action: Action
    path: Path
    messages: int
    flips: tuple[Flip, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done, and how the specimen stands after it."""

    messages_at_first: int
    seen: Damaged
    recovery: Recovery | None


def act(request: DamageRequest, job: Job) -> Damage:
    """Make the specimen if it is not there, do what is asked, look at it as a new process would."""
    path, flips = request.path, request.flips
    if not path.exists():
        job.progress(0, 3, "writing a conversation")
        damage.make_specimen(path, messages=request.messages)
    recovery = None
    if request.action == "damage":
        job.progress(1, 3, "flipping one bit in the file")
        flips = (*flips, damage.flip_byte(path, Random(request.seed + len(flips))))
    else:
        job.progress(1, 3, "recovering")
        recovery, flips = damage.recover(path), ()
    job.progress(2, 3, "verifying, and reading the newest state")
    return Damage(request.messages, damage.look(path, flips), recovery)


def damage_html(result: Damage) -> str:
    """What was changed, what `verify` says, what a reader gets, what `recover` lost."""
    seen, recovery = result.seen, result.recovery
    lines: list[str] = []
    if recovery is not None:
        lines.append(
            f"<b>recover</b>: fell back to the newest state that checks out. Lost: "
            f"<b>{recovery.lost_steps} steps</b>, {recovery.lost_writes} pending writes; "
            f"{recovery.lost_bytes:,} bytes moved to quarantine, none deleted."
            if recovery.problems
            else "<b>recover</b>: nothing was damaged, so nothing was done."
        )
    lines += [f"<b>changed</b>: {html.escape(str(flip))}" for flip in seen.flips]
    lines.append(
        f"<b>verify</b>: {seen.records} records, "
        + (f"{len(seen.problems)} problems" if seen.problems else "no problem")
    )
    if seen.problems:
        items = "".join(f"<li>{html.escape(p)}</li>" for p in seen.problems[:SHOWN_PROBLEMS])
        if len(seen.problems) > SHOWN_PROBLEMS:
            items += f"<li>and {len(seen.problems) - SHOWN_PROBLEMS} more</li>"
        lines.append(f'<ul style="line-height:1.4;margin:0">{items}</ul>')
    lines.append(
        f"<b>reading the newest state</b>: {html.escape(seen.error)}"
        if seen.error
        else f"<b>reading the newest state</b>: {seen.messages} of "
        f"{result.messages_at_first} messages"
    )
    return "".join(f'<div style="margin:4px 0;line-height:1.4">{line}</div>' for line in lines)


class DamagePanel(Panel[DamageRequest, Damage]):
    """Two buttons, a specimen. Reset begins with a new database."""

    def __init__(self, *, messages: int = 40, seed: int = 5) -> None:
        self.recover_button = ipywidgets.Button(description="Recover", button_style="success")
        super().__init__(
            name="damage",
            run_label="Damage a byte",
            more_buttons=[self.recover_button],
            height_px=120,
        )
        self._messages, self._seed = messages, seed
        self._folder = Path(tempfile.mkdtemp(prefix="kit-specimen-"))
        # Also when the kernel ends without anybody calling close.
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.recover_button.on_click(lambda _: self.start(self.request("recover")))

    def request(self, action: Action = "damage") -> DamageRequest:
        with self._lock:
            flips = self.last_result.seen.flips if self.last_result is not None else ()
            path = self._folder / f"specimen-{self._generation}.db"  # a new one after each reset
            return DamageRequest(action, path, self._messages, flips, self._seed)

    def work(self, request: DamageRequest, job: Job) -> Damage:
        return act(request, job)

    def render(self, result: Damage) -> str:
        return damage_html(result)

    def static_default(self) -> str:
        return (
            f"<p>A conversation of {self._messages} messages waits in a database file of its own. "
            "<b>Damage a byte</b> changes one bit of it; <b>Recover</b> falls back to what checks "
            "out.</p>"
        )

    def released(self) -> None:
        self._remove()
