"""Plug-ins in a process of their own: the wire protocol and its two ends."""
