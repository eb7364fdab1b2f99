"""How is a view drawn in so many columns? As rich's lines; what they say comes from `view`.

Every text that others can choose goes through `_clean`: a terminal obeys what is written to it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from rich.cells import cell_len
from rich.console import Console
from rich.text import Span, Text

from agent.domain.accounting import Tier
from agent.domain.plain_figures import share_text, size_text, span_text
from agent.top.rates import Looks
from agent.top.view import FIRST_ORDER, Card, Row, View, view

GAP = 2
INDENT = 2
LEAST_COLUMNS = 20
LEAST_NAME = 24  # columns; with fewer, a container takes a line for its name and others below
LEAST_BAR, MOST_BAR = 10, 30
ROW_BAR = 8
NARROW = 60
FULL, HIGH = 0.95, 0.8
BLOCKS = ("█", "░")
PLAIN_BLOCKS = ("#", "-")
CELSIUS = {BLOCKS: "°C", PLAIN_BLOCKS: "C"}
SIMILAR = {"…": "~"}  # where a terminal does not know the first
HEADS = ("CONTAINER", "MEMORY", "", "GPU", "THROTTLED", "LAST KERNEL", "PRIORITY", "LIMITS BY")
HEAD, FAINT, BAD, WARN, GOOD = "bold", "dim", "red", "yellow", "green"
TIERS = {
    Tier.KERNEL: "kernel",
    Tier.HOOK: "hook",
    Tier.HAMI_CORE: "hami-core",
    Tier.NONE: "nobody",
}


def lines(console: Console, looks: Looks, order: str = FIRST_ORDER) -> list[Text]:
    """The whole drawing, as wide as a console."""
    width = max(console.width, LEAST_COLUMNS)
    unicode = console.encoding.lower().startswith("utf")
    drawing = list(drawn(view(looks.now, looks.growing, order), width, unicode=unicode))
    drawing = [*_problems([looks.error] if looks.error else [], width, 0), *drawing]
    return [spelt(line, console.encoding) for line in drawing]


def drawn(shown: View, width: int, *, unicode: bool = True) -> Iterator[Text]:
    """The lines, none wider than `width`, which is at least LEAST_COLUMNS."""
    blocks = BLOCKS if unicode else PLAIN_BLOCKS
    columns = _columns([row for card in shown.cards for row in card.rows], width, blocks)
    yield from _wrapped(_title(shown), width)
    yield from _problems(shown.problems, width, 0)
    for card in shown.cards:
        yield Text()
        yield from _card(card, width, blocks)
        if card.rows and columns:
            yield from _table(card.rows, columns, width, blocks)
        elif card.rows:
            for row in card.rows:
                yield from _stacked(row, width)
    if not shown.cards and not shown.problems:
        yield Text("no GPUs on this node", FAINT)


def _title(shown: View) -> Text:
    gpus = f"{len(shown.cards)} GPU{'' if len(shown.cards) == 1 else 's'}"
    containers = f"{shown.containers} container{'' if shown.containers == 1 else 's'}"
    title = Text().append(_clean(shown.node), HEAD)
    title.append(f"  {gpus}, {containers}")
    title.append(f"  vgpu-agent {_clean(shown.agent_version)}", FAINT)
    if shown.age_s is not None:
        title.append(f"  seen {span_text(shown.age_s)} ago", FAINT)
    return title


def _card(card: Card, width: int, blocks: tuple[str, str]) -> Iterator[Text]:
    title = Text().append(_clean(card.title), HEAD)
    if card.temperature_celsius is not None:
        title.append(f"  {card.temperature_celsius} {CELSIUS[blocks]}", FAINT)
    if card.power_watts is not None:
        title.append(f"  {card.power_watts:.0f} W", FAINT)
    yield from _wrapped(title, width)
    yield from _problems(card.problems, width, INDENT)
    yield from _bars(card, width, blocks)


# --- bars ----------------------------------------------------------------------------------------


def _bars(card: Card, width: int, blocks: Sequence[str]) -> Iterator[Text]:
    memory = _part(card.used_bytes, card.total_bytes)
    said = [
        ("memory", memory, _memory_text(card.used_bytes, card.total_bytes)),
        ("compute", card.busy, "not told" if card.busy is None else share_text(card.busy)),
    ]
    if width < NARROW:
        for label, part, text in said:
            room = width - INDENT - len("compute") - len(text) - 2
            yield from _wrapped(_bar_line(f"{label:<7}", part, text, room, blocks), width, INDENT)
        return
    texts = sum(len(label) + len(text) + 2 for label, _, text in said)
    room = (width - INDENT - GAP - texts) // 2
    line = Text()
    for label, part, text in said:
        line.append_text(_bar_line(label, part, text, room, blocks))
    yield line


def _bar_line(label: str, part: float | None, text: str, room: int, blocks: Sequence[str]) -> Text:
    line = Text(" " * INDENT + label + " ")
    if room >= LEAST_BAR:
        at_work = label.startswith("compute")
        line.append_text(_bar(part, min(room, MOST_BAR), blocks, calm=at_work))
        line.append(" ")
    line.append(text)
    return line


def _bar(part: float | None, width: int, blocks: Sequence[str], *, calm: bool = False) -> Text:
    """A bar; one that is not empty shows something, one that is not full does not look it.

    `calm`: a full one is nothing to worry about.
    """
    if part is None:
        return Text(blocks[1] * width, FAINT)
    filled = round(min(max(part, 0.0), 1.0) * width)
    if 0 < part < 1:
        filled = min(max(filled, 1), width - 1)
    style = GOOD if calm else BAD if part >= FULL else WARN if part >= HIGH else GOOD
    bar = Text(blocks[0] * filled, style)
    return bar.append(blocks[1] * (width - filled), FAINT)


def _part(used: int | None, of: int | None) -> float | None:
    return None if used is None or not of else used / of


def _memory_text(used: int | None, of: int | None) -> str:
    if used is None:
        return "not told" if of is None else f"of {size_text(of)}"
    return size_text(used) if of is None else f"{size_text(used)} of {size_text(of)}"


# --- containers ----------------------------------------------------------------------------------


def _cells(row: Row, blocks: Sequence[str]) -> list[Text]:
    part = _part(row.used_bytes, row.limit_bytes)
    bar = _bar(part, ROW_BAR, blocks) if row.limit_bytes else Text()
    return [
        Text(_clean(row.name)),
        Text(_row_memory(row)),
        bar,
        Text(_row_gpu(row)),
        _throttled(row),
        Text(_last_kernel(row)),
        Text(str(row.priority)),
        _limits_by(row),
    ]


def _row_memory(row: Row) -> str:
    used = "-" if row.used_bytes is None else size_text(row.used_bytes)
    return used if row.limit_bytes is None else f"{used} of {size_text(row.limit_bytes)}"


def _row_gpu(row: Row) -> str:
    used = "-" if row.gpu_share is None else share_text(row.gpu_share)
    if row.core_limit is None:
        return used
    lent = f" +{share_text(row.core_lent)}" if row.core_lent else ""
    return f"{used} of {share_text(row.core_limit)}{lent}"


def _last_kernel(row: Row) -> str:
    if row.never_launched:
        return "never"
    return "-" if row.idle_s is None else f"{span_text(row.idle_s)} ago"


def _limits_by(row: Row) -> Text:
    if row.unlimited:
        return Text("-")
    if not row.holds:
        return Text(TIERS[row.tier], BAD)
    return Text("nobody yet" if row.tier is Tier.NONE else TIERS[row.tier])  # nothing runs there


def _throttled(row: Row) -> Text:
    if row.throttled_share is None:
        return Text("-")
    return Text(share_text(row.throttled_share), WARN if row.throttled_share >= HIGH else "none")


def _columns(rows: Sequence[Row], width: int, blocks: Sequence[str]) -> list[int]:
    """How wide the columns of all tables are; empty: they do not fit."""
    cells = [_cells(row, blocks) for row in rows]
    wanted = [
        max([cell_len(head), *(row[column].cell_len for row in cells)])
        for column, head in enumerate(HEADS)
    ]
    left = width - INDENT - sum(wanted[1:]) - GAP * (len(wanted) - 1)
    return [min(wanted[0], left), *wanted[1:]] if left >= min(wanted[0], LEAST_NAME) else []


def _table(
    rows: Sequence[Row], columns: Sequence[int], width: int, blocks: Sequence[str]
) -> Iterator[Text]:
    yield _line([Text(head, FAINT) for head in HEADS], columns)
    for row in rows:
        yield _line(_cells(row, blocks), columns)
        yield from _problems(row.problems, width, 2 * INDENT)


def _line(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text(" " * INDENT)
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        cut = cell.copy()
        cut.truncate(width, overflow="ellipsis", pad=number < len(widths) - 1)
        line.append_text(cut)
        if number < len(widths) - 1:
            line.append(" " * GAP)
    return line


def _stacked(row: Row, width: int) -> Iterator[Text]:
    name = Text(" " * INDENT)
    name.append(_clean(row.name), HEAD)
    yield from _wrapped(name, width, INDENT)
    parts = [
        Text(_row_memory(row)),
        Text(f"GPU {_row_gpu(row)}"),
        Text("throttled ").append_text(_throttled(row)),
        Text(f"kernel {_last_kernel(row)}"),
        Text(f"priority {row.priority}"),
        Text("limits by ").append_text(_limits_by(row)),
    ]
    yield from _flowed(parts, width, 2 * INDENT)
    yield from _problems(row.problems, width, 2 * INDENT)


# --- lines ---------------------------------------------------------------------------------------


def _flowed(parts: Iterable[Text], width: int, indent: int) -> Iterator[Text]:
    """As many parts on a line as fit; none is broken unless it is wider than a line."""
    line = Text(" " * indent)
    for part in parts:
        if line.cell_len > indent and line.cell_len + GAP + part.cell_len > width:
            yield from _wrapped(line, width, indent)
            line = Text(" " * indent)
        if line.cell_len > indent:
            line.append(" " * GAP)
        line.append_text(part)
    yield from _wrapped(line, width, indent)


def _problems(sentences: Iterable[str], width: int, indent: int) -> Iterator[Text]:
    for sentence in sentences:
        told = Text(" " * indent + "! " + _clean(sentence), BAD)
        yield from _wrapped(told, width, indent + 2)


def _wrapped(text: Text, width: int, indent: int = 0) -> Iterator[Text]:
    """Broken at words, and inside of those that are too long; what goes on is indented."""
    first = True
    rest = text
    while rest.cell_len > width:
        at = _break(rest.plain, width)
        line = rest[:at]
        line.rstrip()
        yield line
        rest = rest[at:]
        rest = rest[len(rest.plain) - len(rest.plain.lstrip(" ")) :]
        rest = Text(" " * indent).append_text(rest)
        first = False
    if rest.plain.strip() or first:
        yield rest


def _break(plain: str, width: int) -> int:
    """How many characters fit."""
    fits = 0
    while fits < len(plain) and cell_len(plain[: fits + 1]) <= width:
        fits += 1
    blank = plain.rfind(" ", len(plain) - len(plain.lstrip(" ")), fits + 1)
    return blank if blank > 0 else max(fits, 1)


def spelt(line: Text, encoding: str) -> Text:
    """As wide, without what cannot be written in this encoding."""
    if _known(line.plain, encoding):
        return line
    letters = [
        letter if _known(letter, encoding) else SIMILAR.get(letter, "?" * cell_len(letter))
        for letter in line.plain
    ]
    at = [0, *accumulate(map(len, letters))]
    spans = [Span(at[span.start], at[span.end], span.style) for span in line.spans]
    return Text("".join(letters), line.style, spans=spans)


def _known(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _clean(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
