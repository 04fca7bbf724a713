"""The service process: receivers, one writer, the query API.

Owns how they are wired, started and drained. Decoding, deriving and answering are other packages'.
"""
