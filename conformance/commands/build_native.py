"""`build-native`: the C++ operation, built ahead of its first use."""

from __future__ import annotations

import click


@click.command("build-native")
def command() -> int:
    """Build the C++ operation for this OpenVINO, compiler and CPU, and say where it is.

    Nothing is built when the cache has it. Exit code 3, with the compiler's own words, when it cannot be built.
    """
    from conformance.backends.openvino.build import build_native

    click.echo(build_native(lambda sentence: click.echo(sentence, err=True)))
    return 0
