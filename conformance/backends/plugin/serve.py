"""Any backend of this package as a plug-in: `python -m conformance.backends.plugin.serve CONNECT` speaks the protocol.

Used to look at a Python backend from outside, as `backend check` does.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import IO, NoReturn

import msgspec

from conformance.backends.connect import connect, described
from conformance.backends.plugin import wire
from conformance.backends.protocol import Backend, Rejected, Session, Unsupported
from conformance.errors import BackendError


class Server:
    """A backend and its sessions, asked by requests."""

    def __init__(self, backend: Backend, description: wire.Described) -> None:
        self.backend, self.description = backend, description
        self.sessions: dict[int, Session] = {}
        self.directory, self.inline = Path(), wire.INLINE

    def answer(self, request: wire.AnyRequest) -> wire.Answer:
        """The answer to one request; whatever the backend raises becomes one too."""
        try:
            return self._answer(request)
        except Unsupported as unsupported:
            feature, reason, url = unsupported.feature, unsupported.reason, unsupported.url
            return wire.Unsupported(id=request.id, feature=feature, reason=reason, url=url)
        except Rejected as rejected:
            kind, phase, names = rejected.kind, rejected.phase, rejected.names
            return wire.Rejected(id=request.id, kind=kind, phase=phase, names=names)  # type: ignore[arg-type]
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return wire.Failed(id=request.id, reason=reason, detail=traceback.format_exc())

    def _answer(self, request: wire.AnyRequest) -> wire.Answer:
        id = request.id
        match request:
            case wire.Hello():
                self.directory, self.inline = Path(request.directory), request.inline
                return self.description
            case wire.Prepare():
                self.sessions[request.session] = self.backend.prepare(wire.config_of(request))
                return wire.Prepared(id=id)
            case wire.Run():
                inputs = {name: wire.to_array(tensor, self.directory) for name, tensor in request.inputs.items()}
                outputs = {
                    name: wire.to_tensor(array, self.directory, f"{id}-{name}.out", self.inline)
                    for name, array in self._session(request.session).run(inputs).items()
                }
                return wire.Done(id=id, outputs=outputs)
            case wire.Release():
                self._session(request.session).close()
                del self.sessions[request.session]
                return wire.Released(id=id)
            case wire.Bye():
                return wire.Farewell(id=id)

    def _session(self, number: int) -> Session:
        if number not in self.sessions:
            raise LookupError(f"there is no session {number}")
        return self.sessions[number]


def serve(backend: Backend, description: wire.Described, requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until `bye` or their end."""
    server = Server(backend, description)
    for line in requests:
        answer: wire.Answer
        try:
            request = wire.decode_request(line)
        except wire.ProtocolError as error:
            answer = wire.Failed(id=wire.number_of(line), reason=str(error))
        else:
            answer = msgspec.structs.replace(server.answer(request), id=request.id)
        answers.write(wire.encode(answer) + b"\n")
        answers.flush()
        if isinstance(answer, wire.Farewell):
            return


def end(sentence: str) -> NoReturn:
    """Say why there is nothing to serve, and exit with code 3."""
    print(sentence, file=sys.stderr)
    sys.exit(BackendError.exit_code)


def main(text: str) -> None:
    """Serve one backend on standard input and output; what it prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        backend = connect(text)
        description = wire.described(described(backend, text))
    except (BackendError, Unsupported) as error:
        end(str(error))
    except msgspec.ValidationError as error:
        end(f"'{text}': its description does not keep to the protocol: {error}")
    serve(backend, description, sys.stdin.buffer, answers)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m conformance.backends.plugin.serve CONNECT")
    main(sys.argv[1])
