"""The checks of a plug-in: does it follow the protocol, whatever it computes?

Each check is one function: it returns what it found, or raises `Wrong` with a plain sentence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import msgspec

from conformance.backends.plugin import wire
from conformance.backends.plugin.process import Limits
from conformance.backends.plugin.subprocess import LOCK, PluginError
from conformance.backends.plugin.talk import Note, Talk, Wrong, raw, same, told, when
from conformance.backends.plugin.wire import ProtocolError
from conformance.backends.protocol import UNCHECKED
from conformance.errors import Lost
from conformance.library.reading import Library
from conformance.spec.inputs import inputs_of
from conformance.spec.resized import reshaped, with_other_attributes
from conformance.spec.types import ELEMENT_TYPES
from reference.expected import after

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Finding:
    """What a check came to; `printed` is what the plug-in wrote on its standard error meanwhile."""

    check: str
    status: Literal["ok", "note", "wrong"]
    says: str
    printed: str = ""


def says_hello(talk: Talk) -> str:
    start = time.perf_counter()
    talk.start()
    took = time.perf_counter() - start
    about, operation = talk.about, talk.operation
    for what, given, known in (
        ("output", about.outputs, [output.name for output in operation.outputs]),
        ("feature", about.features, [*operation.features, UNCHECKED]),
    ):
        for name in given:
            if name not in known:
                raise Wrong(f"declares the {what} '{name}', which is not one; known: {', '.join(known)}")
    return f"{about.name} {about.version}, {about.vendor}, {about.device}, after {took:.2f} s"


def answers_calls(talk: Talk) -> str:
    about = talk.about
    for element_type in about.element_types:
        case = talk.case(element_type)
        got = talk.once(case)
        missing, surplus = sorted(set(about.outputs) - set(got)), sorted(set(got) - set(about.outputs))
        if missing:
            raise Wrong(f"declares the output {', '.join(missing)}, and does not return it")
        if surplus:
            raise Wrong(f"returns {', '.join(surplus)}, which it does not declare")
        expected = after(talk.operation.oracle(case.attributes).expect(inputs_of(case, talk.operation)), got)
        for name, array in got.items():
            if array.dtype != expected[name].dtype:
                raise Wrong(f"returns {name} as {array.dtype}, for the element type {element_type}")
            if array.shape != expected[name].shape:
                raise Wrong(f"returns {name} of shape {list(array.shape)}, not {list(expected[name].shape)}")
    return f"names, types and shapes are right in {', '.join(about.element_types)}"


def repeats_itself(talk: Talk) -> str:
    case = talk.case()
    session = talk.prepare(case)
    first = talk.call(session, case)
    talk.call(session, reshaped(case, talk.operation, talk.dims(tokens=7, batch=5)))
    with when("when the same call comes again, after one of another shape"):
        same(talk.call(session, case), first)
    return "the same call gives the same bits, also after one of another shape"


def takes_nothing(talk: Talk) -> str:
    case = talk.case()
    features = tuple(f for f in talk.operation.switchable if f in talk.about.features)
    for off in ((), *((feature,) for feature in features)):
        for dims in filter(None, (talk.dims(tokens=0), talk.dims(batch=0))):
            empty = msgspec.structs.replace(reshaped(case, talk.operation, dims), disabled=off)
            talk.once(empty)
    return f"no sequences, no new tokens{', nothing for ' + ' or '.join(features) if features else ''}"


def keeps_sessions_apart(talk: Talk) -> str:
    case = talk.case()
    other = reshaped(with_other_attributes(case, talk.operation), talk.operation, {})
    alone, other_alone = talk.once(case), talk.once(other)
    one, two = talk.prepare(case), talk.prepare(other)
    with when("while there is a session with other attributes"):
        for _ in range(2):
            same(talk.call(one, case), alone)
            same(talk.call(two, other), other_alone)
    return "two sessions with different attributes do not disturb each other"


def keeps_twins_apart(talk: Talk) -> str:
    case = talk.case()
    one, two = talk.prepare(case), talk.prepare(case)
    first = talk.call(one, case)
    with when("in a second session of the same configuration"):
        same(talk.call(two, case), first)
    talk.release(one)
    with when("once another session of the same configuration is released"):
        same(talk.call(two, case), first)
    return "two sessions of one configuration live and end by themselves"


def releases(talk: Talk) -> str:
    case = talk.case()
    session = talk.prepare(case)
    talk.release(session)
    for number, what in ((session, "was released"), (talk.plugin.number(), "was never prepared")):
        request = talk.request(number, case)
        answer = talk.ask(request)
        if not isinstance(answer, wire.Failed):
            raise Wrong(f"{told(request, answer)} of a session that {what}; 'error' is due")
    talk.once(case)
    return "a session that is not there is an error, and no more"


def refuses_configurations(talk: Talk) -> str:
    if UNCHECKED in talk.about.features:
        return "leaves checking its attributes to its callers, and says so"
    case = talk.case()
    for name, attribute in talk.operation.attributes.items():
        if attribute.least is None:
            continue
        below = attribute.least - 1
        bad = msgspec.structs.replace(case, attributes={**case.attributes, name: below})
        request = wire.prepare(talk.plugin.number(), talk.plugin.number(), talk.config(bad))
        answer = talk.ask(request)
        if isinstance(answer, wire.Prepared):
            raise Note(f"prepares with {name} = {below}, which is to be rejected")
        if not isinstance(answer, wire.Rejected):
            raise Wrong(f"{told(request, answer)} with {name} = {below}; 'rejected' is due")
        if name not in answer.names:
            raise Note(f"rejects {name} = {below} without naming {name}")
    talk.once(case)
    return "attributes out of range are rejected by name"


def refuses_calls(talk: Talk) -> str:
    if UNCHECKED in talk.about.features:
        return "leaves checking its inputs to its callers, and says so"
    case = talk.case()
    session = talk.prepare(case)
    first = talk.call(session, case)
    request = talk.request(session, case)
    name = talk.operation.ports[0].name
    tensor = request.inputs[name]
    flat = replace_shape(tensor, (*tensor.shape[:-2], tensor.shape[-2] * tensor.shape[-1]))
    answer = talk.ask(msgspec.structs.replace(request, inputs={**request.inputs, name: flat}))
    if isinstance(answer, wire.Done):
        raise Note(f"computes with {name} of rank {len(flat.shape)}, which is to be rejected")
    if not isinstance(answer, wire.Rejected):
        raise Wrong(f"{told(request, answer)} with {name} of rank {len(flat.shape)}; 'rejected' is due")
    with when("once it has refused a call on the same session"):
        same(talk.call(session, case), first)
    return "a call of the wrong rank is rejected, and the session goes on"


def replace_shape(tensor: wire.Tensor, shape: tuple[int, ...]) -> wire.Tensor:
    """The same elements under another shape."""
    return msgspec.structs.replace(tensor, shape=shape)


def knows_its_types(talk: Talk) -> str:
    missing = sorted(set(ELEMENT_TYPES) - set(talk.about.element_types))
    for element_type in missing:
        config = replace(talk.config(talk.case()), element_type=element_type)
        request = wire.prepare(talk.plugin.number(), talk.plugin.number(), config)
        answer = talk.ask(request)
        if not isinstance(answer, wire.Unsupported | wire.Rejected):
            raise Note(f"{told(request, answer)} of {element_type}, which it does not declare; better 'unsupported'")
    return f"{', '.join(missing)} is not supported, and is said not to be" if missing else "it takes all types"


def shares_files(talk: Talk) -> str:
    case = talk.case()
    inline = talk.once(case)
    talk.start(inline=0)
    with when("when tensors come in files"):
        same(talk.once(case), inline)
    left = sorted(path.name for path in talk.plugin.directory.path.iterdir() if path.name != LOCK)
    talk.stop()
    if left:
        raise Note(f"leaves files that no answer names: {', '.join(left[:3])}")
    return "tensors in files give what they give inline"


def ignores_unknown_fields(talk: Talk) -> str:
    case = talk.case()
    session = talk.prepare(case)
    known = msgspec.json.decode(wire.encode(talk.request(session, case)))
    answer = raw(
        talk, {**known, "hint": {"of": ["a", "later", "version"]}}, "a request with a field of a later version"
    )
    if not isinstance(answer, wire.Done):
        raise Wrong(f"answers '{wire.tag(answer)}' to a request with a field that it does not know; it is to ignore it")
    return "a field of a later version does no harm"


def survives_unknown_messages(talk: Talk) -> str:
    answer = raw(talk, {"message": "sing", "id": talk.plugin.number()}, "an unknown message")
    if not isinstance(answer, wire.Failed):
        raise Wrong(f"answers '{wire.tag(answer)}' to the unknown message 'sing'; 'error' is due")
    talk.once(talk.case())
    return "an unknown message is an error, and no more"


def starts_again(talk: Talk) -> str:
    case = talk.case()
    before = talk.once(case)
    talk.prepare(case)
    talk.plugin.child.end()
    talk.start()
    with when("once its process was killed and started again"):
        same(talk.once(case), before)
    return "killed and started again, it gives the same"


def says_bye(talk: Talk) -> str:
    talk.prepare(talk.case())
    try:
        code = talk.leave().bye()
    except (Lost, ProtocolError, PluginError) as error:
        raise Wrong(f"{error}, instead of saying bye") from None
    if code is None:
        raise Wrong("says bye, and does not end")
    if code:
        raise Wrong(f"ends with exit code {code} after bye; 0 is due")
    return "ends after bye with exit code 0"


def ends_with_its_input(talk: Talk) -> str:
    talk.prepare(talk.case())
    plugin = talk.leave()
    code = plugin.child.close()
    plugin.close()
    if code is None:
        raise Wrong("does not end when its standard input ends: it could be left behind")
    return "ends when its standard input ends"


def is_quiet(talk: Talk) -> str:
    talk.start()
    talk.plugin.child.said()
    talk.once(talk.case())
    printed = talk.plugin.child.said()
    if printed:
        raise Note(f"prints {len(printed)} characters in a plain call; they are kept, and shown with failures only")
    return "prints nothing in a plain call"


# Title, check, and whether it is about the process and the messages, which a Python backend leaves to the suite.
CHECKS: tuple[tuple[str, Callable[[Talk], str], bool], ...] = (
    ("says hello", says_hello, False),
    ("answers calls", answers_calls, False),
    ("repeats itself", repeats_itself, False),
    ("empty tensors", takes_nothing, False),
    ("several sessions", keeps_sessions_apart, False),
    ("two prepares", keeps_twins_apart, False),
    ("release", releases, True),
    ("refused configuration", refuses_configurations, False),
    ("refused call", refuses_calls, False),
    ("unsupported types", knows_its_types, False),
    ("tensors in files", shares_files, True),
    ("unknown field", ignores_unknown_fields, True),
    ("unknown message", survives_unknown_messages, True),
    ("noise", is_quiet, True),
    ("restart", starts_again, True),
    ("bye", says_bye, True),
    ("end of input", ends_with_its_input, True),
)


# Without these there is no use in the others.
FIRST = (says_hello, answers_calls)


def check(
    command: Sequence[str],
    limits: Limits,
    library: Library,
    *,
    own_process: bool = True,
    only: Collection[str] = (),
) -> Iterator[Finding]:
    """The findings of all checks, or of `only` some by title, as they come; about messages only for an `own_process`.

    Raises `BackendError` when there is no such program.
    """
    talk = Talk(command, limits, library)
    try:
        for title, function, about_messages in CHECKS:
            if (about_messages and not own_process) or (only and title not in only):
                continue
            try:
                yield Finding(title, "ok", function(talk))
            except Note as note:
                yield Finding(title, "note", str(note))
            except Wrong as wrong:
                # Nothing is known of the process any more: the next check has a new one.
                yield Finding(title, "wrong", str(wrong), talk.stop())
                if function in FIRST:
                    return
    finally:
        talk.stop()
