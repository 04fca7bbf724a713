"""Recorded telemetry, replayed with its stamps moved to now, so that there is something to look at.

Owns the recordings, how they are retold and when they are sent. Talks to a service over OTLP like any stranger.
"""
