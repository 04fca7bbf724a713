"""One file a page; each reads its controls, asks the reader and shows.

Owns nothing that a test without a browser could not reach through the modules beside it.
"""
