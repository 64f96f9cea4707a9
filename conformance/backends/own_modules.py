"""Python files of plug-ins, each with the modules beside it: equal names in two folders do not meet.

A file is loaded as if its folder came first on Python's path. Only the modules of one folder are in `sys.modules` at a
time; an import statement in a module brings back those of its own folder first, also when it runs long after loading.
"""

from __future__ import annotations

import builtins
import sys
import zlib
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from conformance.errors import BackendError

OURS = ("conformance", "reference")  # packages that no folder replaces

_lock = RLock()
_folders: dict[Path, Folder] = {}
_active: Folder | None = None


class Folder:
    """A folder of a plug-in, and what was loaded from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: set[str] = set()
        self.modules: dict[str, ModuleType] = {}  # while another folder is active
        self.builtins = {**vars(builtins), "__import__": self._import}

    def _import(self, *arguments: Any, **named: Any) -> Any:
        with _lock:
            self.activate()
            return builtins.__import__(*arguments, **named)

    def activate(self) -> None:
        """Have the modules of this folder in `sys.modules`, and those of no other."""
        global _active
        if _active is self:
            return
        if _active is not None:
            there = {name: sys.modules.pop(name) for name in _active.names if name in sys.modules}
            _active.modules = there
        sys.modules.update(self.modules)
        _active = self


class _Loader(SourceFileLoader):
    """Loads a module whose imports are those of its folder."""

    def __init__(self, name: str, path: str, folder: Folder) -> None:
        super().__init__(name, path)
        self._folder = folder

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._folder.builtins
        super().exec_module(module)


class _Finder:
    """Finds modules in the active folder before all others."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        folder = _active
        top = name.partition(".")[0]
        if folder is None or top in OURS or (path is not None and top not in folder.names):
            return None
        spec = PathFinder.find_spec(name, [str(folder.path)] if path is None else path)
        if spec is None or (spec.loader is None and path is None and PathFinder.find_spec(name)):
            return None  # as ever, a folder without __init__.py gives way to a package
        folder.names.add(name)
        if type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(name, spec.loader.path, folder)
        return spec


def load(path: Path) -> ModuleType:
    """The module of a file, loaded anew. Raises `BackendError` when there is none, and whatever it raises itself."""
    if not path.is_file():
        raise BackendError(f"there is no file {path}")
    path = path.resolve()
    with _lock:
        if _Finder not in sys.meta_path:
            sys.meta_path.insert(0, _Finder)
        folder = _folders.setdefault(path.parent, Folder(path.parent))
        folder.activate()
        taken = path.stem in sys.modules and path.stem not in folder.names
        name = f"{path.stem}_{zlib.crc32(bytes(path)):08x}" if taken else path.stem
        spec = spec_from_file_location(name, path, loader=_Loader(name, str(path), folder))
        if spec is None or spec.loader is None:
            raise BackendError(f"{path} cannot be loaded as a Python module")
        module = module_from_spec(spec)
        folder.names.add(name)
        sys.modules.setdefault(name, module)
        spec.loader.exec_module(module)
    return module
