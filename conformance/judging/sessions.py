"""The sessions of one backend, one a configuration, kept and shared between cases as a plug-in's users share them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from conformance.backends.protocol import Backend, OperationConfig
from conformance.judging.calling import Open

KEPT = 320  # more than the library has configurations: preparing is what costs most on some runtimes


class Sessions:
    """Prepares sessions and keeps them, those used last; whatever a backend does on closing one changes nothing."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kept: OrderedDict[Any, Open] = OrderedDict()

    def prepare(self, config: OperationConfig) -> Open:
        """A session that is not kept."""
        return Open(self._backend.prepare(config), config)

    def shared(self, config: OperationConfig) -> Open:
        """The session of a configuration, prepared when there is none yet."""
        key = config.key
        if key not in self._kept:
            self._kept[key] = self.prepare(config)
            while len(self._kept) > KEPT:
                self._close(next(iter(self._kept)))
        self._kept.move_to_end(key)
        return self._kept[key]

    def drop(self, config: OperationConfig) -> None:
        """Close the session of a configuration, if there is one."""
        self._close(config.key)

    def close(self) -> None:
        """Close all."""
        while self._kept:
            self._close(next(iter(self._kept)))

    def _close(self, key: Any) -> None:
        kept = self._kept.pop(key, None)
        if kept:
            try:
                kept.session.close()
            except KeyboardInterrupt:
                raise
            except BaseException:
                return  # a session that cannot be closed is of no further use either way
