"""`python -m conformance` is `qsa-conformance`."""

from conformance.cli import main

main()
