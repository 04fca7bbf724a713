"""pdtrace_collectors: counters of GPUs, NICs and hosts, sent as OTLP metrics like any stranger would.

Owns reading devices and sending what they say. Knows nothing of requests, and imports nothing of pdtrace.
"""
