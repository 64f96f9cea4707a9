"""Skeletons of backends, written from an operation's description (`new-backend`)."""
