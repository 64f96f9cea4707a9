"""Operations whose stages are operations: what the file of a pipeline must fulfil, and what it takes from theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from conformance.errors import LibraryError, Place, UsageError, nearest
from conformance.spec.operation import Clause, Operation, Stage

Problem = tuple[Sequence[Any], str]


def composed(pipeline: Operation, root: Path, at: Callable[..., Place]) -> Operation:
    """The pipeline with the clauses of its stages that it names, each stage a group.

    `at` gives the place of keys in the file. Raises `LibraryError` where stages do not fit together.
    """
    from conformance.library.operations import load_operation

    groups, clauses = dict(pipeline.groups), list(pipeline.clauses)
    stages: list[Operation] = []
    for i, stage in enumerate(pipeline.stages):
        try:
            stages.append(load_operation(stage.operation, root))
        except UsageError as error:
            raise LibraryError(str(error), at("stages", i, "operation")) from None
        for keys, problem in _problems(pipeline, stages, i):
            raise LibraryError(problem, at("stages", i, *keys))
        groups[stage.named("").rstrip("-")] = stage.operation
        clauses += [_inherited(stage, stages[-1], id) for id in stage.clauses]
    return msgspec.structs.replace(pipeline, groups=groups, clauses=tuple(clauses))


def _inherited(stage: Stage, operation: Operation, id: str) -> Clause:
    return msgspec.structs.replace(operation.clause[id], id=stage.named(id))


def _problems(pipeline: Operation, stages: Sequence[Operation], i: int) -> Iterator[Problem]:
    """What is wrong with the last of some stages: every port, attribute and output of it must come from somewhere."""
    stage, operation = pipeline.stages[i], stages[-1]
    earlier: Mapping[str, Any] = {name: one for before in stages[:-1] for name, one in before.output.items()}
    for fed, output in stage.feeds.items():
        if fed not in operation.port:
            yield ("feeds", fed), f"{stage.operation} has no port '{fed}'{nearest(fed, list(operation.port))}"
        elif output not in earlier:
            yield ("feeds", fed), f"no earlier stage gives '{output}'{nearest(output, list(earlier))}"
    for name, port in operation.port.items():
        if name not in stage.feeds and name not in pipeline.port and not port.optional:
            yield (), f"'{name}' of {stage.operation} is neither fed by a stage nor a port of the pipeline"
        if name in stage.feeds and name in pipeline.port:
            yield ("feeds", name), f"'{name}' is fed by a stage and a port of the pipeline as well"
    for name in operation.attributes:
        if name not in pipeline.attributes and name not in stage.fixed:
            yield (), f"'{name}' of {stage.operation} is neither an attribute of the pipeline nor fixed"
    for name in stage.fixed:
        if name not in operation.attributes:
            known = list(operation.attributes)
            yield ("fixed", name), f"{stage.operation} has no attribute '{name}'{nearest(name, known)}"
    for name in operation.output:
        if name not in pipeline.output:
            yield (), f"'{name}', an output of {stage.operation}, is not an output of the pipeline"
    for id in stage.clauses:
        if id not in operation.clause:
            yield ("clauses",), f"{stage.operation} has no clause '{id}'{nearest(id, list(operation.clause))}"
