"""What MkDocs cannot do alone: pages from outside docs/, and links to files of the repository.

The README is the start page. A file that a page links to becomes a page of its own below source/, with its lines
numbered, so that the site needs no repository beside it. Published reports are copied as they are.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)?(#[^)\s]*)?(\))")
LINE = re.compile(r"#L(\d+)$")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".cpp": "cpp", ".json": "json"}
COPIED = ("reports",)  # folders that are part of the site as they are
PLACES = {
    "README.md": "index.md",
    "reports/README.md": "reports/overview.md",
}  # where files of the repository stand in it


def on_files(files: Files, config: Any) -> Files:
    """Add the start page, the reports, and every file that a page links to."""
    for path in sorted(path for folder in COPIED for path in (ROOT / folder).rglob("*") if path.is_file()):
        name = path.relative_to(ROOT).as_posix()
        if name not in PLACES:
            files.append(File.generated(config, name, abs_src_path=str(path)))
    waiting = [*PLACES, *(name for name in _repository_names(files)), "CONTRIBUTING.md", "CHANGELOG.md"]
    done: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        if is_page(name):
            text = page_of(ROOT / name)
            files.append(File.generated(config, place_of(name), content=text))
        if name.endswith(".md"):
            waiting += [linked for linked in links_of(name) if is_page(linked)]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links between files of the repository as links between pages of the site."""
    name = name_of(page.file.src_uri)
    if name is None or not name.endswith(".md"):
        return markdown

    def replaced(match: re.Match[str]) -> str:
        begin, target, anchor, end = match.group(1), match.group(2) or "", match.group(3) or "", match.group(4)
        if not target or "://" in target or target.startswith("mailto:"):
            return match.group(0)
        linked = resolved(name, target)
        if not (ROOT / linked).exists():
            return match.group(0)  # MkDocs says that it is dead
        at = place_of(f"{linked}/README.md" if (ROOT / linked / "README.md").exists() else linked)
        line = LINE.search(anchor)
        anchor = f"#__codelineno-0-{line[1]}" if line else anchor
        return f"{begin}{relpath(at, PurePosixPath(page.file.src_uri).parent.as_posix())}{anchor}{end}"

    return LINK.sub(replaced, markdown)


def page_of(path: Path) -> str:
    """A file of the repository as Markdown: itself, its lines, or the list of a folder."""
    quiet = "---\nsearch:\n  exclude: true\n---\n\n"
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        names = sorted(one.name for one in path.iterdir() if one.name[0] not in "_.")
        return f"{quiet}# {name}\n\n" + "".join(f"- `{one}`\n" for one in names)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f'{quiet}# {name}\n\n{fence}{LANGUAGES.get(path.suffix, "text")} linenums="1"\n{text}\n{fence}\n'


def links_of(name: str) -> list[str]:
    """Files and folders of the repository that a Markdown file links to."""
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = [match.group(2) for match in LINK.finditer(text) if match.group(2)]
    found = [resolved(name, target) for target in targets if "://" not in target and not target.startswith("mailto:")]
    found = [one for one in found if (ROOT / one).exists()]
    return [f"{one}/README.md" if (ROOT / one / "README.md").exists() else one for one in found]


def is_page(name: str) -> bool:
    """Whether a linked file needs a page: those of docs/ have one, and reports are copied."""
    if (ROOT / name).is_dir():
        return True
    return not name.startswith(("docs/", *(f"{folder}/" for folder in COPIED))) or name in PLACES


def place_of(name: str) -> str:
    """Where a file of the repository stands in the site."""
    if name in PLACES:
        return PLACES[name]
    if (ROOT / name).is_dir():
        return f"source/{name}.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if name.startswith(tuple(f"{folder}/" for folder in COPIED)):
        return name
    return f"source/{name}" if name.endswith(".md") else f"source/{name}.md"


def name_of(place: str) -> str | None:
    """The file of the repository behind a page of the site."""
    for name, at in PLACES.items():
        if at == place:
            return name
    if place.startswith("source/"):
        name = place.removeprefix("source/")
        return name if (ROOT / name).exists() else None  # numbered lines and lists of folders have no links
    return f"docs/{place}"


def resolved(name: str, target: str) -> str:
    """A link's target, seen from the repository's root."""
    return normpath((PurePosixPath(name).parent / target).as_posix())


def _repository_names(files: Files) -> list[str]:
    return [f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md")]
