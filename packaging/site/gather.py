"""Puts the pages for the site into one folder, links between them still leading where they led.

The front page is README.md; docs/ lies at the root of the site, beside the other pages of the top
level. What a page links to that is no page (a manifest, a source file) is named, not linked. A link
to what is not there at all ends it: mkdocs would not see that one.
"""

import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

TOP = {"README.md": "index.md", "ARCHITECTURE.md": "", "CHANGELOG.md": "", "CONTRIBUTING.md": ""}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def places(root: Path) -> dict[PurePosixPath, PurePosixPath]:
    """Where each page of the tree lies in the site; both relative."""
    found = {PurePosixPath(name): PurePosixPath(place or name) for name, place in TOP.items()}
    for page in sorted((root / "docs").rglob("*")):
        if page.suffix in (".md", ".png", ".svg"):
            where = PurePosixPath(page.relative_to(root).as_posix())
            found[where] = where.relative_to("docs")
    return found


def _normal(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    return PurePosixPath(*parts)


def relinked(text: str, page: PurePosixPath, where: dict[PurePosixPath, PurePosixPath]) -> str:
    """A page's text with its links as they have to be in the site."""

    def link(match: re.Match[str]) -> str:
        words, target, fragment = match[1], match[2], match[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        there = where.get(_normal(page.parent / target))
        if there is None:
            return words
        up = "../" * (len(where[page].parts) - 1)
        return f"[{words}]({up}{there}{fragment})"

    return LINK.sub(link, text)


def broken(root: Path, pages: Iterable[PurePosixPath]) -> list[str]:
    """Links of these pages to what is not in the tree."""
    return [
        f"{page} links to {target}, which is not there"
        for page in pages
        if page.suffix == ".md"
        for _, target, _ in LINK.findall((root / page).read_text())
        if target and "://" not in target and not target.startswith("mailto:")
        if not (root / _normal(page.parent / target)).exists()
    ]


def gather(root: Path, pages: Path) -> None:
    """Fill `pages` anew from the tree at `root`. Ends the program where a link is broken."""
    shutil.rmtree(pages, ignore_errors=True)
    where = places(root)
    if found := broken(root, where):
        sys.exit("\n".join(found))
    for page, place in where.items():
        target = pages / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            target.write_text(relinked((root / page).read_text(), page, where))
        else:
            shutil.copyfile(root / page, target)
    assets = pages / "assets"
    assets.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).with_name("iframe-worker.js"), assets)


if __name__ == "__main__":
    gather(Path(sys.argv[1]), Path(sys.argv[2]))
