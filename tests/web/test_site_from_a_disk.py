"""The documentation's site, read from a disk in a real browser: its search finds, nothing is fetched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from browser import MISSING, Browser, chromium

pytestmark = [
    pytest.mark.skipif(not chromium(), reason=MISSING),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("browser"),
]
SITE = Path(__file__).resolve().parents[2] / "packaging" / "site"
PAGES = {
    "README.md": "# What it is\n\nA page of words.\n",
    "ARCHITECTURE.md": "# Architecture\n",
    "CHANGELOG.md": "# Changes\n",
    "CONTRIBUTING.md": "# Contributing\n",
    "docs/rooms/elsewhere.md": "# Elsewhere\n\n## A heading\n\nThe quagga is told of here alone.\n",
}
ASK = """(() => {
    const asked = document.querySelector(".md-search__input")
    asked.focus()
    asked.value = "quagga"
    asked.dispatchEvent(new Event("input", {bubbles: true}))
    return true
})()"""
FOUND = "[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site of a few pages, made as ours is."""
    pytest.importorskip("mkdocs")
    for name, text in PAGES.items():
        page = tmp_path / "tree" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    pages = tmp_path / "pages"
    subprocess.run(
        [sys.executable, str(SITE / "gather.py"), str(tmp_path / "tree"), str(pages)], check=True
    )
    settings = yaml.safe_load((SITE / "mkdocs.yml").read_text())
    settings |= {"docs_dir": str(pages), "site_dir": str(tmp_path / "html")}
    settings["nav"] = sorted(path.relative_to(pages).as_posix() for path in pages.rglob("*.md"))
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(tmp_path / "mkdocs.yml")],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / "html"


def test_its_search_finds_and_nothing_is_fetched(site: Path, tmp_path: Path) -> None:
    browser = Browser(tmp_path / "profile")
    try:
        page = browser.open()
        page.go((site / "index.html").as_uri())
        page.wait("document.querySelector('.md-search')?.hidden === false", within_s=60)
        assert page.tell(ASK)
        page.wait(
            f"{FOUND}.some((address) => address.includes('rooms/elsewhere.html'))", within_s=60
        )
        assert page.complaints() == []
        asked = page.requested()
        assert any("search_index.js" in address for address in asked)
        assert [one for one in asked if not one.startswith(("file:", "data:", "blob:"))] == []
    finally:
        browser.close()
