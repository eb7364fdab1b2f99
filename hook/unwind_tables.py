# ruff: noqa: INP001 - a build script beside the sources, not a package
"""Writes the unwind tables of an assembled library anew: they say the same in less room.

What finds the caller of a function (exceptions, cancelled threads, debuggers, profilers) reads a
frame: from which register and how far away it begins, and where in it registers of the caller were
saved. The compiler says so for nearly every instruction, in a table for each function, half of
which is whose it is. Ours are of a few functions that lie beside each other. Nothing is left out:
who takes stacks in a signal's handler may be anywhere, follows a wrong frame to any address, and
ends the program.

Source: DWARF 5, 6.4 (call frame information), and the Linux Standard Base, 10.6 (`.eh_frame`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest

WORD_BYTES = 8  # in which places of saved registers are counted
PC_RELATIVE = 0x1B  # how addresses are written: four bytes, with a sign, from where they stand
# Operations, as DWARF names them without DW_CFA_.
ADVANCE_LOC, OFFSET, RESTORE = 0x40, 0x80, 0xC0  # with a number in their lower six bits
ADVANCE_LOC2, ADVANCE_LOC4, OFFSET_EXTENDED, RESTORE_EXTENDED = 0x03, 0x04, 0x05, 0x06
DEF_CFA, DEF_CFA_REGISTER, DEF_CFA_OFFSET = 0x0C, 0x0D, 0x0E
SIX_BITS, TWO_BYTES = 0x40, 0x10000
ANY_LENGTH = 1 << 20  # in bytes: what is not known to be short
MOST_ALIGNED_BYTES = 64  # between two functions
SEVERAL = 8  # functions in a table: who looks one up reads the rows of those before it as well


class UnwindTableError(Exception):
    """The assembly says something of frames that is not understood; the message says what."""


@dataclass(frozen=True)
class Frame:
    """Where the caller's frame begins, and the caller's registers that lie in it, by number."""

    register: int
    offset_bytes: int
    saved: tuple[tuple[int, int], ...] = ()  # register, place in bytes from the frame's begin


@dataclass(frozen=True)
class Machine:
    """One architecture's numbers and words."""

    numbers: dict[str, int]  # of registers, by their names in assembly
    entry: Frame  # at a function's first instruction
    return_column: int
    first: tuple[int, ...]  # operations that make `entry`
    unit_bytes: int  # every instruction is a multiple of it
    section: str
    short: tuple[tuple[re.Pattern[str], int], ...]  # how long an instruction is at most, in bytes
    longest_bytes: int  # any other


MACHINES = {
    "x86_64": Machine(
        numbers={
            f"%{name}": number
            for number, name in enumerate(
                ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp",
                 "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15")
            )
        },
        entry=Frame(7, 8),
        return_column=16,
        first=(DEF_CFA, 7, 8, OFFSET | 16, 1),
        unit_bytes=1,
        section='\t.section\t.eh_frame,"a",@unwind',
        short=(
            (re.compile(r"\tpushq\t%"), 2),
            (re.compile(r"\tmovq\t%\w+, %\w+$"), 3),
            (re.compile(r"\tsubq\t\$\d+, %rsp"), 7),
        ),
        longest_bytes=15,
    ),
    "aarch64": Machine(
        numbers={
            "wsp": 31,
            "sp": 31,
            **{f"{kind}{number}": number for kind in "wx" for number in range(31)},
            **{f"{kind}{number}": 64 + number for kind in "bd" for number in range(32)},
        },
        entry=Frame(31, 0),
        return_column=30,
        first=(DEF_CFA, 31, 0),
        unit_bytes=4,
        section='\t.section\t.eh_frame,"a",@progbits',
        short=(),
        longest_bytes=4,
    ),
}  # fmt: skip


@dataclass
class _Function:
    number: int
    frame: Frame  # as of the line that is read
    length_bytes: int = 0  # until there, at most
    personality: str = ""
    rows: list[tuple[str, Frame, int]] = field(default_factory=list)  # label, bytes before at most

    def pass_by(self, line: str, machine: Machine) -> None:
        """An instruction, a label, or a directive that says nothing of frames."""
        if not re.match(r"[\w.$]+:", line):
            self.length_bytes += _most_bytes(line, machine)

    def told(self, directive: str, words: list[str], machine: Machine) -> list[str]:
        """A directive, and the label that its place gets."""
        if directive == "personality":
            encoding, self.personality = words
            if int(encoding) != PC_RELATIVE:
                raise UnwindTableError(f"an address in another form: {', '.join(words)}")
            return []
        self.frame = _after(self.frame, directive, words, machine)
        row = f".Lvgpu_row{self.number}_{len(self.rows)}"
        self.rows.append((row, self.frame, self.length_bytes))
        return [f"{row}:"]


def compact(assembly: str, arch: str) -> str:
    """The same assembly with tables as data instead of directives; raises UnwindTableError."""
    machine = MACHINES[arch]
    lines: list[str] = []
    functions = list(_read(gathered(assembly), machine, lines))
    return "\n".join([*lines, machine.section, *_tables(functions, machine), ""])


def gathered(assembly: str) -> list[str]:
    """Its lines, with the functions that have tables beside each other."""
    lines, own = assembly.split("\n"), -1
    for i, line in enumerate(lines):
        if line.startswith(("\t.section", "\t.text")):
            own = i if line.startswith("\t.section\t.text.") else -1
        elif line.startswith("\t.cfi_startproc") and own >= 0:
            lines[own] = '\t.section\t.text.unwound,"ax",@progbits'
    return lines


def _read(source: list[str], machine: Machine, lines: list[str]) -> Iterator[_Function]:
    """The functions of the source, which goes to `lines` with labels for its directives."""
    function, count = None, 0
    for line in source:
        directive = re.match(r"\t\.cfi_(\w+)\s*([^#/]*)", line)
        if not directive:
            if function is not None:
                function.pass_by(line, machine)
            lines.append(line)
        elif directive[1] == "startproc":
            function = _Function(count, machine.entry)
            lines.append(f".Lvgpu_from{count}:")
        elif function is None:
            raise UnwindTableError(f"outside of a function: {line.strip()}")
        elif directive[1] == "endproc":
            lines.append(f".Lvgpu_to{count}:")
            yield function
            function, count = None, count + 1
        else:
            words = [word.strip() for word in directive[2].split(",")]
            lines += function.told(directive[1], words, machine)


def _most_bytes(line: str, machine: Machine) -> int:
    """How long a line of a function can be: one instruction, or a directive that may be any."""
    text = line.split("#", maxsplit=1)[0].strip()
    if not text or line.startswith("//"):
        return 0
    if aligned := re.match(r"\t\.p2align\t(\d+)", line):
        return 1 << int(aligned[1])
    if not re.match(r"\t[a-z]", line) or ";" in text:
        return ANY_LENGTH
    return next((most for form, most in machine.short if form.match(line)), machine.longest_bytes)


def _after(frame: Frame, directive: str, words: list[str], machine: Machine) -> Frame:
    """The frame that a directive makes of the one before."""
    try:
        if directive in {"offset", "restore"}:
            saved = dict(frame.saved)
            saved.pop(machine.numbers[words[0]], None)
            if directive == "offset":
                saved[machine.numbers[words[0]]] = int(words[1])
            return replace(frame, saved=tuple(sorted(saved.items())))
        if directive == "def_cfa":
            register, offset_bytes = machine.numbers[words[0]], int(words[1])
            return replace(frame, register=register, offset_bytes=offset_bytes)
        if directive == "def_cfa_register":
            return replace(frame, register=machine.numbers[words[0]])
        if directive == "def_cfa_offset":
            return replace(frame, offset_bytes=int(words[0]))
        if directive == "adjust_cfa_offset":
            return replace(frame, offset_bytes=frame.offset_bytes + int(words[0]))
    except (KeyError, ValueError, IndexError):
        pass
    text = f".cfi_{directive} {', '.join(words)}"
    raise UnwindTableError(f"a directive or register that is not known: {text}")


def _tables(functions: list[_Function], machine: Machine) -> Iterator[str]:
    known: dict[str, int] = {}
    for several in _beside_each_other(functions):
        number, personality = several[0].number, several[0].personality
        if personality not in known:
            known[personality] = len(known)
            yield from _common(known[personality], personality, machine)
        yield f".Lvgpu_fde{number}:"
        yield f"\t.long\t.Lvgpu_fde_end{number}-.Lvgpu_fde{number}-4"
        yield f"\t.long\t.-.Lvgpu_cie{known[personality]}"
        yield f"\t.long\t.Lvgpu_from{number}-."
        yield f"\t.long\t.Lvgpu_to{several[-1].number}-.Lvgpu_from{number}"
        yield "\t.byte\t0"
        before, at, since_bytes = machine.entry, f".Lvgpu_from{number}", 0
        for row, frame, most_bytes in _rows(several, machine):
            since_bytes += most_bytes
            if moves := _moves(before, frame):
                yield _advance(at, row, since_bytes, machine)
                yield _bytes(moves)
                before, at, since_bytes = frame, row, 0
        yield f".Lvgpu_fde_end{number}:"


def _beside_each_other(functions: list[_Function]) -> Iterator[list[_Function]]:
    """Those that have one table: a few with one personality."""
    several: list[_Function] = []
    for function in functions:
        if len(several) == SEVERAL or (several and several[0].personality != function.personality):
            yield several
            several = []
        several.append(function)
    if several:
        yield several


def _rows(several: list[_Function], machine: Machine) -> Iterator[tuple[str, Frame, int]]:
    """Where another frame begins, and how many bytes there are at most since the one before."""
    since_bytes = 0
    for function in several:
        yield f".Lvgpu_from{function.number}", machine.entry, since_bytes
        told_bytes = 0
        for (label, frame, here_bytes), following in zip_longest(function.rows, function.rows[1:]):
            if following is None or following[2] != here_bytes:  # the last at its address
                yield label, frame, here_bytes - told_bytes
                told_bytes = here_bytes
        since_bytes = function.length_bytes - told_bytes + MOST_ALIGNED_BYTES


def _common(number: int, personality: str, machine: Machine) -> Iterator[str]:
    """What the functions of one personality have in common."""
    yield f".Lvgpu_cie{number}:"
    yield f"\t.long\t.Lvgpu_cie_end{number}-.Lvgpu_cie{number}-4"
    yield "\t.long\t0"
    yield "\t.byte\t1"
    yield f'\t.asciz\t"z{"P" if personality else ""}R"'
    yield _bytes([machine.unit_bytes, -WORD_BYTES & 0x7F, machine.return_column])
    if personality:
        yield _bytes([6, PC_RELATIVE])
        yield f"\t.long\t{personality}-."
        yield _bytes([PC_RELATIVE])
    else:
        yield _bytes([1, PC_RELATIVE])
    yield _bytes(machine.first)
    yield "\t.p2align\t2, 0"
    yield f".Lvgpu_cie_end{number}:"


def _advance(at: str, row: str, most_bytes: int, machine: Machine) -> str:
    distance = f"({row}-{at})/{machine.unit_bytes}"
    if most_bytes < SIX_BITS * machine.unit_bytes:
        return f"\t.byte\t{ADVANCE_LOC}+{distance}"
    if most_bytes < TWO_BYTES * machine.unit_bytes:
        return f"\t.byte\t{ADVANCE_LOC2}\n\t.short\t{distance}"
    return f"\t.byte\t{ADVANCE_LOC4}\n\t.long\t{distance}"


def _moves(before: Frame, after: Frame) -> list[int]:
    """The operations that make one frame of another."""
    made = []
    if before.register != after.register and before.offset_bytes != after.offset_bytes:
        made += [DEF_CFA, *_uleb128(after.register), *_uleb128(after.offset_bytes)]
    elif before.register != after.register:
        made += [DEF_CFA_REGISTER, *_uleb128(after.register)]
    elif before.offset_bytes != after.offset_bytes:
        made += [DEF_CFA_OFFSET, *_uleb128(after.offset_bytes)]
    had, has = dict(before.saved), dict(after.saved)
    for register, place_bytes in has.items():
        if had.get(register) != place_bytes:
            words, rest = divmod(-place_bytes, WORD_BYTES)
            if words <= 0 or rest:
                raise UnwindTableError(f"register {register} lies at {place_bytes} of its frame")
            made += _with_register(OFFSET, OFFSET_EXTENDED, register) + _uleb128(words)
    for register in had.keys() - has.keys():
        made += _with_register(RESTORE, RESTORE_EXTENDED, register)
    return made


def _with_register(operation: int, extended: int, register: int) -> list[int]:
    if register < SIX_BITS:
        return [operation | register]
    return [extended, *_uleb128(register)]


def _uleb128(number: int) -> list[int]:
    made = [number & 0x7F]
    while number := number >> 7:
        made[-1] |= 0x80
        made.append(number & 0x7F)
    return made


def _bytes(numbers: "list[int] | tuple[int, ...]") -> str:
    return f"\t.byte\t{', '.join(map(str, numbers))}"
