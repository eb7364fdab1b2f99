"""Which test types which command of the pages? For all pages that a user reads.

A line counts as a command if it is indented, or fenced without a language, and begins with a
program; in README.md and docs/install every indented line does, whatever it begins with.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from install_page import lines

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
STRICT = (README, *sorted((ROOT / "docs" / "install").glob("*.md")))
PAGES = (
    *STRICT,
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "modes").glob("*.md")),
)
_PROGRAM = re.compile(
    r"(?:\S*vgpu-agent(?: |$)|python3? |kubectl |curl |ctr |docker |podman |tar |systemctl |sha256sum )"
)


@dataclass(frozen=True, slots=True)
class Row:
    """Lines of a page: a regular expression for the whole line, and the test that types them."""

    page: str  # as in a shell, * stands for any name
    line: str
    test: str = ""  # file::function
    because: str = ""  # nobody types it, for this reason


TYPED = "tests/e2e/test_typed_commands.py"
_KUBECTL = "tests/cluster/test_install_page.py::test_every_command_of_the_page_works"
_KUBECTL_README = "tests/cluster/test_install_page.py::test_the_commands_of_the_readme_work"
_KUBECTL_MODES = "tests/cluster/test_install_page.py::test_the_overlays_of_the_modes_are_applied"
_KUBECTL_SYSTEMD = (
    "tests/cluster/test_systemd_page.py"
    "::test_the_page_makes_a_kubeconfig_with_which_the_agent_may_see_its_node"
)
_SYSTEMD = (
    "tests/bundle/test_systemd.py::test_every_command_of_the_page_that_is_typed_on_a_node_works"
)
_ASKING = "tests/e2e/test_local_api.py::test_the_examples_in_the_documentation"
_CTR = "tests/bundle/test_image.py::test_the_command_that_the_instructions_give_loads_it"
_FILES = "tests/bundle/test_tarball.py::test_the_single_file_gives_the_same_files"
_OFFLINE = "tests/bundle/test_offline.py::test_every_command_of_the_page"
_VERIFY = "tests/packaging/test_signature.py::test_a_signed_release_is_taken"
_MAKE = "tests/bundle/test_reproducible.py::test_a_second_release_is_the_same"
TABLE = (
    Row("README.md", r"python3 build\.py (demo|hook)", f"{TYPED}::test_tasks_of_build_py"),
    Row("README.md", r"vgpu-agent limit .*", f"{TYPED}::test_limits"),
    Row("README.md", r"vgpu-agent doctor", f"{TYPED}::test_doctor"),
    Row("README.md", r"python3 build\.py test", because="it is what runs these tests"),
    Row("README.md", r"kubectl .*", _KUBECTL_README),
    Row(
        "README.md",
        r"\.build/venv/bin/python agent\.py (run|uninstall) .*",
        f"{TYPED}::test_run_from_source_and_take_it_off",
    ),
    Row("install/kubernetes.md", r"kubectl .*", _KUBECTL),
    Row("install/kubernetes.md", r"ctr .*", _CTR),
    Row("install/kubernetes.md", r"\./vgpu-agent-\S+ files .*", _FILES),
    Row("install/offline.md", r".*", _OFFLINE),
    Row("install/systemd.md", r"kubectl .*", _KUBECTL_SYSTEMD),
    Row("install/systemd.md", r"(?!kubectl ).*", _SYSTEMD),
    Row("install/verify.md", r"(ssh-keygen|sha256sum) .*", _VERIFY),
    Row("install/verify.md", r"python3 build\.py dist", _MAKE),
    Row(
        "install/verify.md",
        r"python3 build\.py dist --sign \S+",
        because="the key is its maker's; what is signed so is tested with a key made for it, in "
        "tests/packaging/test_signature.py",
    ),
    Row(
        "install/verify.md",
        r"python3 build\.py release-check",
        f"{TYPED}::test_tasks_of_build_py",
    ),
    Row("modes/*.md", r"kubectl apply -k .*", _KUBECTL_MODES),
    Row("migrate.md", r"kubectl apply -k .*", _KUBECTL_MODES),
    Row(
        "migrate.md",
        r"kubectl (label|--namespace kube-system delete daemonset) .*",
        because="of the reader's cluster; the same is typed as docs/install/kubernetes.md has it",
    ),
    Row(
        "modes/*.md",
        r"vgpu-agent run .*",
        because="the tests of the mode in tests/e2e run it so, with files and flags of a simulated "
        "node",
    ),
    Row("live-limits.md", r"vgpu-agent limit .*", f"{TYPED}::test_limits"),
    Row("live-limits.md", r"kubectl annotate .*", f"{TYPED}::test_annotations"),
    Row("live-limits.md", r"curl .*", _ASKING),
    Row("local-api.md", r"curl .*", _ASKING),
    Row("simulated-driver.md", r"python3 build\.py hook", f"{TYPED}::test_tasks_of_build_py"),
    Row("doctor.md", r"vgpu-agent doctor", f"{TYPED}::test_doctor"),
    Row(
        "hook.md",
        r"python3 build\.py cuda-symbols.*",
        because="it fetches NVIDIA's headers, hundreds of MiB; what it writes is compared by "
        "tests/hook/test_driver_symbols.py",
    ),
)


def name_of(page: Path) -> str:
    """README.md, install/kubernetes.md, metrics.md."""
    return str(page.relative_to(ROOT)).removeprefix("docs/")


def typed(page: Path) -> list[str]:
    """The commands of a page, without `sudo`, a continued line put together."""
    fenced = re.findall(r"^```\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    inside = [line for block in fenced for line in block.replace("\\\n", " ").splitlines()]
    found = [line.removeprefix("sudo ") for line in inside if not line.startswith(" ")]
    programs = [line for line in (*lines(page), *found) if _PROGRAM.match(line)]
    chosen = [*lines(page), *programs] if page in STRICT else programs
    return list(dict.fromkeys(re.sub(r"\s+# .*", "", line) for line in chosen))


def commands_for(test: str) -> dict[str, list[str]]:
    """By page: the commands that this test has to type."""
    return {
        name: chosen
        for page in PAGES
        if (
            chosen := [
                line for line in typed(page) if (row := row_of(page, line)) and row.test == test
            ]
        )
        for name in (name_of(page),)
    }


def row_of(page: Path, line: str) -> Row | None:
    """The one row of the table that knows a line."""
    for row in TABLE:
        if fnmatch(name_of(page), row.page) and re.fullmatch(row.line, line):
            return row
    return None
