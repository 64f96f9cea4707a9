"""`doctor`: does the suite itself work here?"""

from __future__ import annotations

from collections.abc import Callable

import click


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


def _library() -> str:
    from conformance.library.operations import cases_root
    from conformance.library.reading import load_library

    library = load_library()
    return f"{len(library.cases)} cases, digest {library.digest}, in {cases_root()}"


def _lint() -> str:
    from conformance.library.lint import problems
    from conformance.library.reading import load_library

    found = problems(load_library())
    if found:
        raise RuntimeError(f"{len(found)} problems, first: {found[0]}")
    return "no problem"


def _judge() -> str:
    """The judge passes the reference and fails it with one element off."""
    import numpy as np

    from conformance.judging.judge import judge
    from conformance.library.reading import load_library
    from conformance.spec.inputs import inputs_of
    from reference.parts import elements

    library = load_library()
    name = library.operation.outputs[0].name
    plain = (c for c in library.cases if not c.refusal and not c.disabled and c.element_type == "f32")
    for case in plain:
        oracle = library.operation.oracle(case.attributes)
        inputs = inputs_of(case, library.operation)
        expected, got = oracle.expect(inputs)[name], oracle.run(inputs)[name]
        computed = [p for p in expected.parts if (e := elements(p)) and ((e[1] > 0) & (np.abs(e[0]) > 0.1)).any()]
        if computed:
            break
    if judge(name, got, expected).status != "pass":
        raise RuntimeError("it fails the reference")
    spoilt = got.copy()
    spoilt[computed[0].index] *= np.float32(1.01)
    if judge(name, spoilt, expected).status != "fail":
        raise RuntimeError("it passes a result that is 1 % off")
    return f"passes the reference and fails a result that is 1 % off ({case.id})"


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
