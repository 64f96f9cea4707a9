"""What was not run, and on what the rest was run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from conformance.reporting.html.columns import Column


def unsupported(columns: Sequence[Column]) -> list[tuple[str, str, str, int]]:
    """Backend, feature, reason and number of cases, for everything that was not asked for."""
    rows = []
    for c in columns:
        reasons: dict[tuple[str, str], int] = defaultdict(int)
        for outcome in c.log.outcomes:
            if outcome.status in ("unsupported", "not-run"):
                reasons[outcome.feature or outcome.status, outcome.reason] += 1
        rows += [(c.title, feature, reason, number) for (feature, reason), number in reasons.items()]
    return rows


def environment(columns: Sequence[Column]) -> list[tuple[str, list[str]]]:
    """Rows of what each log was made on: backend, suite, library, machine, packages."""
    facts = []
    for c in columns:
        head, backend = c.log.header, c.log.header.backend
        facts.append(
            {
                "backend": f"{backend.name} {backend.version}",
                "vendor": backend.vendor,
                "device": backend.device,
                "issues": backend.url,
                "element types": ", ".join(backend.element_types),
                "outputs": ", ".join(backend.outputs),
                "features": ", ".join(backend.features),
                "started": head.started,
                "suite": head.suite,
                "contract": str(head.contract),
                "library": head.library,
                "command": " ".join(head.argv),
                **head.environment,
            }
        )
    names = dict.fromkeys(name for one in facts for name in one)
    return [(name, values) for name in names if any(values := [one.get(name, "") for one in facts])]
