"""Names of QSAPrepare's ports and outputs, and its defaults, from the operation's description."""

from __future__ import annotations

from conformance.backends.qsa_prepare import OPERATION
from conformance.backends.refusals import operation_called

_operation = operation_called(OPERATION)

RANKS = {port.name: len(port.shape) for port in _operation.ports}
PORTS = tuple(RANKS)
FEATURES = {
    feature: tuple(port.name for port in _operation.ports if port.feature == feature)
    for feature in _operation.switchable
}
ROPE_PORTS = FEATURES["rope"]
SWITCHED = tuple(name for names in FEATURES.values() for name in names)  # the ports that may be empty
OUTPUTS = tuple(output.name for output in _operation.outputs)
DEFAULT_EPSILON = float(_operation.attributes["epsilon"].default)
