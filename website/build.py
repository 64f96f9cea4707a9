"""Builds the site: the pages of the reports from their logs, the documentation around them, and a look at every link.

python website/build.py [FOLDER]      (build/site)
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from links import dead_links
from pages import REPORTS, ROOT, SITE, configuration, write_pages


def main(site: Path) -> int:
    """Build the site into a folder. Gives 1, and says why, where something in it leads nowhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pages(folder / "pages")
        reports = folder / "pages" / "reports"
        shutil.copytree(ROOT / "reports", reports)
        run("conformance", "publish", "-o", reports, "--render")
        (reports / "README.md").rename(folder / "pages" / REPORTS)
        shutil.copy(ROOT / "website" / "site.css", folder / "pages")
        (folder / "site.yml").write_text(yaml.safe_dump(configuration(), sort_keys=False), encoding="utf-8")
        run("zensical", "build", "--strict", "-f", folder / "site.yml")
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(folder / "site", site)
    total, dead = dead_links(site)
    print("\n".join([*dead, f"{site}: {total:,} links, {len(dead)} dead"]))
    return 1 if dead else 0


def run(module: str, *arguments: object) -> None:
    """Run a module; what went wrong is told in its own words, without a traceback."""
    line = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True)
    print(done.stderr.partition("Traceback (most recent call last)")[0], file=sys.stderr, end="", flush=True)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else SITE)))
