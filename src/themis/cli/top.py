"""``themis top``: a live console in the terminal: machines and their GPUs, the queue, shares; with textual (extra ``top``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from themis.cli.ask import summary
from themis.cli.options import Home, User
from themis.cli.table_columns import APPS, JOBS, SHARES, Columns, last_words, service_of, totals_of
from themis.cli.terminal_table import lines_of, shortened
from themis.errors import InputError, ThemisError

if TYPE_CHECKING:
    from textual.app import App

WATCH_S = 2.0
ORDERS: Sequence[tuple[str, Callable[[Any], Any]]] = (
    ("number", lambda app: app["id"]),
    ("user", lambda app: (app["user"], app["id"])),
    ("state", lambda app: (app["state"], app["id"])),
    ("GPUs", lambda app: (-app["gpus"], app["id"])),
    ("time", lambda app: (-app.get("elapsed_s", 0.0), app["id"])),
)
"""Sort orders of the queue; the key ``s`` cycles through them."""
QUEUE: Columns = {**APPS, "name": lambda app: shortened(app["name"], 20)}


def top(user: User = "", home: Home = None) -> None:
    """Show machines, queue and shares live; keys sort, show, hold and cancel.

    Needs the extra [cyan]top[/cyan]: pip install 'themis-scheduler[top]'.

    Example: [cyan]themis top[/cyan]
    """
    try:
        made = console(home, user)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("textual"):
            raise
        raise InputError(
            "themis top needs the package textual, which is not installed; run pip install 'themis-scheduler[top]'."
        ) from None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("themis top needs a terminal; for a file or a pipe, use themis queue or themis nodes.")
    service_of(home).call("Nodes")  # without a service this says so, before the screen is taken
    made.run()


def gpus_of(node: Mapping[str, Any]) -> str:
    """A machine's GPUs as a bar: leased, withheld, free."""
    size, withheld = int(node["gpus"]), int(node.get("withheld", 0))
    leased = min(int(node["leased"]), size)
    free = max(size - leased - withheld, 0)
    if size <= 32:
        return "█" * leased + "x" * withheld + "░" * free
    full = round(leased * 32 / size)
    return "█" * full + "░" * (32 - full)


def show_text(found: Any, width: int) -> str:
    """The text that ``themis show`` prints for an app."""
    rows = [[str(cell(job)) for cell in JOBS.values()] for job in found["jobs"][:200]]
    return "\n".join(
        [
            summary(found["app"], found.get("sentence", "")),
            "",
            *lines_of(list(JOBS), rows, width, paint=False),
            "",
            *last_words(found),
        ]
    )


def console(home: Path | None, user: str = "") -> App[None]:
    """The console as textual's app; calls to the service run in a thread, so that keys keep working."""
    from textual import work
    from textual.app import App, ComposeResult
    from textual.binding import Binding, BindingType
    from textual.containers import VerticalScroll
    from textual.screen import ModalScreen
    from textual.widgets import DataTable, Footer, Header, Static

    class Shown(ModalScreen[None]):
        """An app and its jobs."""

        BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "Close")]
        DEFAULT_CSS = "Shown > VerticalScroll { margin: 1 2; border: round $primary; background: $surface; }"

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

        def compose(self) -> ComposeResult:
            """One text that scrolls."""
            with VerticalScroll():
                yield Static(self.text, markup=False)

    class Asked(ModalScreen[bool]):
        """A question before something ends."""

        BINDINGS: ClassVar[list[BindingType]] = [
            Binding("y", "answer(True)", "Yes"),
            Binding("n,escape,q", "answer(False)", "No"),
        ]
        DEFAULT_CSS = """
        Asked { align: center middle; }
        Asked > Static { width: auto; padding: 1 3; border: round $error; background: $surface; }
        """

        def __init__(self, question: str) -> None:
            super().__init__()
            self.question = question

        def compose(self) -> ComposeResult:
            """The question and the keys that answer it."""
            yield Static(f"{self.question}\n\ny: yes    n: no", markup=False)

        def action_answer(self, yes: bool) -> None:
            """Close with the answer."""
            self.dismiss(yes)

    class Top(App[None]):
        """Machines, queue and shares."""

        TITLE = "themis top"
        BINDINGS: ClassVar[list[BindingType]] = [
            Binding("q", "quit", "Quit"),
            Binding("s", "sort", "Sort"),
            Binding("enter", "show", "Show", priority=False),
            Binding("c", "cancel", "Cancel"),
            Binding("h", "hold", "Hold"),
            Binding("r", "resume", "Resume"),
        ]
        DEFAULT_CSS = """
        #total { padding: 0 1; height: 1; }
        #nodes { height: auto; max-height: 30%; }
        #queue { height: 1fr; }
        #shares { height: auto; max-height: 25%; }
        """

        def __init__(self) -> None:
            super().__init__()
            self.service = service_of(home)
            self.order = 0
            self.apps: list[Any] = []

        def compose(self) -> ComposeResult:
            """Compose the screen from top to bottom: clock, totals, machines, queue, shares, keys."""
            yield Header(show_clock=True)
            yield Static("", id="total", markup=False)
            yield DataTable(id="nodes", cursor_type="none", show_cursor=False)
            yield DataTable(id="queue", cursor_type="row")
            yield DataTable(id="shares", cursor_type="none", show_cursor=False)
            yield Footer()

        def on_mount(self) -> None:
            """Titles of columns, and the first look."""
            self.query_one("#nodes", DataTable).add_columns("node", "state", "type", "GPUs", "leased", "apps")
            self.query_one("#queue", DataTable).add_columns(*QUEUE)
            self.query_one("#shares", DataTable).add_columns(*SHARES)
            self.query_one("#queue", DataTable).focus()
            self.look()
            self.set_interval(WATCH_S, self.look)

        @work(thread=True, exclusive=True)
        def look(self) -> None:
            """Ask the service."""
            try:
                apps = self.service.call("Apps", user=user)["apps"]
                nodes = self.service.call("Nodes")["nodes"]
                shares = self.service.call("Share")["users"]
            except ThemisError as error:
                self.call_from_thread(self.query_one("#total", Static).update, f"{error}")
                return
            self.call_from_thread(self.fill, apps, nodes, shares)

        def fill(self, apps: list[Any], nodes: list[Any], shares: list[Any]) -> None:
            """Put what the service answered into the tables; the cursor stays on its app."""
            table = self.query_one("#queue", DataTable)
            chosen = self.chosen()
            name, key = ORDERS[self.order]
            self.apps = sorted(apps, key=key)
            used, size = sum(n["leased"] for n in nodes), sum(n["gpus"] for n in nodes)
            line = f"{used} of {size} GPUs leased; {totals_of(apps)}; sorted by {name}"
            self.query_one("#total", Static).update(line)
            table.clear()
            for app in self.apps:
                table.add_row(*(str(cell(app)) for cell in QUEUE.values()), key=str(app["id"]))
            rows = [app["id"] for app in self.apps]
            if chosen in rows:
                table.move_cursor(row=rows.index(chosen))
            there = self.query_one("#nodes", DataTable)
            there.clear()
            for n in nodes:
                leased = f"{n['leased']} of {n['gpus']}"
                there.add_row(n["name"], n["state"], n["gpu_type"], gpus_of(n), leased, ", ".join(n["apps"]))
            users = self.query_one("#shares", DataTable)
            users.clear()
            for row in shares:
                users.add_row(*(str(cell(row)) for cell in SHARES.values()))

        def chosen(self) -> int | None:
            """The number of the app under the cursor."""
            row = self.query_one("#queue", DataTable).cursor_row
            return self.apps[row]["id"] if 0 <= row < len(self.apps) else None

        def action_sort(self) -> None:
            """The next order of the queue."""
            self.order = (self.order + 1) % len(ORDERS)
            self.look()

        def on_data_table_row_selected(self) -> None:
            """Enter on an app."""
            self.action_show()

        def action_show(self) -> None:
            """The app under the cursor and its jobs."""
            if (app := self.chosen()) is not None:
                self.show_app(app)

        @work(thread=True)
        def show_app(self, app: int) -> None:
            """Ask for an app and show it."""
            try:
                text = show_text(self.service.call("Show", app=str(app)), max(self.size.width - 8, 40))
            except ThemisError as error:
                text = str(error)
            self.call_from_thread(self.push_screen, Shown(text))

        def action_cancel(self) -> None:
            """Cancel the app under the cursor, after a question."""
            app = self.chosen()
            if app is None:
                return

            def answered(yes: bool | None) -> None:
                if yes:
                    self.change("Cancel", app)

            self.push_screen(Asked(f"Cancel app {app}?"), answered)

        def action_hold(self) -> None:
            """Pause the app under the cursor."""
            if (app := self.chosen()) is not None:
                self.change("Hold", app)

        def action_resume(self) -> None:
            """Let the app under the cursor compete again."""
            if (app := self.chosen()) is not None:
                self.change("Resume", app)

        @work(thread=True)
        def change(self, method: str, app: int) -> None:
            """Change an app; an error is shown for some seconds."""
            try:
                self.service.call(method, app=str(app))
            except ThemisError as error:
                self.call_from_thread(self.notify, str(error), severity="error", markup=False)
            self.call_from_thread(self.look)

    return Top()
