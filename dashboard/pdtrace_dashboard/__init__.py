"""The dashboard: pages that read a running pdtrace service over HTTP.

Owns pages, charts and words on screen. Never opens the database and computes no decomposition itself.
"""
