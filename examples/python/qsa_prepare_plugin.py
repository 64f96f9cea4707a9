#!/usr/bin/env python3
"""QSAPrepare as a plug-in of qsa-conformance: a process that reads requests and writes answers, one JSON object a line.

    qsa-conformance run -b "cmd:python3 qsa_prepare_plugin.py"

Replace `Operation` by a call of your own implementation; the rest can stay. Needs NumPy and nothing of the suite.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import traceback
from pathlib import Path

import numpy as np

ABOUT = {
    "protocol": 1,
    "name": "example-python",
    "version": "1.0",
    "vendor": "qsa-conformance examples",
    "element_types": ["f32", "f16", "bf16"],
    "outputs": ["block_index_keys", "present_incomplete_raw_keys", "present_incomplete_rope"],
    "features": ["rope", "norm", "left_padding"],
}

# What elements are stored as. NumPy has no bf16: its 16 bits travel as unsigned integers, and are copied as such.
STORED = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": "<u2",
    "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "i1",
    "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "u1", "bool": "?",
}  # fmt: skip
ROPE = ("rope_cos", "rope_sin", "past_incomplete_rope")
RANKS = {
    "raw_index_keys": 3,
    "past_block_index_keys": 3,
    "key_length": 1,
    "rope_cos": 3,
    "rope_sin": 3,
    "k_norm_weight": 1,
    "past_incomplete_raw_keys": 3,
    "past_incomplete_rope": 2,
}


class Refused(Exception):  # noqa: N818  not an error of ours
    """The contract forbids it: becomes the answer `rejected`."""

    def __init__(self, kind, phase, *names):
        self.answer = {"answer": "rejected", "kind": kind, "phase": phase, "names": names}


class Operation:
    """One prepared instance. It keeps no state between calls: that is in the tensors."""

    def __init__(self, attributes, element_type, length_type, disabled):
        self.r, self.epsilon = attributes["key_block_size"], float(attributes["epsilon"])
        if self.r < 2:
            raise Refused("attribute", "prepare", "key_block_size")
        if not self.epsilon >= 0:  # NaN is refused too
            raise Refused("attribute", "prepare", "epsilon")
        self.element_type, self.length_type = element_type, length_type
        self.rotates, self.normalizes = "rope" not in disabled, "norm" not in disabled

    # What is refused

    def check(self, tensors):
        """Types and shapes, before any element is looked at."""
        for name, tensor in tensors.items():
            if tensor["type"] != (self.length_type if name == "key_length" else self.element_type):
                raise Refused("type", "call", name)
        shape = {name: tuple(tensor["shape"]) for name, tensor in tensors.items()}
        empty = {name for name in ROPE if shape[name][-1:] == (0,)}
        if empty != (set() if self.rotates else set(ROPE)):
            raise Refused("rope", "call", *(empty if self.rotates else set(ROPE) - empty))
        for name, rank in RANKS.items():
            if self.has(name) and len(shape[name]) != rank:
                raise Refused("shape", "call", name)
        N, L, Di = shape["raw_index_keys"]
        due = {
            "past_block_index_keys": (N, shape["past_block_index_keys"][1], Di),
            "key_length": (1,) if shape["key_length"] == (1,) else (N,),
            "k_norm_weight": (Di,),
            "past_incomplete_raw_keys": (N, self.r - 1, Di),
        }
        if self.rotates:
            Dr = shape["rope_cos"][2]
            due |= {"rope_cos": (N, L, Dr), "rope_sin": (N, L, Dr), "past_incomplete_rope": (N, 2 * Dr)}
        wrong = [name for name, wanted in due.items() if self.has(name) and shape[name] != wanted]
        if wrong:
            raise Refused("shape", "call", *wrong)
        if self.rotates and (Dr % 2 or Dr > Di):
            raise Refused("rope", "call", *ROPE)

    def has(self, name):
        """Whether a port takes part: those of a feature that is switched off are empty."""
        return self.rotates if name in ROPE else self.normalizes if name == "k_norm_weight" else True

    # One call

    def run(self, arrays):
        """The eight inputs by name, as stored, to the three outputs by name, as stored."""
        raw, past_keys, waiting = (
            arrays[name] for name in ("raw_index_keys", "past_block_index_keys", "past_incomplete_raw_keys")
        )
        N, L, Di = raw.shape
        r = self.r
        lengths = [int(S) for S in np.broadcast_to(arrays["key_length"], (N,))]
        if any(S < 0 for S in arrays["key_length"]):
            raise Refused("value", "call", "key_length")
        if any(max(S - L, 0) // r > past_keys.shape[1] for S in lengths):
            raise Refused("value", "call", "past_block_index_keys")

        # Storage is allocated as zeros, so that what the contract leaves open is at least the same every time.
        keys = np.zeros((N, max((S // r for S in lengths), default=0), Di), raw.dtype)
        open_keys = np.zeros((N, r - 1, Di), raw.dtype)
        open_rope = np.zeros((N, arrays["past_incomplete_rope"].shape[1]) if self.rotates else (0,), raw.dtype)
        for n, S in enumerate(lengths):
            past, pad = max(S - L, 0), max(L - S, 0)
            c, q = divmod(past, r)
            # All tokens from the start of the open block on: those that wait, then the new ones without padding.
            tokens = np.concatenate([waiting[n, :q], raw[n, pad:]])
            blocks, rest = divmod(len(tokens), r)
            keys[n, :c] = past_keys[n, :c]
            open_keys[n, :rest] = tokens[blocks * r :]
            rope = self.rope_rows(arrays, n, q, pad)
            if self.rotates and rest:
                open_rope[n] = rope[blocks * r]
            if blocks:
                members = self.numbers(tokens[: blocks * r]).reshape(blocks, r, Di)
                first = self.numbers(rope[: blocks * r : r]) if self.rotates else None
                weight = self.numbers(arrays["k_norm_weight"])
                keys[n, c : c + blocks] = self.stored(self.block_keys(members, weight, first))
        return {
            "block_index_keys": keys,
            "present_incomplete_raw_keys": open_keys,
            "present_incomplete_rope": open_rope,
        }

    def rope_rows(self, arrays, n, q, pad):
        """cos and then sin of every token that `run` looks at; for all that wait, the row of their block's first."""
        if not self.rotates:
            return None
        new = np.concatenate([arrays["rope_cos"][n, pad:], arrays["rope_sin"][n, pad:]], axis=1)
        carried = arrays["past_incomplete_rope"][n]
        return np.concatenate([np.broadcast_to(carried, (q, len(carried))), new])

    def block_keys(self, members, weight, rope):
        """[blocks, r, Di], [Di] and [blocks, 2*Dr] to [blocks, Di], all float64."""
        with np.errstate(all="ignore"):
            y = members.sum(axis=1) / self.r
            if self.normalizes:
                y = y / np.sqrt(np.mean(y * y, axis=1, keepdims=True) + self.epsilon) * weight
            if rope is not None:
                cos, sin = np.split(rope, 2, axis=1)
                Dr = cos.shape[1]
                a, b = y[:, : Dr // 2], y[:, Dr // 2 : Dr]
                rotated = y[:, :Dr] * cos + np.concatenate([-b, a], axis=1) * sin
                y = np.concatenate([rotated, y[:, Dr:]], axis=1)
        return y

    # Elements

    def numbers(self, stored):
        """Stored elements as float64."""
        if self.element_type == "bf16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float64)

    def stored(self, numbers):
        """float64 rounded to the element type."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.element_type != "bf16":
                return numbers.astype(STORED[self.element_type])
            bits = numbers.astype(np.float32).view(np.uint32)
        nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to nearest, ties to even
        return np.where(np.isnan(numbers), 0x7FC0, nearest).astype(np.uint16)


class Plugin:
    """Answers requests."""

    def __init__(self):
        self.sessions = {}

    def answer(self, request):
        """The answer to one request, without its number."""
        kind = request["message"]
        if kind == "hello":
            self.directory, self.inline = Path(request["directory"]), request["inline"]
            return {"answer": "hello", **ABOUT}
        if kind == "prepare" and request["operation"] != "QSAPrepare":
            reason = "this plug-in serves QSAPrepare only"
            return {"answer": "unsupported", "feature": request["operation"], "reason": reason}
        if kind == "prepare":
            given = (request[key] for key in ("attributes", "element_type", "length_type", "disabled"))
            self.sessions[request["session"]] = Operation(*given)
            return {"answer": "prepared"}
        if kind == "run":
            operation, tensors = self.sessions[request["session"]], request["inputs"]
            operation.check(tensors)
            outputs = operation.run({name: self.array(tensor) for name, tensor in tensors.items()})
            return {
                "answer": "done",
                "outputs": {
                    name: self.tensor(operation.element_type, array, f"{request['id']}-{name}.out")
                    for name, array in outputs.items()
                },
            }
        if kind == "release":
            del self.sessions[request["session"]]
            return {"answer": "released"}
        if kind == "bye":
            return {"answer": "bye"}
        raise ValueError(f"'{kind}' is not a request that I know")

    def array(self, tensor):
        dtype = STORED[tensor["type"]]
        if "file" in tensor:
            return np.fromfile(self.directory / tensor["file"], dtype).reshape(tensor["shape"])
        return np.frombuffer(base64.b64decode(tensor["data"]), dtype).reshape(tensor["shape"])

    def tensor(self, element_type, array, file):
        tensor = {"type": element_type, "shape": array.shape}
        if array.nbytes <= self.inline:
            return tensor | {"data": base64.b64encode(array.tobytes()).decode()}
        array.tofile(self.directory / file)
        return tensor | {"file": file}


def main():
    # Whatever a library prints is to go to standard error: standard output is for answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    plugin = Plugin()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = plugin.answer(request)
        except Refused as refused:
            answer = refused.answer
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            answer = {"answer": "error", "reason": reason, "detail": traceback.format_exc()}
        print(json.dumps({"id": request["id"], **answer}), file=answers, flush=True)
        if answer["answer"] == "bye":
            break


if __name__ == "__main__":
    main()
