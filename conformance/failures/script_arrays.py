"""Arrays of a script: expressions for them, each tried out before it is written.

Small ones are written out. Large ones are drawn again by the counter formula where that is exact, and packed otherwise.
"""

from __future__ import annotations

import base64
import inspect
import zlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from conformance.failures.script_helpers import HELPERS, NEEDS
from conformance.judging.calling import Array
from conformance.spec import aims
from conformance.spec.case import Case
from conformance.spec.inputs import inputs_of
from conformance.spec.operation import Operation
from conformance.spec.streams import spans
from conformance.spec.types import dtype, smallest_normal

WRITTEN = 48  # elements that are written out
BF16 = np.dtype(ml_dtypes.bfloat16)

# Exact arithmetic alone: what a cosine or a power is may differ from machine to machine.
AIMS: Mapping[str, str] = {
    "bell": "{bell} * {scale} + {offset}",
    "uniform": "{low} + {unit} * ({high} - {low})",
    "integers": "np.floor({low} + {unit} * ({high} - {low} + 1))",
    "constant": "np.full({shape}, {value}, float)",
    "choice": "np.array({values}, float)[np.floor({unit} * {count}).astype(int)]",
    "subnormal": "({unit} * 2 - 1) * {tiny} * {scale}",
    "near_largest": "np.where({unit} < 0.5, -1.0, 1.0) * TOP * {share}",
    "spikes": "np.where({other_unit} < 1.0 / {every}, {bell} * {size}, 0.0)",
}


class Arrays:
    """Writes the arrays of one script, and notes the helpers that they need; T is the type of the wrong call."""

    def __init__(self, case: Case, operation: Operation, element_type: str) -> None:
        self.case, self.operation = case, operation
        self.element_type, self.type = element_type, dtype(element_type)
        self.top = float(ml_dtypes.finfo(self.type).max)
        self.whole = inputs_of(case, operation)
        self.needs: set[str] = set()
        self.names = {"np": np, "zlib": zlib, "base64": base64, "nan": np.nan, "inf": np.inf, "TOP": self.top}
        self.names["T"] = np.dtype(np.uint16) if self.type == BF16 else self.type
        for helper in HELPERS:
            exec(helper, self.names)  # to try expressions out

    def of(self, array: Array, port: str = "") -> str:
        """An expression for an input, which is drawn again if its port is named."""
        for text in (self._literal(array), self._drawn(array, port) if port else ""):
            if text and self._gives(text, array):
                return self._noted(text)
        return self.packed(array)

    def _noted(self, text: str) -> str:
        """An expression; the helpers that it calls are needed."""
        self.needs |= {helper for name, helpers in NEEDS.items() if name in text for helper in helpers}
        return text

    def _gives(self, text: str, array: Array) -> bool:
        """Whether an expression gives the bits of an array, but for those of NaN."""
        with np.errstate(all="ignore"):
            got = np.asarray(eval(text, self.names))
        if array.dtype == BF16 and got.dtype == np.uint16:
            got = got.view(BF16)
        if got.dtype != array.dtype or got.shape != array.shape:
            return False
        if array.dtype.kind in "iu":
            return bool((got == array).all())
        a, b = got.astype(np.float64), array.astype(np.float64)
        same: Array = (a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)
        return bool(same.all())

    def _literal(self, array: Array) -> str:
        """The numbers themselves, when they are few or all the same."""
        if not array.size:
            return f"np.zeros({array.shape}, {self.kind(array)})"
        if array.size > 4 and len({value.tobytes() for value in array.ravel()[: WRITTEN + 1]}) == 1:
            text = f"np.full({array.shape}, {number(array.ravel()[0])}"
        elif array.size > WRITTEN:
            return ""
        else:
            text = f"np.array({nested(array)}"
        return f"narrow({text}))" if array.dtype == BF16 else f"{text}, {self.kind(array)})"

    def _drawn(self, array: Array, name: str) -> str:
        """The counter formula of a port: of the whole, or of the tokens of a call."""
        port = self.operation.port[name]
        spec = self.case.data.get(name, port.aim)
        if port.type != "T" or not isinstance(spec, dict) or "inject" in spec or spec.get("aim", "bell") not in AIMS:
            return ""
        whole, cut = self.whole[name], ""
        if array.shape != whole.shape:
            edges = [edge for stream in self.case.streams for edge in spans(stream)]
            cuts = [f"[:, {a}:{b}]" for a, b in edges if port.shape[1:2] == (self.operation.tokens,)
                    and array.tobytes() == whole[:, a:b].tobytes()]  # fmt: skip
            if not cuts:
                return ""
            cut = cuts[0]
        text = self._aim(name, spec, whole.shape)
        ignored = self._ignored(name)
        if ignored.any():
            values = {"mixed": "nan, TOP, -TOP", "nan": "nan", "huge": "TOP, -TOP", "zero": "0.0"}[self.case.poison]
            text = f'ignore({text}, "{_pack(np.packbits(ignored))}", {values})'
        return (f"narrow({text})" if self.type == BF16 else f"({text}).astype(T)") + cut

    def _aim(self, name: str, spec: Mapping[str, Any], shape: tuple[int, ...]) -> str:
        aim = str(spec.get("aim", "bell"))
        known = list(inspect.signature(aims.AIMS[aim]).parameters.values())[1:]
        parameters = {one.name: one.default for one in known} | {k: v for k, v in spec.items() if k != "aim"}
        sizes = ", ".join(map(str, shape))
        start, other = (hex(aims.start_of(self.case.seed, name, stream)) for stream in (0, 1))
        values = {key: repr(value) for key, value in parameters.items()}
        values |= {
            "shape": repr(shape),
            "unit": f"unit({start}, {sizes})",
            "other_unit": f"unit({other}, {sizes})",
            "bell": f"bell({start}, {sizes})",
            "count": str(len(parameters.get("values", ()))),
            "tiny": repr(smallest_normal(self.type)),
        }
        return AIMS[aim].format(**values).replace(" * 1.0 + 0.0", "").replace(" + 0.0", "")

    def _ignored(self, name: str) -> Array:
        """Mask over the first two axes of a port's elements that are not read."""
        poisoned, zeroed = (
            inputs_of(msgspec.structs.replace(self.case, poison=poison, change={}), self.operation)[name]
            for poison in ("nan", "zero")
        )
        mask: Array = np.isnan(poisoned.astype(np.float64)) & ~np.isnan(zeroed.astype(np.float64))
        return mask[..., 0] if mask.ndim > 2 and mask.size else mask

    def packed(self, array: Array) -> str:
        """An expression for an array of any size."""
        sizes = ", ".join(map(str, array.shape))
        return self._noted(f'unpack("{_pack(array)}", {self.kind(array)}, {sizes})')

    def kind(self, array: Array) -> str:
        """The name of an array's type in a script."""
        return "T" if array.dtype == self.type else numpy_name(array.dtype)


def number(value: Any) -> str:
    """A number with as few digits as give it again in its type."""
    if isinstance(value, np.generic) and value.dtype in (np.float32, np.float16, BF16):
        short = float(str(value))
        return repr(short if np.asarray(short).astype(value.dtype) == value else float(value))
    return repr(value.item() if isinstance(value, np.generic) else value)


def nested(array: Array) -> str:
    """The numbers of an array as nested lists."""
    return f"[{', '.join(map(nested, array))}]" if array.ndim else number(array[()])


def numpy_name(dtype: np.dtype[Any]) -> str:
    """What NumPy calls a type; bf16 goes as its bits."""
    return "np.uint16" if dtype == BF16 else f"np.{dtype.name}"


def _pack(array: Array) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()
