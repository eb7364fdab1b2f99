"""The pages as a site: links lead where they led in the tree. `build.py check` builds it whole."""

import re
import sys
from pathlib import Path, PurePosixPath

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging" / "site"))
import gather  # noqa: E402

WHERE = gather.places(ROOT)


@pytest.mark.parametrize(
    ("page", "text", "becomes"),
    [
        pytest.param("README.md", "[x](docs/hook.md)", "[x](hook.md)", id="from the front page"),
        pytest.param("README.md", "[x](docs/hook.md#a-b)", "[x](hook.md#a-b)", id="to a heading"),
        pytest.param("docs/hook.md", "[x](../README.md)", "[x](index.md)", id="to the front page"),
        pytest.param(
            "docs/install/systemd.md",
            "[x](../metrics.md)",
            "[x](../metrics.md)",
            id="between rooms",
        ),
        pytest.param(
            "docs/install/systemd.md", "[x](../../CHANGELOG.md)", "[x](../CHANGELOG.md)", id="up"
        ),
        pytest.param("docs/hook.md", "[x](../hook/symbols.h)", "x", id="no page"),
        pytest.param(
            "docs/hook.md",
            "[x](https://a.example/b.md)",
            "[x](https://a.example/b.md)",
            id="elsewhere",
        ),
        pytest.param("docs/hook.md", "[x](#below)", "[x](#below)", id="within the page"),
    ],
)
def test_a_link_of_the_tree_in_the_site(page: str, text: str, becomes: str) -> None:
    assert gather.relinked(text, PurePosixPath(page), WHERE) == becomes


def test_every_page_of_docs_is_in_the_site(tmp_path: Path) -> None:
    gather.gather(ROOT, tmp_path / "pages")
    pages = {p.relative_to(tmp_path / "pages").as_posix() for p in tmp_path.rglob("*.md")}
    assert {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")} < pages
    settings = yaml.safe_load((ROOT / "packaging/site/mkdocs.yml").read_text())
    listed = set(re.findall(r"[\w./-]+\.md", str(settings["nav"])))
    assert sorted(pages - listed) == []
    assert sorted(listed - pages) == []


@pytest.mark.parametrize(
    "link",
    [
        pytest.param("[x](docs/nowhere.md)", id="a page"),
        pytest.param("[x](packaging/nothing.yaml#here)", id="no page"),
    ],
)
def test_a_link_to_what_is_not_there_ends_it(link: str, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for name in gather.TOP:
        (tmp_path / "tree" / name).write_text("# A page\n\n[y](LICENSE) [z](mailto:a@b.example)\n")
    (tmp_path / "tree/LICENSE").touch()
    gather.gather(tmp_path / "tree", tmp_path / "pages")
    (tmp_path / "tree/README.md").write_text(f"# A page\n\n{link}\n")
    with pytest.raises(SystemExit, match=r"README.md links to .*, which is not there"):
        gather.gather(tmp_path / "tree", tmp_path / "pages")
