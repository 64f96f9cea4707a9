"""The pages of the site: the repository's own, in the folders that they are in, so that links between them hold.

A link to any other file or folder of the repository leads to a page that shows it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"  # unless another folder is named
PATTERNS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "examples/*/README.md")
REPORTS = "reports/published.md"
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(?:#(L\d+)?)?(?=[^)\s]*\))")
OPERATION = re.compile(r"^# The \w+ of (\w+)", re.MULTILINE)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".cpp": "cpp", ".hpp": "cpp"}
# No line of it is looked for: the words of a page of documentation are.
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"


def configuration() -> dict[str, Any]:
    """What is in site.yml, with the pages that a pattern in its navigation stands for, named by their operation."""
    read: dict[str, Any] = yaml.safe_load((ROOT / "website" / "site.yml").read_text(encoding="utf-8"))
    for entry in read["nav"]:
        for title, pattern in entry.items():
            if isinstance(pattern, str) and "*" in pattern:
                found = sorted(ROOT.glob(pattern), key=lambda path: path.stem)
                entry[title] = [{OPERATION.search(path.read_text("utf-8"))[1]: f"docs/{path.name}"} for path in found]
    return read


def write_pages(folder: Path) -> None:
    """Write the pages of documentation into a folder, and a page for every file that they link to."""
    shown: dict[str, None] = {}
    for path in (path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))):
        name = path.relative_to(ROOT).as_posix()
        write(folder / name, LINK.sub(lambda link, name=name: _to_page(name, link, shown), path.read_text("utf-8")))
    waiting = list(shown)
    for name in waiting:
        if (ROOT / name).is_dir():
            below = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / name).rglob("*")) if _is_source(path)]
            waiting += [one for one in below if one not in waiting]
            lines = [f"- [{posixpath.relpath(one, name)}]({posixpath.relpath(one, name)}.md)" for one in below]
            write(folder / page_of(name), f"{HIDDEN}# {name}/\n\n" + "\n".join(lines) + "\n")
        else:
            language, text = LANGUAGES.get(Path(name).suffix, "text"), (ROOT / name).read_text("utf-8")
            write(folder / page_of(name), f'{HIDDEN}# {name}\n\n~~~~~~ {{.{language} linenums="1"}}\n{text}\n~~~~~~\n')


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def page_of(name: str) -> str:
    """The page that shows a file or a folder of the repository."""
    return f"{name}/index.md" if (ROOT / name).is_dir() else f"{name}.md"


def _to_page(page: str, link: re.Match[str], shown: dict[str, None]) -> str:
    """The target of a link; that of the page that shows it where it is a source file or a folder of the repository."""
    here = posixpath.dirname(page) or "."
    name = posixpath.normpath(posixpath.join(here, link[1]))
    if name == "reports/README.md":  # the folder has an index.html of its own
        return posixpath.relpath(REPORTS, here)
    if name.endswith((".md", ".html", ".gz")) or name.startswith(("reports/", "..")) or not (ROOT / name).exists():
        return link[0]
    shown[name] = None
    line = f"#__codelineno-0-{link[2][1:]}" if link[2] else ""
    return posixpath.relpath(page_of(name), here) + line


def _is_source(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts
