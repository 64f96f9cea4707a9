"""Published reports: one folder with the logs of every backend on every operation, and the pages made of them.

    README.md  index.html  latest.html           every report; who conforms now, to what, since when
    OPERATION/latest.html                        the backends of an operation side by side, case by case
    OPERATION/BACKEND/history.jsonl              every published run in a line; stays when a log is replaced
    OPERATION/BACKEND/changes.html               what changed from one published log to the next
    OPERATION/BACKEND/VERSION/log.jsonl.gz       with badge.svg, badge.json and the page report.html

Everything but the logs and the histories is made anew by `render`.
"""

from __future__ import annotations

from conformance.reporting.publish.pages import render
from conformance.reporting.publish.store import LOG, Published, add, current, find, logs_of

__all__ = ["LOG", "Published", "add", "current", "find", "logs_of", "render"]
