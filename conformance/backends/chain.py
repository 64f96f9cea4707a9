"""A chain: the stages of a pipeline on one backend that serves each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conformance.backends.protocol import (
    Backend,
    BackendInfo,
    OperationConfig,
    Session,
    Unsupported,
    close,
    environment_of,
    info_for,
    serve_only,
)
from conformance.backends.refusals import operation_called
from conformance.spec.operation import Operation, Stage

if TYPE_CHECKING:
    from conformance.backends.protocol import Array


class Chain:
    """Sessions of all stages, one after the other; what goes between them are the arrays that came back.

    `backends` are those of the stages' operations, in their order.
    """

    def __init__(self, pipeline: str, backends: Mapping[str, Backend]) -> None:
        self._pipeline = operation_called(pipeline)
        self._links = tuple(
            _Link(stage, operation_called(stage.operation), backends[stage.operation])
            for stage in self._pipeline.stages
        )
        self.environment = {key: value for link in self._links for key, value in environment_of(link.backend).items()}

    def describe(self) -> BackendInfo:
        """What all stages have in common, and the outputs of each. Raises `Unsupported` where a stage is not served."""
        infos = [info_for(link.backend, link.stage.operation) for link in self._links]
        first = infos[0]
        features = tuple(
            name
            for name in self._pipeline.features
            if all(
                name in info.features or name not in link.operation.features
                for link, info in zip(self._links, infos, strict=True)
            )
        )
        return replace(
            first,
            element_types=tuple(one for one in first.element_types if all(one in i.element_types for i in infos)),
            outputs=tuple(name for name in self._pipeline.output if any(name in info.outputs for info in infos)),
            features=features,
            operation=self._pipeline.operation,
        )

    def prepare(self, config: OperationConfig) -> Session:
        """A session of every stage. Raises `Rejected` and `Unsupported` as the stages do."""
        serve_only(config, self._pipeline.operation)
        return ChainedSession([(link, link.backend.prepare(link.config(config))) for link in self._links])

    def close(self) -> None:
        """Close the backends of the stages."""
        for link in self._links:
            close(link.backend)


@dataclass(frozen=True)
class _Link:
    stage: Stage
    operation: Operation
    backend: Backend

    def config(self, whole: OperationConfig) -> OperationConfig:
        """The pipeline's attributes that are the stage's, and what is fixed."""
        given = {name: whole.attributes[name] for name in self.operation.attributes if name in whole.attributes}
        return replace(
            whole,
            operation=self.stage.operation,
            attributes={**given, **self.stage.fixed},
            disabled=whole.disabled & frozenset(self.operation.features),
        )

    def inputs(self, given: Mapping[str, Array], produced: Mapping[str, Array]) -> dict[str, Array]:
        """The ports of the stage: outputs of earlier stages as they are, and ports of the pipeline."""
        inputs = {}
        for name in self.operation.port:
            source, key = (produced, self.stage.feeds[name]) if name in self.stage.feeds else (given, name)
            if key in source:
                inputs[name] = source[key]
        return inputs


class ChainedSession:
    """One session for every stage."""

    def __init__(self, links: list[tuple[_Link, Session]]) -> None:
        self._links = links

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call of every stage. Raises as they do, and `Unsupported` for a stage that cannot be fed."""
        produced: dict[str, Array] = {}
        for link, session in self._links:
            missing = [output for output in link.stage.feeds.values() if output not in produced]
            if missing:
                raise Unsupported(missing[0], f"no earlier stage returns {missing[0]}, which {link.stage.name} takes")
            produced |= session.run(link.inputs(inputs, produced))
        return produced

    def close(self) -> None:
        """Close the sessions of the stages."""
        for _, session in self._links:
            session.close()
