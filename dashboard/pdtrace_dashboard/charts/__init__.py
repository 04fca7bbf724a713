"""Pure functions from the reader's rows to Altair charts, one subject a file.

Owns marks, scales and units. Does not ask the reader and does not draw on the page.
"""
