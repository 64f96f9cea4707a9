"""What a report says of the machine and the software a run was made on."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("numpy", "ml_dtypes", "openvino", "torch", "transformers", "onnxruntime")


def environment() -> dict[str, str]:
    """Operating system, Python, CPU, core count and the versions of the packages that matter."""
    found = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": str(os.cpu_count() or 0),
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def now() -> str:
    """The time at which a run begins: ISO 8601, UTC, in whole seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def cpu_name() -> str:
    """The processor's own name, the machine type where it gives none."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
