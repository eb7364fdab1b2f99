"""What the pages in docs/ point at is there: pages, tests, metrics, flags, doctor's checks."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
TROUBLES = (ROOT / "docs/troubleshooting.md").read_text()


def anchor(heading: str) -> str:
    """As the usual renderers make it."""
    plain = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower())
    return plain.strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in HEADING.findall(page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, fragment in LINK.findall(page.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        if fragment:
            assert fragment in anchors(there), f"{target}#{fragment}"


@pytest.mark.parametrize(
    ("pattern", "where"),
    [
        pytest.param(r"`(vgpu_[a-z_]*[a-z])[`{]", "docs/metrics.md", id="metrics"),
        pytest.param(r"`(--[a-z][a-z-]+)", "docs/configuration.md", id="flags"),
        pytest.param(r"[Dd]octor checks? `([a-z-]+)`", "docs/doctor.md", id="checks of doctor"),
    ],
)
def test_troubleshooting_names_what_there_is(pattern: str, where: str) -> None:
    names = re.findall(pattern, TROUBLES)
    assert len(names) > 3, "the page names some"
    known = (ROOT / where).read_text()
    assert [name for name in names if f"`{name}" not in known] == []


@pytest.mark.parametrize(
    "words",
    ["segfault", "Illegal device id", "vLLM", "NCCL", "Unknown Error", "Fail to lock shrreg",
     "17,592,186,044,134", "UnexpectedAdmissionError", "4194304", "out of memory", "GLIBC_",
     "cudaErrorMemoryAllocation"],
)  # fmt: skip
def test_what_users_see_is_found_by_its_own_words(words: str) -> None:
    assert words in TROUBLES


def test_every_page_is_found_from_the_front_page() -> None:
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        todo += [
            (page.parent / target).resolve()
            for target, _ in LINK.findall(page.read_text())
            if target and "://" not in target
        ]
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert sorted(str(page.relative_to(ROOT)) for page in pages - seen) == []
