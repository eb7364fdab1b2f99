"""The compiler compares our prototypes, structures and constants with the vendor's headers."""

import functools
import re
import sys
import tempfile
from pathlib import Path

import pytest

from hook.driver_symbols import generate, headers, prototypes, tables
from hook.driver_symbols.generate import Vendor
from hook.driver_symbols.headers import HeadersError, HeadersUnavailableError, Release, dotted

pytestmark = pytest.mark.timeout(600)  # the first run fetches 35 MB

RELEASES = list(headers.read_pins(generate.LOCK))
CUDA = tables.parse_cuda(generate.CUDA_TSV.read_text())
CUDA_ABI = (generate.HOOK / "cuda_abi.h").read_text()
NVML_ABI = (generate.HOOK / "nvml_abi.h").read_text()

VENDOR_FIELDS = {"CUgraphNodeParams": {"of": "reserved1"}}  # theirs is a union without a name

releases = pytest.mark.parametrize("release", RELEASES, ids=dotted)


@functools.cache
def vendor() -> Vendor:
    """The headers, read once; only what cannot be fetched may be skipped."""
    try:
        return generate.read_vendor()
    except HeadersUnavailableError as error:
        pytest.skip(str(error))


def unit(release: Release, header: str) -> str:
    """The start of a C file that sees the vendor's names."""
    vendor()
    (directory,) = generate.FETCHED.glob(f"{dotted(release)}-*")
    return f'#include <stddef.h>\n#include "{directory / header}"\n'


def complaints(source: str) -> str:
    """What the compiler has against it."""
    flags = ["-D__CUDA_API_VERSION_INTERNAL", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", "-c", "-o"]
    with tempfile.TemporaryDirectory() as scratch:  # zig wants to put an object somewhere
        done = headers.zig_cc(sys.executable, [*flags, f"{scratch}/unit.o"], source, [])
    return done.stderr if done.returncode else ""


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def fields(body: str) -> list[str]:
    """The names of a structure's fields, in order; of a nested one only its own name."""
    flat, depth = "", 0
    for character in without_comments(body):
        depth += {"{": 1, "}": -1}.get(character, 0)
        flat += " " if depth or character == "}" else character
    names = []
    for statement in flat.split(";"):
        for declarator in statement.split(","):
            found = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", declarator)
            if found:
                names.append(found[1])
    return names


def constants(text: str) -> list[tuple[str, str, str]]:
    """(our name, value, the vendor's name) of every enumerator; theirs may stand beside ours."""
    return [
        (name, value, comment or name)
        for body in re.findall(r"^enum \{\n(.*?)^\};", text, flags=re.DOTALL | re.MULTILINE)
        for name, value, comment in re.findall(
            r"^\s*(\w+) = (\w+),(?:[ \t]*/\*\s*((?:CU|NVML|nvml)\w+))?", body, flags=re.MULTILINE
        )
    ]


# --- what is generated ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [generate.CUDA_TSV, generate.NVML_TSV, generate.PROTOTYPES],
    ids=lambda path: path.name,
)
def test_what_is_generated_is_current(path: Path) -> None:
    now = generate.outputs(vendor())[path]
    assert path.read_text() == now, "run `python3 build.py cuda-symbols`"


# --- prototypes ----------------------------------------------------------------------------------


def our_prototypes(release: Release) -> str:
    """cuda_prototypes.h without its includes, as far as this release has the functions."""
    having = {r.symbol for r in CUDA if released(r.first) <= release}
    text = without_comments(generate.PROTOTYPES.read_text())
    found = re.findall(r"CUresult (cu\w+)\(([^;]*)\);", text)
    return "".join(f"CUresult {s}({types});\n" for s, types in found if s in having)


def released(text: str) -> Release:
    major, minor = text.split(".")
    return int(major), int(minor)


@releases
def test_the_compiler_finds_our_prototypes_the_same(release: Release) -> None:
    ours = our_prototypes(release)
    assert ours.count(";") > 100
    assert complaints(unit(release, "cuda.h") + ours) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("cuMemAlloc_v2(CUdeviceptr *, size_t)", "cuMemAlloc_v2(CUdeviceptr *, int)", id="width"),
        pytest.param("cuMemFree_v2(CUdeviceptr)", "cuMemFree_v2(CUdeviceptr *)", id="pointer"),
        pytest.param("cuInit(unsigned int)", "cuInit(unsigned int, int)", id="one too many"),
        pytest.param("cuMemAlloc(CUdeviceptr_v1 *", "cuMemAlloc(CUdeviceptr *", id="the newer ABI"),
    ],
)  # fmt: skip
def test_a_wrong_prototype_does_not_compile(right: str, wrong: str) -> None:
    ours = our_prototypes(RELEASES[-1])
    assert right in ours
    said = complaints(unit(RELEASES[-1], "cuda.h") + ours.replace(right, wrong))
    assert f"conflicting types for '{right.split('(', maxsplit=1)[0]}'" in said


# --- structures and constants of CUDA ------------------------------------------------------------


def our_structures() -> dict[str, str]:
    """Name -> body of the structures that cuda_abi.h defines."""
    found = re.findall(
        r"^typedef struct \w+ \{\n(.*?)^\} (\w+);", CUDA_ABI, flags=re.MULTILINE | re.DOTALL
    )
    return {name: body for body, name in found}


def structure_checks(structures: dict[str, str], *, with_fields: bool) -> str:
    """C that defines ours beside theirs, and asserts that both have everything in one place."""
    renamed = "".join(f"typedef struct {{\n{body}}} {name};\n" for name, body in structures.items())
    for name in structures:
        renamed = re.sub(rf"\b{name}\b", f"our_{name}", renamed)
    checks = []
    for name, body in structures.items():
        checks.append(same(f"sizeof(our_{name})", f"sizeof({name})", name))
        for field in fields(body) if with_fields else ():
            theirs = VENDOR_FIELDS.get(name, {}).get(field, field)
            a, b = f"our_{name}, {field}", f"{name}, {theirs}"
            checks.append(same(f"offsetof({a})", f"offsetof({b})", f"{name}.{field}"))
            a, b = f"(our_{name} *)0)->{field}", f"({name} *)0)->{theirs}"
            checks.append(same(f"sizeof(({a})", f"sizeof(({b})", f"size of {name}.{field}"))
    return renamed + "".join(checks)


def same(ours: str, theirs: str, what: str) -> str:
    return f'_Static_assert((long long)({ours}) == (long long)({theirs}), "{what}");\n'


def known(names: dict[str, str], start: str) -> dict[str, str]:
    """Those of `names` that the header has which `start` includes."""
    (header,) = re.findall(r'"(.*)"', start)
    words = set(re.findall(r"\w+", Path(header).read_text()))
    return {name: body for name, body in names.items() if name in words}


@releases
def test_our_structures_are_the_vendors(release: Release) -> None:
    start = unit(release, "cuda.h")
    newest = release == RELEASES[-1]  # older headers lack fields that were reserved then
    structures = known(our_structures(), start)
    assert len(structures) > 10
    assert not newest or structures == our_structures()
    assert complaints(start + structure_checks(structures, with_fields=newest)) == ""


@pytest.mark.parametrize(
    ("name", "right", "wrong", "said"),
    [
        pytest.param("CUmemLocation", "int type, id;", "int id, type;", "CUmemLocation.type", id="order"),
        pytest.param("CUlaunchConfig", "unsigned numAttrs;", "unsigned numAttrs; size_t x;", "CUlaunchConfig", id="size"),
        pytest.param("CUipcMemHandle", "char reserved[64];", "char reserved[60];", "CUipcMemHandle.reserved", id="array"),
    ],
)  # fmt: skip
def test_a_wrong_structure_does_not_compile(name: str, right: str, wrong: str, said: str) -> None:
    body = our_structures()[name]
    assert right in body
    checks = structure_checks({name: body.replace(right, wrong)}, with_fields=True)
    assert said in complaints(unit(RELEASES[-1], "cuda.h") + checks)


def constant_checks(text: str) -> str:
    return "".join(same(value, theirs, ours) for ours, value, theirs in constants(text))


def test_our_constants_are_the_vendors() -> None:
    assert len(constants(CUDA_ABI)) > 30
    said = complaints(unit(RELEASES[-1], "cuda.h") + constant_checks(CUDA_ABI))
    assert said == "", "write the vendor's name beside ours: `OURS = 1, /* CU_THEIRS */`"


def test_a_wrong_constant_does_not_compile() -> None:
    wrong = CUDA_ABI.replace("CUDA_ERROR_OUT_OF_MEMORY = 2", "CUDA_ERROR_OUT_OF_MEMORY = 3")
    said = complaints(unit(RELEASES[-1], "cuda.h") + constant_checks(wrong))
    assert "CUDA_ERROR_OUT_OF_MEMORY" in said


# --- NVML ----------------------------------------------------------------------------------------


def nvml_types() -> dict[str, list[str]]:
    """Our structure -> the vendor's types of that layout, from the assertion of its size."""
    found = re.findall(r'_Static_assert\(sizeof\(struct (\w+)\) == \d+, "([^"]*)"\);', NVML_ABI)
    return {ours: re.findall(r"nvml\w+_t\b", theirs) for ours, theirs in found}


def nvml_structures() -> dict[str, str]:
    found = re.findall(r"^struct (\w+) \{\n(.*?)^\};", NVML_ABI, flags=re.MULTILINE | re.DOTALL)
    return dict(found)


def vendor_nvml() -> str:
    vendor()
    (directory,) = generate.FETCHED.glob(f"{dotted(RELEASES[-1])}-*")
    return headers.preprocessed(
        sys.executable, "#include <nvml.h>\n", [directory], "NVML_NO_UNVERSIONED_FUNC_DEFS"
    )


def nvml_structure_checks(structures: dict[str, str], text: str) -> str:
    checks = []
    for ours, body in structures.items():
        for theirs in nvml_types()[ours]:
            found = re.search(rf"struct\b\s*\w*\s*\{{([^{{}}]*)\}}[\w\s,]*\b{theirs}\b[^;]*;", text)
            assert found, f"nvml.h defines no structure {theirs}"
            names = list(zip(fields(body), fields(found[1]), strict=True))
            checks.append(same(f"sizeof(struct {ours})", f"sizeof({theirs})", ours))
            for a, b in names:
                mine, yours = f"struct {ours}, {a}", f"{theirs}, {b}"
                checks.append(same(f"offsetof({mine})", f"offsetof({yours})", f"{ours}.{a}"))
    defined = "".join(f"struct {ours} {{\n{body}}};\n" for ours, body in structures.items())
    return defined + "".join(checks)


def test_every_nvml_structure_names_the_vendors() -> None:
    named = {ours for ours, theirs in nvml_types().items() if theirs}
    assert set(nvml_structures()) - named == set(), (
        'write _Static_assert(sizeof(struct ...) == ..., "nvmlTheirs_t") below it in nvml_abi.h'
    )


def test_our_nvml_structures_are_the_vendors() -> None:
    checks = nvml_structure_checks(nvml_structures(), vendor_nvml())
    assert complaints(unit(RELEASES[-1], "nvml.h") + checks) == ""


def test_a_wrong_nvml_structure_does_not_compile() -> None:
    body = nvml_structures()["nvml_memory_v2"]
    wrong = {"nvml_memory_v2": body.replace("unsigned version;", "unsigned long long version[2];")}
    checks = nvml_structure_checks(wrong, vendor_nvml())
    assert "nvml_memory_v2.total" in complaints(unit(RELEASES[-1], "nvml.h") + checks)


def test_our_nvml_constants_are_the_vendors() -> None:
    assert len(constants(NVML_ABI)) > 20
    said = complaints(unit(RELEASES[-1], "nvml.h") + constant_checks(NVML_ABI))
    assert said == "", "write the vendor's name beside ours: `OURS = 1, /* NVML_THEIRS */`"


ENUM = "enum"


def nvml_prototypes(text: str, renamed: dict[str, str]) -> dict[str, str]:
    """Function -> the types of its parameters, with other names for some."""
    found = {}
    for name, parameters in headers.declarations(text, tables.NVML_NAME):
        types = ", ".join(prototypes.parameter_type(part) for part in parameters.split(","))
        types = types.replace("unsigned int", "unsigned")
        found[name] = re.sub(r"\bnvml\w+_t\b", lambda kind: renamed.get(kind[0], kind[0]), types)
    return found


def test_our_nvml_prototypes_are_the_vendors() -> None:
    text = vendor_nvml()
    renamed = {theirs: f"struct {ours}" for ours, names in nvml_types().items() for theirs in names}
    renamed |= {name: kind for kind, name in re.findall(r"typedef (unsigned) int (nvml\w+);", text)}
    for known, alias in re.findall(r"typedef (nvml\w+_t) (nvml\w+_t);", text):
        renamed[alias] = renamed.get(known, alias)
    for enum in re.findall(r"typedef enum[^{};]*\{[^{}]*\}\s*(nvml\w+)", text):
        renamed[enum] = ENUM
    del renamed["nvmlReturn_t"]
    theirs = nvml_prototypes(text, renamed)
    ours = nvml_prototypes(without_comments(NVML_ABI), {})
    assert len(ours) > 40
    for name, types in ours.items():
        pattern = re.escape(theirs[name]).replace(ENUM, "(?:int|unsigned)")
        assert re.fullmatch(pattern, types), (name, types, theirs[name])


def test_what_cannot_be_read_is_said() -> None:
    with pytest.raises(HeadersError, match="cannot be read"):
        headers.preprocessed(sys.executable, "#include <nowhere.h>\n", [generate.HOOK])
