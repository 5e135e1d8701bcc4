"""What every panel owes its user, written once: Run, Cancel, Reset, and the truth about errors.

A widget in a notebook has four ways to annoy, and all of them come from *when* its callbacks run:

    you drag a slider              twenty values, twenty runs, and the figure is that of the first
    you press Run twice            two runs write into the same area
    you run the cell again         the old handlers are still there: one click, two runs
    it fails                       nothing happens: the error went to a log nobody reads

and from *where*: JupyterLab delivers callbacks while a cell is running, on another OS thread.

So a `Panel` does its work in one thread of its own, and one lock guards what is shared:

    refresh()   live controls: the newest request waits, one that was waiting before is dropped
    start()     buttons: ignored while a run is active
    cancel()    sets `job.cancelled`; the work looks at it and raises `Cancelled`, or anything
    reset()     as it was at first; the result of a run that is still going is thrown away
    close()     no handler and no widget is left; closing twice is harmless

A new panel closes the former one of the same name. An error is shown as one sentence with its
traceback folded under it, the last good result stays, and `last_error` keeps it for tests.
"""

from __future__ import annotations

import html
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import ipywidgets

Request = TypeVar("Request")
Result = TypeVar("Result")

_open: dict[str, Panel[Any, Any]] = {}
_open_lock = threading.Lock()


class Cancelled(Exception):
    """Raised by a panel's work when it noticed that nobody wants it any more."""


class Job:
    """What the work of a panel may use: say how far it is, and notice that it was cancelled."""

    def __init__(self, tell: Callable[[int, int, str], None]) -> None:
        self.cancelled = threading.Event()
        self._tell = tell

    def progress(self, done: int, total: int, what: str) -> None:
        """Show "what (done of total)". Raises `Cancelled` if the job was cancelled."""
        if self.cancelled.is_set():
            raise Cancelled
        self._tell(done, total, what)


class Panel(Generic[Request, Result]):
    """Controls above, a picture below. A child gives `request`, `work` and `render`.

    `last_result`, `last_error` and `runs` are for tests and for curious cells.
    """

    def __init__(
        self,
        *,
        name: str,
        controls: Sequence[Any] = (),
        live: Sequence[Any] = (),
        run_label: str = "Run",
        more_buttons: Sequence[Any] = (),
        height_px: int = 320,
        note: str = "",
    ) -> None:
        """`live` controls redraw when their value changes; a panel with them has no Run button."""
        self.name = name
        self.last_result: Result | None = None
        self.last_error: BaseException | None = None
        self.runs = 0
        self._lock = threading.RLock()
        self._waiting: Request | None = None
        self._job: Job | None = None
        self._worker: threading.Thread | None = None
        self._generation = 0
        self._quiet = self._closed = False
        self._first_values = [(control, control.value) for control in (*controls, *live)]
        self._live = list(live)
        self.run_button = ipywidgets.Button(description=run_label, button_style="primary")
        self.cancel_button = ipywidgets.Button(description="Cancel", disabled=True)
        self.reset_button = ipywidgets.Button(description="Reset")
        self._starters = [self.run_button, *more_buttons]
        self.bar = ipywidgets.FloatProgress(
            min=0, max=1, layout=ipywidgets.Layout(width="160px", visibility="hidden")
        )
        self.status = ipywidgets.HTML()
        self.error = ipywidgets.HTML()
        self.area = ipywidgets.HTML(layout=ipywidgets.Layout(min_height=f"{height_px}px"))
        shown = [self.run_button, *more_buttons, self.cancel_button, self.reset_button]
        buttons = [self.reset_button] if live else shown
        self.view = ipywidgets.VBox(
            [
                *([ipywidgets.HTML(note)] if note else []),
                *controls,
                *live,
                ipywidgets.HBox([*buttons, self.bar, self.status]),
                self.error,
                self.area,
            ]
        )
        self.run_button.on_click(lambda _: self.start())
        self.cancel_button.on_click(lambda _: self.cancel())
        self.reset_button.on_click(lambda _: self.reset())
        for control in live:
            control.observe(self._on_live_change, names="value")
        with _open_lock:
            former = _open.pop(name, None)
            _open[name] = self
        if former is not None:
            former.close()

    # -- what a child says ---------------------------------------------------------------------

    def request(self) -> Request:
        """What the controls ask for now."""
        raise NotImplementedError

    def work(self, request: Request, job: Job) -> Result:
        """The pure part. Runs in the panel's own thread; must not touch a widget."""
        raise NotImplementedError

    def render(self, result: Result) -> str:
        """HTML of a result. Pure: the same result gives the same text."""
        raise NotImplementedError

    def static_default(self) -> str:
        """HTML shown as an ordinary output before the panel, for readers without a kernel."""
        raise NotImplementedError

    def released(self) -> None:
        """Called once by `close`, for what else a child holds (a temporary directory)."""

    # -- what happens to it --------------------------------------------------------------------

    def start(self, request: Request | None = None) -> bool:
        """Run, unless a run is active already; then False. What a button calls."""
        with self._lock:
            if self._closed or self._worker is not None:
                return False
            self._hand_over(self.request() if request is None else request)
            return True

    def refresh(self) -> None:
        """Run for the newest values. A run for older ones is cancelled, a waiting one dropped."""
        with self._lock:
            if not self._closed:
                if self._job is not None:
                    self._job.cancelled.set()
                self._hand_over(self.request())

    def cancel(self) -> None:
        """Ask the active run to stop, and forget the waiting one. The last result stays."""
        with self._lock:
            if self._job is not None:
                self._job.cancelled.set()
                self.status.value = "cancelling…"
            elif self._waiting is not None:  # its worker has not begun yet
                self.status.value = "cancelled"
            self._waiting = None

    def reset(self) -> None:
        """Everything as it was when the panel was new."""
        with self._lock:
            self._generation += 1  # what is still running belongs to the past
            self.cancel()
            self._quiet = True
            for control, value in self._first_values:
                control.value = value
            self._quiet = False
            self.last_result = self.last_error = None
            self.error.value = self.status.value = self.area.value = ""
        if self._live:
            self.refresh()

    def close(self) -> None:
        """Cancel, and leave no handler and no widget behind."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.cancel()
            self._generation += 1
        with _open_lock:
            if _open.get(self.name) is self:
                del _open[self.name]
        for control in self._live:
            control.unobserve(self._on_live_change, names="value")
        for widget in _all_widgets(self.view):
            widget.close()
        self.wait(5)
        self.released()

    def wait(self, timeout_s: float = 30.0) -> bool:
        """Wait until nothing runs and nothing waits; False if that takes longer. For tests."""
        deadline = time.monotonic() + timeout_s
        while (worker := self._worker) is not None:
            if worker is threading.current_thread():
                return False
            worker.join(max(0.0, min(0.05, deadline - time.monotonic())))
            if time.monotonic() > deadline:
                return False
        return True

    def _ipython_display_(self) -> None:
        from IPython import display as ipython

        shown: Any = ipython
        shown.display(shown.HTML(self.static_default()), self.view)

    # -- the worker ----------------------------------------------------------------------------

    def _on_live_change(self, _change: Any) -> None:
        if not self._quiet:
            self.refresh()

    def _hand_over(self, request: Request) -> None:
        self._waiting = request
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._show_busy(True)
            self._worker.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                request, self._waiting = self._waiting, None
                if request is None or self._closed:
                    self._worker = self._job = None
                    self._show_busy(False)
                    return
                job = self._job = Job(self._tell)
                generation = self._generation
            self._run_one(request, job, generation)

    def _run_one(self, request: Request, job: Job, generation: int) -> None:
        result: Result | None = None
        shown = ""
        error: BaseException | None = None
        try:
            result = self.work(request, job)
            shown = self.render(result)
        except Cancelled:
            pass
        except Exception as raised:
            # What a cancelled work stumbles over, a process that was ended for one, is no failure.
            error = None if job.cancelled.is_set() else raised
        with self._lock:
            if generation != self._generation or self._waiting is not None:
                return  # somebody has asked for something newer, or for nothing
            self.last_error = error
            self.error.value = "" if error is None else error_html(error)
            if error is not None or job.cancelled.is_set():
                self.status.value = "failed" if error is not None else "cancelled"
                return
            self.last_result = result
            self.area.value = shown
            self.runs += 1
            self.status.value = ""

    def _tell(self, done: int, total: int, what: str) -> None:
        self.bar.value = done / total if total else 0
        self.status.value = html.escape(f"{what} ({done} of {total})")

    def _show_busy(self, busy: bool) -> None:
        if self._closed:
            return
        for button in self._starters:
            button.disabled = busy
        self.cancel_button.disabled = not busy
        self.bar.value = 0
        self.bar.layout.visibility = "visible" if busy and not self._live else "hidden"


def error_html(error: BaseException) -> str:
    """One plain sentence, and the traceback folded under it."""
    sentence = str(error).strip().split("\n")[0] or type(error).__name__
    trace = "".join(traceback.format_exception(error))
    return (
        '<div data-kit-error="1" role="alert" '
        'style="border-left:4px solid #b00020;padding:4px 10px;line-height:1.4">'
        f"{html.escape(type(error).__name__)}: {html.escape(sentence)}"
        f"<details><summary>Details</summary><pre>{html.escape(trace)}</pre></details></div>"
    )


def _all_widgets(widget: Any) -> list[Any]:
    return [w for child in getattr(widget, "children", ()) for w in _all_widgets(child)] + [widget]
