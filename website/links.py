"""Finds dead links of a built site: every address of its own must be a file, and every fragment an element of it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The ids of a page, and what it links to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids = {""}
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("id", "name") and value:
                self.ids.add(value)
            elif key in ("href", "src") and value:
                self.links.add(value)


def dead_links(site: Path) -> tuple[int, list[str]]:
    """How many links within the site there are, and those that lead nowhere, each with its page."""
    site = site.resolve()
    # What stands for a page that is missing has links from the root of the server, wherever the site is.
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    count, dead = 0, []
    for path, page in pages.items():
        for link in sorted(page.links):
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            count += 1
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file() or (target in pages and unquote(url.fragment) not in pages[target].ids):
                dead.append(f"{path.relative_to(site)}: {link}")
    return count, dead
