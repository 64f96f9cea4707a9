"""The pages, badges and indexes of a folder of published logs, all made anew from the logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tabulate import tabulate

from conformance.errors import UsageError
from conformance.reporting import badge, html
from conformance.reporting.markdown import escaped
from conformance.reporting.plain import line
from conformance.reporting.publish import history
from conformance.reporting.publish.changes import changes
from conformance.reporting.publish.overview import (
    Head,
    Kind,
    Row,
    Section,
    heads,
    in_order,
    kinds,
    operation_of,
    section,
)
from conformance.reporting.publish.store import LARGEST, LOG, Published, current, find, remember

CHANGES = "changes.html"


def render(root: Path, *, pages: bool = True, say: Callable[[str], object] = lambda text: None) -> list[Published]:
    """Write all that follows from the published logs; `pages` says whether the large page of each log, too.

    `say` is told the operation and backend that is worked on. Raises `UsageError` when there is no log, or a page
    would be too large to be published.
    """
    entries = find(root)
    for one in entries:
        remember(one.home, one.log)
        write_badges(one)
    for home in dict.fromkeys(one.home for one in entries):
        own = [one for one in entries if one.home == home]
        lines = history.read(home)
        write(home / CHANGES, page("changes.html", own=own, lines=lines[::-1], changes=changes(own, LOG)))
    chosen = current(entries)
    columns = heads(chosen)
    sections = [section(head, chosen) for head in columns]
    for head in columns:
        say(head.name)
        serving = in_order([one for one in chosen if one.operation == head.name])
        text = html.page([one.log for one in serving], operation_of(serving[0]), home="../latest.html")
        write(root / head.anchor / "latest.html", text)
    for one in entries if pages else ():
        say(f"{one.operation} {one.backend}")
        above = "../../../latest.html"
        (root / one.folder / "report.html").write_text(
            html.page([one.log], operation_of(one), home=above, largest=None), encoding="utf-8"
        )
    found = kinds(chosen, columns)
    shared = {"columns": columns, "kinds": found, "sections": sections, "entries": entries, "log": LOG}
    write(root / "latest.html", page("latest.html", **shared))
    write(root / "index.html", page("index.html", **shared))
    write(root / "README.md", readme(entries, sections, columns, found))
    return entries


def page(template: str, **values: object) -> str:
    """A page of a template."""
    return html.templates().get_template(template).render(line=line, **values)


def write_badges(one: Published) -> None:
    """The badges of a whole run; none for any other."""
    for name, make in (("badge.svg", badge.svg), ("badge.json", badge.endpoint)):
        path = one.root / one.folder / name
        if one.whole:
            write(path, make(one.log))
        else:
            path.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Write a page; raises `UsageError` when it would be too large to be published."""
    if len(text.encode()) > LARGEST:
        raise UsageError(f"{path}: would have {len(text.encode()):,} bytes; a published file may have {LARGEST:,}")
    path.write_text(text, encoding="utf-8")


def readme(
    entries: Sequence[Published], sections: Sequence[Section], columns: Sequence[Head], found: Sequence[Kind]
) -> str:
    """The index as Markdown, for those who browse the repository."""
    parts = [
        "# Published reports",
        "Written by `qsa-conformance publish`. [Who conforms now](latest.html), [every report](index.html). The page "
        "of each backend is made of its log: `qsa-conformance publish --render`.",
        tabulate(_overview(found), ["backend", "code", *(_title(c) for c in columns)], tablefmt="github"),
    ]
    for one in sections:
        heading = ["backend", "verdict", "since", "left out"]
        heading += [*(["rounds"] if one.rounds else []), *(f"error / bound, {name}" for name in one.types), "log"]
        rows = [_row(row, one) for row in one.rows]
        parts += [
            f"## {_title(one.head)}",
            f"[Case by case]({one.head.anchor}/latest.html)",
            tabulate(rows, heading, tablefmt="github", disable_numparse=True),
            *_times(one),
        ]
    parts += ["## Every published log", tabulate(_every(entries), EVERY, tablefmt="github", disable_numparse=True)]
    return "\n\n".join(parts) + "\n"


EVERY = ["operation", "backend", "version", "suite", "verdict", "library", "CPU", "run on", ""]


def _title(head: Head) -> str:
    return f"{head.name}, contract {head.contract}"


def _overview(found: Sequence[Kind]) -> list[list[str]]:
    return [
        [escaped(one.backend), kind.word, *(f"{v.sign} {v.word}" if v else "-" for v in one.verdicts)]
        for kind in found
        for one in kind.lines
    ]


def _row(row: Row, one: Section) -> list[str]:
    left_out = "; ".join(row.left_out)
    return [
        escaped(line(row.one.backend, 60)),
        f"{row.verdict.word}, {row.verdict.share}",
        row.verdict.since,
        escaped(left_out if len(left_out) <= 200 else left_out[:199] + "…"),
        *([escaped(row.rounding)] if one.rounds else []),
        *row.shares,
        f"[log]({row.one.folder}/{LOG}), [changes]({row.one.folder.rpartition('/')[0]}/{CHANGES})",
    ]


def _times(one: Section) -> list[str]:
    """The times of whole backends on the workloads that most of them were timed on."""
    if one.performance is None:
        return []
    whole = [i for i, is_backend in enumerate(one.performance.whole) if is_backend]
    shown = one.performance.shared
    if not shown:
        return []
    rows = [
        [
            escaped(line(one.performance.names[i], 60)),
            *(", ".join(filter(None, (cells[i].time, cells[i].factor))) or "-" for _, cells in shown),
        ]
        for i in whole
    ]
    return [
        "The time of a call, and how many times that of the fastest it is. ~ marks a time that was taken on a busy "
        "machine. [All workloads](latest.html).",
        tabulate(rows, ["time of", *(f"`{workload}`" for workload, _ in shown)], tablefmt="github"),
    ]


def _every(entries: Sequence[Published]) -> list[list[str]]:
    return [
        [
            one.operation,
            escaped(line(one.backend, 60)),
            escaped(line(one.log.header.backend.version, 80)),
            one.log.header.suite,
            one.standing.verdict,
            one.log.header.library,
            escaped(line(one.log.header.environment.get("cpu", ""), 60)),
            one.log.header.started[:10],
            f"[log]({one.folder}/{LOG})",
        ]
        for one in entries
    ]
