"""The JSON Schemas of the messages, as plug-ins in other languages want them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from conformance.backends.plugin.wire import ANSWERS, REQUESTS, Kind, tag


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schemas (2020-12) by file name, one for every message in both directions."""
    kinds: dict[str, Sequence[Kind]] = {"requests": REQUESTS, "answers": ANSWERS}
    return {f"{folder}/{tag(kind)}.json": _schema(kind) for folder, messages in kinds.items() for kind in messages}


def _schema(kind: Kind) -> dict[str, Any]:
    (reference,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    own = definitions.pop(reference["$ref"].rpartition("/")[2])
    if "Tensor" in definitions:
        definitions["Tensor"]["oneOf"] = [{"required": ["data"]}, {"required": ["file"]}]
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **own}
    return schema | ({"$defs": dict(definitions)} if definitions else {})


def write_schemas(folder: Path) -> None:
    """Write all schemas below a folder."""
    for name, schema in schemas().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m conformance.backends.plugin.schemas FOLDER")
    write_schemas(Path(sys.argv[1]))
