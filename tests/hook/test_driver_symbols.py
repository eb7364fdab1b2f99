"""Every function of the driver is hooked, passed or knowingly ignored; the tables say which."""

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path

import pytest

from hook.driver_symbols import generate, headers, hooked, page, prototypes, tables
from hook.driver_symbols.classes import Group, judge, read_groups
from hook.driver_symbols.headers import HeadersError
from hook.driver_symbols.tables import CudaSymbol, Declared

LISTS = tuple(hooked.CUDA_LISTS)
CUDA = tables.parse_cuda(generate.CUDA_TSV.read_text())
NVML = tables.parse_nvml(generate.NVML_TSV.read_text())
NAMES = {"cuda": [row.symbol for row in CUDA], "nvml": [row.symbol for row in NVML]}


def test_the_tables_are_not_empty() -> None:
    assert len(CUDA) > 700
    assert len(NVML) > 400


@pytest.mark.parametrize("library", ["cuda", "nvml"])
def test_every_function_has_exactly_one_class(library: str) -> None:
    assert generate.judge(library, NAMES[library]).problems == ()


@pytest.mark.parametrize("library", ["cuda", "nvml"])
def test_every_group_gives_a_reason(library: str) -> None:
    for group in read_groups(generate.CLASSES, library):
        assert len(group.reason.split()) >= 5, group


@pytest.mark.parametrize("name", LISTS)
def test_symbols_h_says_what_the_headers_say(name: str) -> None:
    assert generate.disagreements(hooked.read_list(generate.SYMBOLS_H, name), CUDA) == []


def test_symbols_h_has_each_function_once() -> None:
    lines = [ln.symbol for name in LISTS for ln in hooked.read_list(generate.SYMBOLS_H, name)]
    assert sorted(lines) == sorted(set(lines))


def test_each_wrapper_is_in_the_file_that_symbols_h_names() -> None:
    lists = generate.SYMBOLS_H.read_text().split("#define CUDA_USED")[0]
    (first, *named) = re.split(r"/\* (\w+\.c) \*/", lists)
    assert "X(cu" not in first.split("#define CUDA_SYMBOLS")[1]
    assert len(named) > 10
    for file, lines in zip(named[::2], named[1::2], strict=True):
        source = (generate.HOOK / file).read_text()
        for symbol in re.findall(r"X\((cu\w+),", lines):
            assert re.search(rf"\b{symbol}\b", source), f"no wrapper of {symbol} in {file}"


def test_what_is_used_of_nvml_exists() -> None:
    used = {line.symbol for line in hooked.read_list(generate.SYMBOLS_H, "NVML_USED")}
    assert used - set(NAMES["nvml"]) == set()


def test_the_page_for_readers_is_current() -> None:
    judged = {library: generate.judge(library, names) for library, names in NAMES.items()}
    now = page.write(generate.SYMBOLS_H, CUDA, NVML, judged)
    assert generate.PAGE.read_text() == now, "run `python3 build.py cuda-symbols`"


# --- what the checks above would say -------------------------------------------------------------

PASSED = Group(("cuMemcpy*",), "copies")
IGNORED = Group(("cuMemTrick",), "cannot be helped", "memory")


@pytest.mark.parametrize(
    ("symbols", "hooks", "groups", "said"),
    [
        pytest.param(["cuMemTakeAll"], [], [], "cuMemTakeAll is in no class", id="new function"),
        pytest.param(
            ["cuCtxCreate", "cuCtxCreate_v5"], ["cuCtxCreate"], [], "cuCtxCreate_v5 is in no class",
            id="new ABI of a hooked function",
        ),
        pytest.param(
            ["cuLaunch", "cuLaunch_ptsz"], ["cuLaunch"], [], "cuLaunch_ptsz is in no class",
            id="per-thread form of a hooked function",
        ),
        pytest.param(
            ["cuMemcpy"], [], [PASSED, Group(("cuMemcpy",), "slow", "compute")],
            "cuMemcpy is decided 2 times (passed, ignored): keep one of cuMemcpy*, cuMemcpy",
            id="passed and ignored",
        ),
        pytest.param(
            ["cuMemcpy"], [], [PASSED, Group(("cuMem*",), "memory")], "is decided 2 times",
            id="passed for two reasons",
        ),
        pytest.param(
            ["cuMemcpy"], ["cuMemcpy"], [PASSED],
            "cuMemcpy is hooked and also passed: from classes.toml, delete cuMemcpy*",
            id="hooked and passed",
        ),
        pytest.param(
            ["cuMemcpy"], [], [PASSED, IGNORED], "cuMemTrick in classes.toml matches no function",
            id="matches nothing",
        ),
        pytest.param(["cuInit"], ["cuInit", "cuInti"], [], "cuInti in symbols.h is no function", id="typo"),
    ],
)  # fmt: skip
def test_what_has_no_class_or_several_is_said_in_a_sentence(
    symbols: list[str], hooks: Collection[str], groups: list[Group], said: str
) -> None:
    (problem,) = judge(symbols, hooks, groups).problems
    assert said in problem


def test_a_family_is_decided_with_all_its_abis() -> None:
    judged = judge(["cuMemcpyDtoH", "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds"], [], [PASSED])
    assert judged.problems == ()
    assert judged.groups[0][1] == ("cuMemcpyDtoH", "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds")


def test_an_unknown_budget_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "classes.toml"
    path.write_text(
        '[[cuda.passed]]\nreason = "none"\nsymbols = []\n'
        '[[cuda.ignored]]\nbudget = "money"\nreason = "why not"\nsymbols = []\n'
    )
    with pytest.raises(ValueError, match="budget 'money' is none of memory, compute, view"):
        read_groups(path, "cuda")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"since": 3021}, id="another version"),
        pytest.param({"name": "cuMemAlloc_v2"}, id="another name"),
        pytest.param({"per_thread": True}, id="per thread"),
    ],
)
def test_a_wrong_line_in_symbols_h_is_corrected_in_words(change: dict[str, int | str]) -> None:
    right = hooked.Line("cuMemAlloc_v2", "cuMemAlloc", 3020)
    assert generate.disagreements([right], CUDA) == []
    (said,) = generate.disagreements([dataclasses.replace(right, **change)], CUDA)  # type: ignore[arg-type]
    assert 'write X(cuMemAlloc_v2, "cuMemAlloc", 3020, 0)' in said


def test_a_line_for_no_function_is_found() -> None:
    (said,) = generate.disagreements([hooked.Line("cuMemAloc", "cuMemAloc", 2000)], CUDA)
    assert said == "cuMemAloc in symbols.h is no function of the driver"


# --- reading headers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symbol", "family", "number"),
    [
        pytest.param("cuInit", ("cuInit", False), 1, id="first ABI"),
        pytest.param("cuCtxCreate_v4", ("cuCtxCreate", False), 4, id="fourth"),
        pytest.param("cuMemAllocAsync_ptsz", ("cuMemAllocAsync", True), 1, id="ptsz"),
        pytest.param("cuMemcpy_ptds", ("cuMemcpy", True), 1, id="ptds"),
        pytest.param("cuMemcpyDtoH_v2_ptds", ("cuMemcpyDtoH", True), 2, id="second, ptds"),
    ],
)
def test_a_symbol_is_its_family_and_the_number_of_its_abi(
    symbol: str, family: tables.Family, number: int
) -> None:
    assert tables.split(symbol) == (family, number)


def declared(**versions: list[int]) -> Declared:
    """A release with these families, each with as many ABIs as versions."""
    symbols = {
        name if number == 1 else f"{name}_v{number}": "void"
        for name, since in versions.items()
        for number in range(1, len(since) + 1)
    }
    return Declared(symbols, {(name, False): frozenset(since) for name, since in versions.items()})


def test_the_table_says_who_came_and_went() -> None:
    releases = {
        (12, 0): declared(cuOld=[2000], cuStays=[3000]),
        (12, 9): declared(cuStays=[3000, 12090]),
        (13, 0): declared(cuStays=[3000, 12090], cuNew=[13000]),
    }
    assert tables.cuda_table(releases) == [
        CudaSymbol("cuNew", "cuNew", 13000, per_thread=False, first="13.0", gone="-"),
        CudaSymbol("cuOld", "cuOld", 2000, per_thread=False, first="12.0", gone="12.9"),
        CudaSymbol("cuStays", "cuStays", 3000, per_thread=False, first="12.0", gone="-"),
        CudaSymbol("cuStays_v2", "cuStays", 12090, per_thread=False, first="12.9", gone="-"),
    ]


def test_an_abi_without_a_version_is_not_guessed() -> None:
    odd = Declared({"cuOdd": "void", "cuOdd_v2": "void"}, {("cuOdd", False): frozenset({2000})})
    with pytest.raises(HeadersError, match=r"cuOdd has 2 ABIs \(cuOdd, cuOdd_v2\) but versions"):
        tables.cuda_table({(12, 0): odd})


def test_a_table_reads_as_it_was_written() -> None:
    assert tables.parse_cuda(tables.write_cuda(CUDA)) == CUDA
    assert tables.parse_nvml(tables.write_nvml(NVML)) == NVML


@pytest.mark.parametrize(
    ("parameter", "kind"),
    [
        pytest.param("void", "void", id="none"),
        pytest.param("CUdevice dev", "CUdevice", id="a type of theirs"),
        pytest.param("CUdevice", "CUdevice", id="without a name"),
        pytest.param("unsigned int Flags", "unsigned int", id="two words"),
        pytest.param("unsigned long long", "unsigned long long", id="words without a name"),
        pytest.param("const char *name", "const char *", id="pointer"),
        pytest.param("void ** pfn", "void **", id="pointer to a pointer"),
        pytest.param("const CUgraphNode * *dependencies", "const CUgraphNode **", id="apart"),
        pytest.param("CUjit_option options[]", "CUjit_option *", id="array"),
        pytest.param("CUdevice *devices[4]", "CUdevice **", id="array of pointers"),
    ],
)
def test_a_parameter_is_reduced_to_its_type(parameter: str, kind: str) -> None:
    assert prototypes.parameter_type(parameter) == kind


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("nvidia-cuda-runtime==13.5.37\n", "with its hash", id="no hash"),
        pytest.param("nvidia-cuda-runtime>=13\n", "with its hash", id="no version"),
        pytest.param(
            f"a==13.5.37 --hash=sha256:{'0' * 64}\na==13.5.40 --hash=sha256:{'1' * 64}\n",
            "pins a twice for CUDA 13.5",
            id="twice",
        ),
    ],
)
def test_a_lock_file_that_pins_nothing_is_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "cuda-headers.lock"
    path.write_text(text)
    with pytest.raises(HeadersError, match=complaint):
        headers.read_pins(path)


def test_every_minor_release_is_pinned() -> None:
    pinned = headers.read_pins(generate.LOCK)
    twelve = [(12, minor) for minor in (0, 1, 2, 3, 4, 5, 6, 8, 9)]  # there was no CUDA 12.7
    assert list(pinned)[:15] == twelve + [(13, minor) for minor in range(6)]
    assert {len(wheels) for wheels in pinned.values()} == {2}
