"""The conversation with a plug-in that is checked: requests in the terms of a case, answers that are due.

What is wrong with an answer is raised as `Wrong` with a plain sentence, what could be better as `Note`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from conformance.backends.plugin import wire
from conformance.backends.plugin.process import Limits
from conformance.backends.plugin.subprocess import Plugin, PluginError
from conformance.backends.plugin.wire import ProtocolError
from conformance.backends.protocol import BackendInfo, OperationConfig, listed
from conformance.errors import Lost
from conformance.library.reading import Library
from conformance.spec.case import Case
from conformance.spec.inputs import inputs_of
from conformance.spec.resized import reshaped

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

AnswerType = TypeVar("AnswerType", bound=wire.Answer)
Arrays = Mapping[str, "Array"]


class Wrong(Exception):  # noqa: N818  a finding
    """The plug-in breaks a rule; the text says how."""


class Note(Exception):  # noqa: N818  a finding
    """Allowed, but better otherwise."""


class Talk:
    """A conversation with a plug-in, over as many processes as the checks take."""

    def __init__(self, command: Sequence[str], limits: Limits, library: Library) -> None:
        self.command, self.limits, self.library = command, limits, library
        self.operation = library.operation
        self._plugin: Plugin | None = None

    @property
    def plugin(self) -> Plugin:
        """The process that is running, a new one when there is none."""
        if self._plugin is None:
            self.start()
        assert self._plugin is not None
        return self._plugin

    def start(self, inline: int = wire.INLINE) -> None:
        """A new process in place of the one that runs. Raises `Wrong` when it does not say hello."""
        self.stop()
        self._plugin = Plugin(self.command, self.limits, inline)
        try:
            self._plugin.hello()
        except (Lost, ProtocolError, PluginError) as error:
            raise Wrong(f"{error}, instead of saying hello") from None

    def stop(self) -> str:
        """End the process; what it printed."""
        if self._plugin is None:
            return ""
        plugin = self.leave()
        plugin.close()
        return plugin.child.said()

    def leave(self) -> Plugin:
        """The process that is running, which is not used again."""
        plugin, self._plugin = self.plugin, None
        return plugin

    def ask(self, request: wire.Request) -> wire.AnyAnswer:
        """Any answer to a request. Raises `Wrong` when there is none."""
        try:
            return self.plugin.ask(request)
        except Lost as lost:
            raise Wrong(f"{lost}, instead of an answer to '{wire.tag(request)}'") from None
        except ProtocolError as error:
            raise Wrong(str(error)) from None

    def due(self, request: wire.Request, kind: type[AnswerType]) -> AnswerType:
        """The answer that is due. Raises `Wrong` for another one."""
        answer = self.ask(request)
        if not isinstance(answer, kind):
            raise Wrong(f"{told(request, answer)}; '{wire.tag(kind)}' is due")
        return answer

    @property
    def about(self) -> BackendInfo:
        """What the plug-in says of the operation that is checked. Raises `Wrong` when it does not serve it."""
        infos = wire.infos_of(self.plugin.described)
        for info in infos:
            if info.operation == self.operation.operation:
                return info
        served = listed([info.operation for info in infos])
        raise Wrong(f"does not serve {self.operation.operation}; it serves {served}")

    def dims(self, tokens: int | None = None, batch: int | None = None) -> dict[str, int]:
        """These dimensions by their symbols, as far as the operation has them."""
        wanted = {self.operation.tokens: tokens, self.operation.batch: batch}
        return {symbol: size for symbol, size in wanted.items() if symbol and size is not None}

    # Requests in the terms of a case

    def case(self, element_type: str = "") -> Case:
        """A plain case of a type that the plug-in declares."""
        wanted, tokens = element_type or self.about.element_types[0], self.operation.tokens
        for case in self.library.cases:
            plain = not (case.refusal or case.disabled or case.change or any(case.pad))
            if plain and case.element_type == wanted and (not tokens or case.dims[tokens] > 1):
                return reshaped(case, self.operation, {})
        raise LookupError(f"the library has no plain case of {wanted}")

    def config(self, case: Case) -> OperationConfig:
        return OperationConfig(
            case.operation, dict(case.attributes), case.element_type, case.length_type, frozenset(case.disabled)
        )

    def prepare(self, case: Case) -> int:
        """The number of a new session for a case."""
        number = self.plugin.number()
        self.due(wire.prepare(self.plugin.number(), number, self.config(case)), wire.Prepared)
        return number

    def request(self, session: int, case: Case) -> wire.Run:
        """The call of a case."""
        plugin, number = self.plugin, self.plugin.number()
        inputs = {
            name: wire.to_tensor(array, plugin.directory.path, f"{number}-{name}.in", plugin.inline)
            for name, array in inputs_of(case, self.operation).items()
        }
        return wire.Run(id=number, session=session, inputs=inputs)

    def call(self, session: int, case: Case) -> dict[str, Array]:
        """The outputs of a case's call."""
        request = self.request(session, case)
        answer = self.due(request, wire.Done)
        arrays = {}
        for name, tensor in answer.outputs.items():
            try:
                arrays[name] = wire.to_array(tensor, self.plugin.directory.path, delete=True)
            except ProtocolError as error:
                raise Wrong(f"output '{name}' {error}") from None
        for tensor in request.inputs.values():
            if isinstance(tensor.file, str):
                (self.plugin.directory.path / tensor.file).unlink(missing_ok=True)
        return arrays

    def once(self, case: Case) -> dict[str, Array]:
        """The outputs of a case on a session of its own."""
        session = self.prepare(case)
        outputs = self.call(session, case)
        self.release(session)
        return outputs

    def release(self, session: int) -> None:
        self.due(wire.Release(id=self.plugin.number(), session=session), wire.Released)


def told(request: wire.Request, answer: wire.AnyAnswer) -> str:
    """What was answered to what, with the reason given."""
    reason = answer.reason if isinstance(answer, wire.Failed | wire.Unsupported) else ""
    return f"answers '{wire.tag(answer)}' to '{wire.tag(request)}'" + (f" ({reason})" if reason else "")


def same(got: Arrays, wanted: Arrays) -> None:
    """Raises `Wrong` when two calls that are to give the same do not."""
    for name, array in wanted.items():
        if name not in got or got[name].shape != array.shape or got[name].tobytes() != array.tobytes():
            raise Wrong(f"gives another {name}")


@contextmanager
def when(circumstances: str) -> Iterator[None]:
    """Adds the circumstances to what is found wrong in them."""
    try:
        yield
    except Wrong as wrong:
        raise Wrong(f"{wrong}, {circumstances}") from None


def raw(talk: Talk, message: Mapping[str, Any], what: str) -> wire.AnyAnswer:
    """The answer to a message that the suite itself never sends."""
    try:
        answer = wire.decode_answer(talk.plugin.child.ask(msgspec.json.encode(message)))
    except Lost as lost:
        raise Wrong(f"{lost}, at {what}") from None
    except ProtocolError as error:
        raise Wrong(f"answers {what} with {error}") from None
    if answer.id != message["id"]:
        raise Wrong(f"answers {what} under the number {answer.id} instead of {message['id']}")
    return answer
