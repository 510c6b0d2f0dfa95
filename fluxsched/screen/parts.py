"""What commands use of the application: it imports them, so they know it by this."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from fluxsched.screen.follow import Followed, Pacer, ViewFollower
from fluxsched.screen.panes.log import LogPane
from fluxsched.screen.panes.machine import MachinePane
from fluxsched.screen.panes.pane import Pane
from fluxsched.screen.panes.prompt import Question
from fluxsched.screen.panes.reader import Sheet
from fluxsched.screen.panes.table import TablePane
from fluxsched.screen.picture import Picture
from fluxsched.screen.settings import ScreenSettings


class ScreenParts(Protocol):
    """What commands use of the application."""

    picture: Picture
    settings: ScreenSettings
    follower: ViewFollower
    followed: Followed
    pacer: Pacer
    machine: MachinePane
    jobs: TablePane
    log_pane: LogPane
    filter_text: str
    every_state: bool
    searched: str
    zoomed: str | None
    traced: str | None
    pane: str

    @property
    def panes(self) -> Mapping[str, Pane]: ...

    def focus_pane(self, name: str) -> None: ...

    def arrange(self) -> None: ...

    def fill(self) -> None: ...

    def follow_jobs(self) -> None: ...

    def ask(self, question: Question) -> None: ...

    def read(self, title: str, sheets: list[Sheet]) -> None: ...

    def say_fault(self, text: str) -> None: ...

    def note(self, style: str, text: str) -> None: ...

    def leave(self) -> None: ...

    def perform(self, work: Coroutine[Any, Any, None]) -> None: ...
