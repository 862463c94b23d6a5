"""What the site has beside docs/: the project's own pages, the decisions in its menu, and links into the source.

Pages are read on GitHub as well, so their links lead to files of the tree. Here a link to a page of the site stays
one, and a link to any other file leads to that file on GitHub. A file that is not there ends the build.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Pages that lie outside of docs/, by where they are on the site.
BESIDE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
# ](target), not within code; an image or a link, with an anchor or without.
LINK = re.compile(r"(`+)(?:(?!\1).)+\1|\]\(([^)\s#]+)(#[^)\s]*)?\)", re.DOTALL)


def on_config(config: Any) -> Any:
    decisions = sorted((DOCS / "decisions").glob("*.md"))
    config.nav.append({"Decisions": [f"decisions/{page.name}" for page in decisions]})
    return config


def on_files(files: Files, config: Any) -> Files:
    for place, source in BESIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    place = page.file.src_uri
    source = ROOT / BESIDE[place] if place in BESIDE else DOCS / place

    def follow(match: "re.Match[str]") -> str:
        target, anchor = match[2], match[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = (source.parent / target).resolve()
        if not path.exists():
            raise PluginError(f"{source.relative_to(ROOT)} links to {target}, which is not there")
        name = path.relative_to(ROOT).as_posix()
        on_site = {page: place for place, page in BESIDE.items()}.get(name)
        if path.suffix == ".md" and path.is_relative_to(DOCS):
            on_site = path.relative_to(DOCS).as_posix()
        if on_site:
            return f"]({os.path.relpath(on_site, Path(place).parent)}{anchor})"
        kind = "tree" if path.is_dir() else "blob"
        return f"]({config.repo_url.rstrip('/')}/{kind}/main/{name}{anchor})"

    return LINK.sub(follow, markdown)
