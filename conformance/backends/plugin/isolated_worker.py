"""Inside the process of an isolated backend: it runs the plug-in and nothing else (see `isolated`).

No case, no expectation and no verdict is ever here. The first lane is served by the main thread, each of the others
by a thread of its own once it is used.
"""

from __future__ import annotations

import base64
import faulthandler
import os
import select
import signal
import sys
import zlib
from threading import Lock, Thread
from typing import Any

import msgspec
import numpy as np

from conformance.backends.connect import ready
from conformance.backends.plugin import messages
from conformance.backends.plugin.arrays import Area, array_on, next_offset
from conformance.backends.plugin.messages import packed
from conformance.backends.protocol import Backend, OperationConfig, Rejected, Session, Unsupported, environment_of
from conformance.errors import BackendError, Lost
from conformance.judging.border import Raised, cleaned, guarded, taken, watched_keyboard

Array = np.ndarray[Any, np.dtype[Any]]


class Host:
    """The plug-in with its sessions and the outputs that the suite still holds."""

    def __init__(self) -> None:
        self.backend: Backend | None = None
        self.sessions: dict[int, Session] = {}
        self.kept: dict[int, tuple[Array, int]] = {}  # outputs by number, with a digest of what they held
        self._number = 0
        self._lock = Lock()

    def answer(self, request: messages.Request, area: Area) -> msgspec.Struct:
        """The answer to a request, whatever the plug-in does."""
        try:
            return self._answer(request, area)
        except Unsupported as missing:
            return messages.Unsupported(missing.feature, missing.reason, missing.url)
        except Rejected as rejected:
            return messages.Rejected(rejected.kind, rejected.phase, rejected.names)
        except BackendError as error:
            return messages.Unusable(str(error))
        except Lost as lost:
            return messages.WasLost(lost.kind, lost.says)
        except BaseException as error:
            own = error if isinstance(error, Raised) else taken(error)
            return messages.Raised(type(own).__name__, str(own), own.trace)

    def _answer(self, request: messages.Request, area: Area) -> msgspec.Struct:
        match request:
            case messages.Start():
                backend, infos = ready(request.connect, operation=request.operation)
                self.backend = guarded(backend)
                return messages.Started(tuple(map(cleaned, infos)), environment_of(self.backend))
            case messages.Prepare():
                assert self.backend is not None
                fields = msgspec.structs.asdict(request.config)
                config = OperationConfig(**{**fields, "disabled": frozenset(request.config.disabled)})
                self.sessions[request.session] = self.backend.prepare(config)
                return messages.Done()
            case messages.Call():
                return self._call(request, area)
            case messages.Look():
                return self._look(request, area)
            case messages.Release():
                session = self.sessions.pop(request.session, None)
                if session:
                    session.close()
                return messages.Done()
        raise AssertionError(request)

    def _call(self, request: messages.Call, area: Area) -> msgspec.Struct:
        for number in request.dropped:
            self.kept.pop(number, None)
        inputs, memory = {}, {}
        for one in request.inputs:
            if one.kept in self.kept:
                inputs[one.name] = self._as_given(one, area)
            else:
                memory[one.name] = area.bytes_of(one.laid)
                inputs[one.name] = array_on(memory[one.name], one.laid)
        before = {name: (array.shape, array.strides) for name, array in inputs.items()}
        handed = dict(inputs)
        got = self.sessions[request.session].run(handed)
        touched = [one.name for one in request.inputs if self._touched(one, inputs[one.name], memory, area)]
        reshaped = [name for name, array in inputs.items() if (array.shape, array.strides) != before[name]]
        if not isinstance(got, dict):
            return messages.NotOutputs(type(got).__name__, tuple(touched))
        offset = max((next_offset(one.laid) for one in request.inputs), default=0)
        outputs: list[messages.Output] = []
        with self._lock:
            for name, array in got.items():
                if not isinstance(array, np.ndarray):
                    outputs.append(messages.Output(name, other=type(array).__name__))
                    continue
                if array.dtype.hasobject:
                    outputs.append(messages.Output(name, other="", shape=array.shape))
                    continue
                dense = np.ascontiguousarray(array).reshape(array.shape)
                laid = area.put(dense, offset)
                offset = next_offset(laid)
                self._number += 1
                self.kept[self._number] = array, _digest(array)
                outputs.append(messages.Output(name, laid=laid, number=self._number))
        return messages.Returned(tuple(outputs), tuple(touched), tuple(reshaped))

    def _as_given(self, one: messages.Input, area: Area) -> Array:
        """An output that comes back, with what the caller has made of it since."""
        assert one.kept is not None
        kept = self.kept[one.kept][0]
        given = array_on(area.bytes_of(one.laid), one.laid)
        if _digest(given) == _digest(kept):
            return kept
        if not kept.flags.writeable:
            return given
        np.copyto(kept, given)
        self.kept[one.kept] = kept, _digest(kept)
        return kept

    def _touched(self, one: messages.Input, array: Array, memory: dict[str, Array], area: Area) -> bool:
        """Whether the call wrote into an input; the area then has what is there now."""
        if one.name not in memory:
            kept, digest = self.kept[one.kept]
            if _digest(kept) == digest:
                return False
            area.put(np.ascontiguousarray(kept), one.laid.offset)
            return True
        now = memory[one.name]
        if not now.size or np.array_equal(area.bytes_of(one.laid), now):
            return False
        area.put(now, one.laid.offset)
        return True

    def _look(self, request: messages.Look, area: Area) -> msgspec.Struct:
        """Outputs of earlier calls that are not any more what they were."""
        for number in request.dropped:
            self.kept.pop(number, None)
        changed, offset = [], 0
        for number, (array, digest) in list(self.kept.items()):
            if (now := _digest(array)) != digest:
                laid = area.put(np.ascontiguousarray(array), offset)
                offset = next_offset(laid)
                self.kept[number] = array, now
                changed.append(messages.Output("", laid=laid, number=number))
        return messages.Returned(tuple(changed))


def _digest(array: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def serve(host: Host, lane: int, area: Area) -> None:
    """Answer the requests of a lane until they end."""
    with os.fdopen(os.dup(lane), "rb") as requests, os.fdopen(os.dup(lane), "wb") as answers:
        for line in requests:
            request = msgspec.msgpack.decode(base64.b64decode(line), type=messages.AnyRequest)
            answers.write(packed(host.answer(request, area)) + b"\n")
            answers.flush()


def attend(host: Host, lanes: dict[int, Area]) -> None:
    """Give every further lane a thread once something is asked on it."""
    waiting = dict(lanes)
    while waiting:
        for lane in select.select(list(waiting), [], [])[0]:
            Thread(target=serve, args=(host, lane, waiting.pop(lane)), daemon=True).start()


def main() -> None:
    """Serve. The arguments are the number of lanes, the descriptors of their areas, and those of the lanes."""
    faulthandler.enable()  # says where a crash was, on the standard error that the suite keeps
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the suite decides
    numbers = list(map(int, sys.argv[1:]))
    count = numbers.pop(0)
    areas, lanes = numbers[:count], numbers[count:]
    for end in numbers:
        os.set_inheritable(end, False)  # nothing that the plug-in starts may hold them open
    host = Host()
    if count > 1:
        others = {lane: Area(area) for lane, area in zip(lanes[1:], areas[1:], strict=True)}
        Thread(target=attend, args=(host, others), daemon=True).start()
    with watched_keyboard():
        serve(host, lanes[0], Area(areas[0]))
    sys.stdout.flush()
    os._exit(0)  # whatever the plug-in's threads and exit handlers would do now
