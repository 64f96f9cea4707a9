"""`backends`: what can be run here."""

from __future__ import annotations

import click


@click.command("backends")
def command() -> int:
    """List the backends of this machine: usable with its version, or the reason why not."""
    from importlib.metadata import entry_points

    from tabulate import tabulate

    from conformance.backends.connect import EMBEDDED, GROUP
    from conformance.backends.protocol import Unsupported
    from conformance.errors import BackendError
    from conformance.running.run import usable

    rows = []
    for name in [*EMBEDDED, *sorted(point.name for point in entry_points(group=GROUP))]:
        try:
            _, info = usable(name)
        except (BackendError, Unsupported) as error:
            rows.append((name, "unavailable", "", str(error)))
        else:
            about = f"{info.version}, {info.vendor}, {info.device}"
            rows.append((name, "usable", ", ".join(info.element_types), about))
    click.echo(tabulate(rows, ["connect", "", "types", ""], maxcolwidths=[None, None, None, 80]))
    click.echo("\nYour own: py:FILE.py:CLASS, cmd:COMMAND LINE, or an entry point of the group " + GROUP)
    return 0
