"""`doctor`: does the suite itself work here?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from conformance.backends.protocol import Array
    from conformance.library.reading import Library

CASES_TRIED = 100


@click.command("doctor")
def command() -> int:
    """Check the parts the suite rests on, one line each; exit 1 when one does not hold."""
    healthy = True
    for title, check in CHECKS.items():
        try:
            finding = check()
        except Exception as error:
            healthy = False
            click.echo(f"broken  {title}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        else:
            click.echo(f"ok      {title}: {finding}")
    return 0 if healthy else 1


def _environment() -> str:
    from conformance.record.environment import environment

    return ", ".join(f"{key} {value}" for key, value in environment().items())


def _libraries() -> list[Library]:
    from conformance.library.operations import operations
    from conformance.library.reading import load_library

    return [load_library(folder) for folder in operations()]


def _library() -> str:
    from conformance.errors import plural
    from conformance.library.operations import cases_root

    found = [f"{one.operation.operation} {plural(len(one.cases), 'case')}, digest {one.digest}" for one in _libraries()]
    return f"{'; '.join(found)}; in {cases_root()}"


def _lint() -> str:
    from conformance.errors import plural
    from conformance.library.lint import problems

    found = [problem for library in _libraries() for problem in problems(library)]
    if found:
        raise RuntimeError(f"{plural(len(found), 'problem')}, first: {found[0]}")
    return "no problem"


def _judge() -> str:
    """The judge of every operation passes the reference, and fails it with its first output a little off."""
    return (
        "passes the reference and fails a result that is a little off (" + ", ".join(map(_judged, _libraries())) + ")"
    )


def _judged(library: Library) -> str:
    """The case in which a result that is a little off is failed. Raises `RuntimeError` when there is none."""
    from conformance.judging.judge import judge
    from conformance.spec.inputs import inputs_of

    operation = library.operation
    name = operation.outputs[0].name
    plain = [c for c in library.cases if not (c.refusal or c.disabled or c.change) and c.element_type == "f32"]
    for case in plain[:CASES_TRIED]:
        oracle, inputs = operation.oracle(case.attributes), inputs_of(case, operation)
        expected, got = oracle.expect(inputs)[name], oracle.run(inputs)[name]
        if judge(name, got, expected).status != "pass":
            raise RuntimeError(f"it fails the reference of {operation.operation} in {case.id}")
        if judge(name, _off(got), expected).status == "fail":
            return case.id
    raise RuntimeError(f"it passes results of {operation.operation} that are a little off")


def _off(array: Array) -> Array:
    """Numbers 1 % off, whole numbers 1 off."""
    import numpy as np

    return array + array.dtype.type(1) if array.dtype.kind in "iu" else (array * np.float32(1.01)).astype(array.dtype)


def _cache() -> str:
    from platformdirs import user_cache_path

    path = user_cache_path("qsa-conformance")
    path.mkdir(parents=True, exist_ok=True)
    probe = path / "probe"
    probe.write_text("x")
    probe.unlink()
    return f"{path} can be written"


CHECKS: dict[str, Callable[[], str]] = {
    "environment": _environment,
    "case library": _library,
    "library rules": _lint,
    "judge": _judge,
    "cache": _cache,
}
