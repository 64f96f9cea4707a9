"""Inside a worker process: one backend, one engine, cases in and outcomes out (see `isolation`)."""

from __future__ import annotations

import base64
import faulthandler
import os
import sys

import msgspec

from conformance.backends.connect import usable
from conformance.backends.protocol import Unsupported, environment_of
from conformance.errors import BackendError
from conformance.judging.engine import Engine
from conformance.running.isolation import Ready, Setup, Unusable, packed
from conformance.running.run import run_case
from conformance.spec.case import Case


def main() -> None:
    """Serve until there are no more requests. The numbers of the two pipes are the arguments."""
    faulthandler.enable()  # says where a crash was, on the standard error that the harness keeps
    for end in map(int, sys.argv[1:3]):
        os.set_inheritable(end, False)  # nothing that the backend starts may hold them open
    with os.fdopen(int(sys.argv[1]), "rb") as requests, os.fdopen(int(sys.argv[2]), "wb") as answers:

        def answer(message: msgspec.Struct) -> None:
            answers.write(packed(message) + b"\n")
            answers.flush()

        setup = msgspec.msgpack.decode(base64.b64decode(requests.readline()), type=Setup)
        try:
            backend, info = usable(setup.connect, setup.limits)
        except Unsupported as missing:
            return answer(Unusable(missing.reason, missing.feature, missing.url))
        except BackendError as error:
            return answer(Unusable(str(error)))
        answer(Ready(info, environment_of(backend)))
        engine = Engine(setup.operation, backend, setup.readings, info)
        for line in requests:
            answer(run_case(engine, msgspec.msgpack.decode(base64.b64decode(line), type=Case)))
    return None
