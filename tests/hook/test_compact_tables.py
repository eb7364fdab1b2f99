"""The unwind tables that `hook/unwind_tables.py` writes say of all code what the compiler's do.

Compared are linked files: one of the compiler's assembly, one of the same with tables written anew.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from built_hook import ROOT, compiler
from elf_frames import Described, frames_of

sys.path.append(str(ROOT / "hook"))
from unwind_tables import SEVERAL, UnwindTableError, compact, gathered

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


def both(assembly: str, arch: str, tmp_path: Path) -> tuple[list[Described], list[Described]]:
    """What the compiler's tables say, and what ours do."""
    compilers = linked("\n".join(gathered(assembly)), arch, tmp_path / "compilers.so")
    ours = linked(compact(assembly, arch), arch, tmp_path / "ours.so")
    return frames_of(compilers), frames_of(ours)


def different(compilers: list[Described], ours: list[Described]) -> list[str]:
    """Addresses of which the two do not say the same, and functions of which ours say nothing."""
    found = []
    for one in compilers:
        table = next((t for t in ours if t.begin <= one.begin and one.end <= t.end), None)
        if table is None or table.personality != one.personality:
            found.append(f"function at {one.begin:#x}")
            continue
        told = {at for at, _ in (*one.rows, *table.rows) if one.begin <= at < one.end}
        found += [hex(at) for at in sorted(told) if table.at(at) != one.at(at)]
    return found


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_every_instruction_is_unwound_as_the_compiler_says(arch: str, tmp_path: Path) -> None:
    """A signal's handler may take a stack anywhere."""
    compiler().build_all(ROOT / ".build" / "hook", sys.executable, arch)
    made = ROOT / ".build" / "hook" / arch / ".objects" / "libvgpu.so.lto.s"
    compilers, ours = both(made.read_text(), arch, tmp_path)
    assert sum(len(function.rows) for function in compilers) > 500
    assert len(ours) < len(compilers) / 2
    assert different(compilers, ours) == []


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
    (only,) = compilers
    assert only.rows[-1][0] - only.begin >= 4 * before
    assert different(compilers, ours) == []


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
    ("body", "rows"),
    [
        pytest.param(f"\tcallq\tother\n{ARGUMENTS}\n\tcallq\tother", 3, id="pushed arguments"),
        pytest.param(BASE_POINTER, 4, id="a base pointer"),
        pytest.param(f"\tcallq\tother\n{BASE_POINTER}\n\tcallq\tother", 4,
                     id="a base pointer in a part of it, given back"),
        pytest.param(f"\t.cfi_personality 27, other\n{BASE_POINTER}", 4, id="a personality"),
        pytest.param(BASE_POINTER.replace("\t.cfi_restore %rbp", "\t.p2align 4\n\tnop"), 4,
                     id="what it saved is not given back at its end"),
        pytest.param("\tcallq\tother", 1, id="no frame"),
    ],
)  # fmt: skip
def test_what_a_function_does_to_its_frame(body: str, rows: int, tmp_path: Path) -> None:
    one = "one:\n\t.cfi_startproc\n" + body + "\n\tretq\n\t.cfi_endproc\n"
    beside = "\n".join(one.replace("one:", f"one{n}:") for n in range(SEVERAL + 3))
    text = f"\t.text\n{one}{beside}\t.globl\tother\nother:\n\tret\n"
    compilers, ours = both(text, "x86_64", tmp_path)
    assert (len(compilers), len(ours)) == (SEVERAL + 4, 2)
    assert max(len(function.rows) for function in compilers) == rows
    assert different(compilers, ours) == []


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
