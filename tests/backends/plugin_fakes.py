"""Plug-ins that misbehave, each in one way: a function, and a line on how. Run as `python plugin_fakes.py NAME`.

A fake is given a request and the honest plug-in to ask for the right answer; what it returns is written: a message, raw
bytes, or nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python"))

import qsa_prepare_plugin as example

FAKES = {}
memory = {"runs": 0}


def fake(function):
    FAKES[function.__name__] = function
    return function


def on(message):
    """A fake that is honest but for one kind of request."""

    def wrap(function):
        def answer(request, right):
            return function(request, right) if request["message"] == message else right(request)

        FAKES[function.__name__] = answer
        return answer

    return wrap


@fake
def honest(request, right):
    """Does all as it should."""
    return right(request)


@on("run")
def segfaults(request, right):
    """Reads address zero in every call."""
    print("about to read address zero", file=sys.stderr, flush=True)
    ctypes.string_at(0)


@on("run")
def aborts(request, right):
    """Calls abort() in every call."""
    os.abort()


@on("run")
def exits(request, right):
    """Ends with exit code 3 in every call."""
    os._exit(3)


@on("run")
def sleeps(request, right):
    """Never answers a call."""
    time.sleep(600)


@on("run")
def allocates(request, right):
    """Takes memory without end in every call."""
    blocks = []
    while True:
        blocks.append(bytearray(b"x" * (16 << 20)))


@on("run")
def floods_stdout(request, right):
    """Writes an answer without end."""
    while True:
        os.write(real_stdout, b"x" * 65536)


@on("run")
def floods_stderr(request, right):
    """Prints without end."""
    while True:
        os.write(2, b"x" * 65536)


@fake
def chatters(request, right):
    """Prints some lines on standard error for every request, which is allowed."""
    print(f"got {request['message']}\n" * 50, file=sys.stderr, flush=True)
    return right(request)


@on("run")
def prints_to_stdout(request, right):
    """Has left a debugging print in."""
    os.write(real_stdout, b"here I am\n")
    return right(request)


@on("run")
def cuts_its_answer(request, right):
    """Writes half of the answer as a line."""
    line = json.dumps(right(request)).encode()
    return line[: len(line) // 2] + b"\n"


@on("run")
def stops_in_its_answer(request, right):
    """Writes half of the answer, and then nothing."""
    line = json.dumps(right(request)).encode()
    os.write(real_stdout, line[: len(line) // 2])
    time.sleep(600)


@on("run")
def answers_late(request, right):
    """Takes two seconds for a call."""
    time.sleep(2)
    return right(request)


@on("run")
def answers_twice(request, right):
    """Writes every answer twice."""
    return (json.dumps(right(request)) + "\n").encode() * 2


@on("run")
def answers_nothing(request, right):
    """Says it is done, and gives no outputs."""
    return {**right(request), "outputs": {}}


@on("run")
def miscounts(request, right):
    """Answers under the number of the request before."""
    return {**right(request), "id": request["id"] - 1}


@on("run")
def mistakes_the_answer(request, right):
    """Answers 'prepared' to a call."""
    return {"answer": "prepared", "id": request["id"]}


@on("run")
def invents_a_field(request, right):
    """Adds a field to its answer."""
    return {**right(request), "took": 0.5}


def changed(answer, **changes):
    name, tensor = next(iter(answer["outputs"].items()))
    return {**answer, "outputs": {**answer["outputs"], name: {**tensor, **changes}}}


@on("run")
def misshapes(request, right):
    """Declares one row more than it sends elements for."""
    answer = right(request)
    shape = next(iter(answer["outputs"].values()))["shape"]
    return changed(answer, shape=[shape[0] + 1, *shape[1:]])


@on("run")
def reshapes(request, right):
    """Gives the keys in two dimensions, all elements there."""
    answer = right(request)
    n, b, d = next(iter(answer["outputs"].values()))["shape"]
    return changed(answer, shape=[n * b, d])


@on("run")
def retypes(request, right):
    """Calls its f32 elements i32."""
    return changed(right(request), type="i32")


@on("run")
def renames(request, right):
    """Returns an output under another name."""
    answer = right(request)
    outputs = dict(answer["outputs"])
    outputs["keys"] = outputs.pop("block_index_keys")
    return {**answer, "outputs": outputs}


@on("run")
def points_elsewhere(request, right):
    """Names a file outside the directory."""
    answer = right(request)
    tensor = next(iter(answer["outputs"].values()))
    tensor.pop("data")
    return changed(answer, file="../../etc/passwd")


@on("run")
def scribbles(request, right):
    """Writes into the files of its inputs."""
    answer = right(request)
    for tensor in request["inputs"].values():
        if "file" in tensor:
            (plugin.directory / tensor["file"]).write_bytes(b"scribble")
    return answer


@on("run")
def fails(request, right):
    """Answers every call with an error."""
    return {"answer": "error", "id": request["id"], "reason": "the device is on fire", "detail": "at the back"}


@fake
def dies_when_idle(request, right):
    """Answers a call, and ends right after."""
    answer = right(request)
    if request["message"] == "run":
        os.write(real_stdout, (json.dumps(answer) + "\n").encode())
        os._exit(0)
    return answer


@on("run")
def tires(request, right):
    """Crashes in its fourth call, whatever it is."""
    memory["runs"] += 1
    if memory["runs"] == 4:
        os.abort()
    return right(request)


@on("hello")
def says_nothing(request, right):
    """Ends before hello, with the reason on standard error."""
    print("cannot find libdevice.so", file=sys.stderr, flush=True)
    os._exit(1)


@on("hello")
def is_from_the_future(request, right):
    """Speaks another version of the protocol."""
    return {**right(request), "protocol": 2}


@on("hello")
def boasts(request, right):
    """Declares an output that the operation has not."""
    return {**right(request), "outputs": ["block_index_keys", "attention"]}


@on("hello")
def is_modest(request, right):
    """Declares f32 alone, and prepares anything."""
    return {**right(request), "element_types": ["f32"]}


@fake
def forgets_sessions(request, right):
    """Uses the session that was prepared last, whichever it is asked for."""
    if request["message"] == "prepare":
        memory["last"] = request["session"]
    return right({**request, "session": memory.get("last")} if request["message"] == "run" else request)


@on("release")
def keeps_sessions(request, right):
    """Does not release anything."""
    return {"answer": "released", "id": request["id"]}


@on("release")
def releases_all(request, right):
    """Releases all sessions at once."""
    plugin.sessions.clear()
    return {"answer": "released", "id": request["id"]}


@fake
def is_easily_shocked(request, right):
    """Crashes at a message that it does not know."""
    if request["message"] not in ("hello", "prepare", "run", "release", "bye"):
        os.abort()
    return right(request)


@fake
def is_picky(request, right):
    """Answers with an error when there is a field that it does not know."""
    if "hint" in request:
        return {"answer": "error", "id": request["id"], "reason": "unknown field"}
    return right(request)


@on("prepare")
def prepares_anything(request, right):
    """Prepares whatever it is asked for."""
    attributes = {"key_block_size": max(request["attributes"]["key_block_size"], 2), "epsilon": 1e-6}
    return right({**request, "attributes": attributes})


@on("run")
def breaks_when_refusing(request, right):
    """Refuses a call, and gives wrong numbers on that session from then on."""
    answer = right(request)
    if answer["answer"] == "rejected":
        memory[request["session"]] = "broken"
    if memory.get(request["session"]) == "broken" and answer["answer"] == "done":
        data = next(iter(answer["outputs"].values()))["data"]
        return changed(answer, data=("B" if data[0] == "A" else "A") + data[1:])
    return answer


@fake
def litters(request, right):
    """Leaves a file behind for every call."""
    if request["message"] == "run":
        (plugin.directory / f"scratch-{request['id']}").write_bytes(b"x")
    return right(request)


@on("bye")
def stays(request, right):
    """Says bye and stays."""
    os.write(real_stdout, (json.dumps(right(request)) + "\n").encode())
    time.sleep(600)


@on("bye")
def slams_the_door(request, right):
    """Ends with exit code 4 after bye."""
    os.write(real_stdout, (json.dumps(right(request)) + "\n").encode())
    os._exit(4)


@fake
def outlives_its_input(request, right):
    """Does not end when its input does."""
    if request["message"] == "end of input":
        time.sleep(600)
    return right(request)


plugin = example.Plugin()
real_stdout = os.dup(1)


def right(request):
    try:
        answer = plugin.answer(request)
    except example.Refused as refused:
        answer = refused.answer
    except Exception as error:
        answer = {"answer": "error", "reason": repr(error)}
    return {"id": request["id"], **answer}


def main(name):
    for line in sys.stdin:
        answer = FAKES[name](json.loads(line), right)
        os.write(real_stdout, answer if isinstance(answer, bytes) else (json.dumps(answer) + "\n").encode())
        if isinstance(answer, dict) and answer["answer"] == "bye":
            return
    if name == "outlives_its_input":
        time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
