"""The live view: asks the agent, draws, waits for a key, and again, until somebody quits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from agent.domain.node_picture import NodePicture
from agent.errors import AgentError
from agent.top.drawing import FAINT, HEAD, lines, spelt
from agent.top.keyboard import Keyboard
from agent.top.rates import Looks
from agent.top.view import FIRST_ORDER, ORDERS

SECOND_LOOK_S = 0.5  # rates need two


@dataclass(frozen=True, slots=True)
class Shown:
    """What part of the view is to be seen, and in which order."""

    order: str = FIRST_ORDER
    line: int = 0  # the first of them

    def after(self, key: str, height: int) -> "Shown":
        """After a key was pressed."""
        if key in ORDERS:
            return replace(self, order=key)
        page = max(1, height - 2)
        step = {"down": 1, "j": 1, "up": -1, "k": -1, "page down": page, " ": page,
                "page up": -page, "b": -page}.get(key, 0)  # fmt: skip
        return replace(self, line=max(0, self.line + step))


def watch(
    console: Console,
    keys: Keyboard,
    ask: Callable[[], NodePicture],
    *,
    every_s: float,
    clock: Callable[[], float],
) -> None:
    """Show the node until `q` is pressed. Raises AgentError when the first look fails."""
    looks, shown = Looks(ask()), Shown()
    due_s = clock() + min(every_s, SECOND_LOOK_S)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            drawing = lines(console, looks, shown.order)
            shown = replace(shown, line=min(shown.line, max(0, len(drawing) - console.height + 1)))
            seen = page(drawing, shown, console.height, console.width)
            live.update(Group(*(spelt(line, console.encoding) for line in seen)), refresh=True)
            key = keys.pressed(max(0.0, due_s - clock()))
            if key == "q":
                return
            shown = shown.after(key, console.height)
            if clock() >= due_s:
                due_s = clock() + every_s
                try:
                    looks = looks.then(ask())
                except AgentError as error:
                    looks = replace(looks, error=str(error))


def page(drawing: Sequence[Text], shown: Shown, height: int, width: int) -> list[Text]:
    """The lines that fit, with one at the end that says which keys there are."""
    room = max(1, height - 1)
    part = list(drawing[shown.line : shown.line + room])
    part += [Text()] * (room - len(part))
    below = len(drawing) - shown.line - room
    foot = Text()
    if below > 0 or shown.line:
        foot.append(f"{max(0, below)} more lines: arrows  ", FAINT)
    foot.append("q quit  sort by:", FAINT)
    for key, (name, _) in ORDERS.items():
        foot.append(f"  {key} {name}", HEAD if key == shown.order else FAINT)
    foot.truncate(width, overflow="ellipsis")
    return [*part, foot]
