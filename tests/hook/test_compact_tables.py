"""The unwind tables that `hook/unwind_tables.py` writes say of every call what the compiler's do.

Compared are linked files: one of the compiler's assembly, one of the same with tables written anew,
each with a list of the addresses behind its calls.
"""

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from built_hook import ROOT, compiler
from elf import section_of
from elf_frames import Described, Row, frames_of

sys.path.append(str(ROOT / "hook"))
from unwind_tables import UnwindTableError, compact, gathered

CALLS = {"x86_64": r"\tcallq?\b", "aarch64": r"\tblr?\b"}
FRAME = {  # one that is laid out, and taken away again
    "x86_64": """\tpushq\t%rbx
\t.cfi_def_cfa_offset 16
\tsubq\t$200, %rsp
\t.cfi_def_cfa_offset 216
\t.cfi_offset %rbx, -16
{}
\taddq\t$200, %rsp
\t.cfi_def_cfa_offset 16
\tpopq\t%rbx
\t.cfi_def_cfa_offset 8
\tretq""",
    "aarch64": """\tstp\tx29, x30, [sp, #-32]!
\tstr\td8, [sp, #16]
\t.cfi_def_cfa_offset 32
\t.cfi_offset w30, -24
\t.cfi_offset w29, -32
\t.cfi_offset b8, -16
{}
\tldp\tx29, x30, [sp], #32
\tret""",
}
CALL = {"x86_64": "\tcallq\tother", "aarch64": "\tbl\tother"}
NOTHING = {"x86_64": "\tmovabsq\t$1234567890123, %rax", "aarch64": "\tmov\tx9, #1"}


def linked(assembly: str, arch: str, made: Path) -> Path:
    """The shared library of an assembly, which defines all that it needs."""
    source = made.with_suffix(".s")
    source.write_text(assembly)
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu.2.17", "-shared",
         "-nostdlib", "-Wl,-Bsymbolic", str(source), "-o", str(made)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:500]
    return made


def with_calls_listed(assembly: str, arch: str) -> str:
    lines, count = [], 0
    for line in assembly.split("\n"):
        lines.append(line)
        if re.match(CALLS[arch], line):
            lines.append(f".Lbehind{count}:")
            count += 1
    listed = "\n".join(f"\t.long\t.Lbehind{n}-." for n in range(count))
    return "\n".join([*lines, '\t.section\t.calls,"a"', listed, ""])


def behind_calls(path: Path) -> list[int]:
    """Addresses, from `.text` on."""
    address, content = section_of(path, ".calls")
    address -= section_of(path, ".text")[0]
    return [address + 4 * n + off for n, (off,) in enumerate(struct.iter_unpack("<i", content))]


def row_at(functions: list[Described], behind_call: int) -> Row | None:
    """As an unwinder looks it up: where the call is, not where it returns to."""
    found = [f for f in functions if f.begin <= behind_call - 1 < f.end]
    return found[0].at(behind_call - 1) if found else None


def both(assembly: str, arch: str, tmp_path: Path) -> tuple[Path, Path]:
    """Linked with the compiler's tables, and with ours."""
    listed = with_calls_listed(assembly, arch)
    return (
        linked(gathered(listed, arch), arch, tmp_path / "compilers.so"),
        linked(compact(listed, arch), arch, tmp_path / "ours.so"),
    )


def called(path: Path, behind_call: int, arch: str) -> int:
    """The function that a call goes to; 0 where a pointer says so."""
    _, content = section_of(path, ".text")
    if arch == "x86_64":
        (distance,) = struct.unpack_from("<i", content, behind_call - 4)
        return behind_call + distance if content[behind_call - 5] == 0xE8 else 0
    (word,) = struct.unpack_from("<I", content, behind_call - 4)
    distance = (word & 0x3FFFFFF) - ((word & 0x2000000) << 1)
    return behind_call - 4 + 4 * distance if word >> 26 == 0b100101 else 0


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_every_call_of_the_library_is_unwound_as_the_compiler_says(
    arch: str, tmp_path: Path
) -> None:
    compiler().build_all(ROOT / ".build" / "hook", sys.executable, arch)
    made = ROOT / ".build" / "hook" / arch / ".objects" / "libvgpu.so.lto.s"
    compilers, ours = both(made.read_text(), arch, tmp_path)
    calls = behind_calls(compilers)
    assert len(calls) > 2000
    assert behind_calls(ours) == calls
    expected = frames_of(compilers)
    found = {
        f.begin: one for f in expected for one in frames_of(ours) if one.begin <= f.begin < one.end
    }
    pieces = {f.begin for f in expected} - found.keys()  # which return without calling anything
    for function in expected:
        inside = [at for at in calls if function.begin < at <= function.end]
        if function.begin in pieces:
            assert inside == []
            continue
        same = found[function.begin]
        assert same.end >= function.end
        assert same.personality == function.personality
        assert same.at(function.begin) == function.at(function.begin)  # for a debugger that stops
        wrong = [hex(at) for at in inside if same.at(at - 1) != function.at(at - 1)
                 and called(ours, at, arch) not in pieces]  # fmt: skip
        if arch == "x86_64":  # a signal's handler may take a stack anywhere
            wrong += [hex(at) for at, row in function.rows if same.at(at) != row]
        assert wrong == []


def function(arch: str, *, before: int = 0, after: int = 0, extra: str = "") -> str:
    """One that calls in its frame, with so many instructions before its prologue and its call."""
    body = "\n".join([NOTHING[arch]] * after + [CALL[arch]])
    lines = [
        "\t.text\n\t.globl\tone\none:\n\t.cfi_startproc", extra,
        *[NOTHING[arch]] * before, FRAME[arch].format(body),
        "\t.cfi_endproc\n\t.globl\tother\nother:\n\tret",
    ]  # fmt: skip
    return "\n".join(line for line in lines if line) + "\n"


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(0, 0, id="a prologue at its begin"),
        pytest.param(3, 0, id="a prologue a little later"),
        pytest.param(6, 0, id="one that starts near what six bits hold"),
        pytest.param(70, 0, id="one behind what six bits hold"),
        pytest.param(400, 0, id="one behind what a byte holds"),
        pytest.param(9000, 9000, id="one behind what two bytes hold"),
    ],
)
def test_wherever_its_prologue_is(arch: str, before: int, after: int, tmp_path: Path) -> None:
    compilers, ours = both(function(arch, before=before, after=after), arch, tmp_path)
    (call,) = behind_calls(ours)
    expected, found = row_at(frames_of(compilers), call), row_at(frames_of(ours), call)
    assert expected is not None
    assert expected.offset_bytes > 8
    assert found == expected


ARGUMENTS = """\tpushq\t$1
\t.cfi_adjust_cfa_offset 8
\tcallq\tother
\taddq\t$8, %rsp
\t.cfi_adjust_cfa_offset -8"""
BASE_POINTER = """\tpushq\t%rbp
\t.cfi_def_cfa_offset 16
\t.cfi_offset %rbp, -16
\tmovq\t%rsp, %rbp
\t.cfi_def_cfa_register %rbp
\tcallq\tother
\tpopq\t%rbp
\t.cfi_def_cfa %rsp, 8
\t.cfi_restore %rbp"""


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        pytest.param(f"\tcallq\tother\n{ARGUMENTS}\n\tcallq\tother", 3, id="pushed arguments"),
        pytest.param(BASE_POINTER, 1, id="a base pointer"),
        pytest.param(f"\tcallq\tother\n{BASE_POINTER}\n\tcallq\tother", 3,
                     id="a base pointer in a part of it, given back"),
        pytest.param(f"\t.cfi_personality 27, other\n{BASE_POINTER}", 1, id="a personality"),
        pytest.param("\tcallq\tother", 1, id="no frame"),
        pytest.param("\tjmp\tother", 0, id="no call"),
        pytest.param("\tcallq\t*%rax\n\tcallq\t*8(%rdi)", 2, id="by a pointer"),
    ],
)  # fmt: skip
def test_what_a_function_does_to_its_frame(body: str, calls: int, tmp_path: Path) -> None:
    text = ("\t.text\n\t.globl\tone\none:\n\t.cfi_startproc\n" + body +
            "\n\tretq\n\t.cfi_endproc\n\t.globl\tother\nother:\n\tret\n")  # fmt: skip
    compilers, ours = both(text, "x86_64", tmp_path)
    found = behind_calls(ours)
    assert len(found) == calls
    (theirs,), (mine,) = frames_of(compilers), frames_of(ours)
    assert (theirs.begin, theirs.end) == (mine.begin, mine.end)
    assert (theirs.personality is None) == (mine.personality is None)
    assert [mine.at(at - 1) for at in found] == [theirs.at(at - 1) for at in found]


@pytest.mark.parametrize(
    ("directive", "words"),
    [
        pytest.param(".cfi_remember_state", "not known: .cfi_remember_state", id="a directive"),
        pytest.param(".cfi_offset %xmm6, -16", "not known: .cfi_offset %xmm6", id="a register"),
        pytest.param(".cfi_def_cfa_offset many", "not known", id="no number"),
        pytest.param(".cfi_def_cfa %rsp", "not known", id="a word too few"),
        pytest.param(".cfi_personality 155, there", "in another form", id="a personality by table"),
        pytest.param(".cfi_offset %rbx, -12", "register 3 lies at -12", id="an odd place"),
        pytest.param(".cfi_offset %rbx, 16", "register 3 lies at 16", id="a place of the caller's"),
        pytest.param(
            ".cfi_endproc\n\t.cfi_def_cfa_offset 8", "outside of a function", id="outside"
        ),
    ],
)
def test_what_it_does_not_understand_is_an_error(directive: str, words: str) -> None:
    with pytest.raises(UnwindTableError, match=re.escape(words)):
        compact(
            f"one:\n\t.cfi_startproc\n\t{directive}\n\tcallq\tother\n\t.cfi_endproc\n", "x86_64"
        )
