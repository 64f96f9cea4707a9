"""`backends`: what can be run here."""

from __future__ import annotations

import click


@click.command("backends")
@click.option("--operation", default="", metavar="NAME", help="List the backends of one operation only.")
def command(operation: str) -> int:
    """List the backends of this machine by operation: usable with its version, or the reason why not."""
    from importlib.metadata import entry_points

    from tabulate import tabulate

    from conformance.backends.connect import GROUP, operations_of, usable
    from conformance.backends.embedded import names, operations
    from conformance.backends.protocol import Unsupported
    from conformance.errors import BackendError, UsageError, nearest

    rows, unknown = [], operation not in ("", *operations())
    registered = sorted(point.name for point in entry_points(group=GROUP))
    for name in [*names(), *registered]:
        try:
            served = operations_of(name)
        except (BackendError, Unsupported) as error:
            rows.append(("", name, "unavailable", "", str(error)))
            continue
        for one in served:
            if operation not in ("", one):
                continue
            unknown = False
            try:
                _, info = usable(name, operation=one)
            except (BackendError, Unsupported) as error:
                rows.append((one, name, "unavailable", "", str(error)))
            else:
                about = f"{info.version}, {info.vendor}, {info.device}"
                rows.append((one, name, "usable", ", ".join(info.element_types), about))
    if unknown:
        known = operations()
        raise UsageError(f"no backend serves '{operation}'{nearest(operation, known)}; known: {', '.join(known)}")
    rows.sort(key=lambda row: row[0])  # stable: within an operation in the order of the table
    click.echo(tabulate(rows, ["operation", "connect", "", "types", ""], maxcolwidths=[None, None, None, None, 70]))
    click.echo(
        "\nYour own: py:FILE.py:CLASS, cmd:COMMAND LINE, or an entry point of the group "
        + GROUP
        + "; `qsa-conformance new-backend FILE` writes a skeleton."
    )
    return 0
