"""Decompression of request bodies with a bound on what comes out.

Owns gzip, deflate and zstd. Does not know HTTP.
"""

from __future__ import annotations

import zlib
from typing import Final

import zstandard

#: Content-Encoding values that are understood.
ENCODINGS: Final = ("gzip", "deflate", "zstd")
_CHUNK_BYTES: Final = 1024 * 1024


class TooLarge(ValueError):
    """The body is larger than allowed after decompression."""


class Corrupt(ValueError):
    """The body is not what its encoding says, or is cut short."""


def inflate(encoding: str, data: bytes, limit_bytes: int) -> bytes:
    """``data`` decompressed; never holds more than ``limit_bytes`` and a chunk.

    Raises:
        TooLarge: more than ``limit_bytes`` would come out.
        Corrupt: not valid ``encoding``, or truncated.
        KeyError: ``encoding`` is none of ENCODINGS.
    """
    return {"gzip": _gzip, "deflate": _deflate, "zstd": _zstd}[encoding](data, limit_bytes)


def _zlib_stream(data: bytes, window_bits: int, limit_bytes: int, encoding: str) -> tuple[bytes, bytes]:
    stream = zlib.decompressobj(window_bits)
    try:
        out = stream.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise Corrupt(f"the body is not valid {encoding}: {error}") from error
    if len(out) > limit_bytes:
        raise TooLarge(f"the body is larger than {limit_bytes} bytes after decompression")
    if not stream.eof:
        raise Corrupt(f"the {encoding} body is truncated")
    return out, stream.unused_data


def _gzip(data: bytes, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:  # a gzip file is any number of members, one after the other (RFC 1952)
        out, data = _zlib_stream(data, 31, limit_bytes - size, "gzip")
        parts.append(out)
        size += len(out)
        if not data.strip(b"\0"):
            return b"".join(parts) if len(parts) > 1 else out


def _deflate(data: bytes, limit_bytes: int) -> bytes:
    """RFC 9110 means zlib's format by deflate; some senders use the bare stream."""
    try:
        return _zlib_stream(data, 15, limit_bytes, "deflate")[0]
    except Corrupt as error:
        try:
            return _zlib_stream(data, -15, limit_bytes, "deflate")[0]
        except Corrupt:
            raise error from None


def _zstd(data: bytes, limit_bytes: int) -> bytes:
    if not data:
        raise Corrupt("the zstd body is empty")
    parts: list[bytes] = []
    try:
        # The streaming reader bounds what comes out but takes a cut frame for its end; the plain object is the reverse.
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
            size = 0
            while chunk := reader.read(_CHUNK_BYTES):
                size += len(chunk)
                if size > limit_bytes:
                    raise TooLarge(f"the body is larger than {limit_bytes} bytes after decompression")
        while data:
            frame = zstandard.ZstdDecompressor().decompressobj()
            parts.append(frame.decompress(data))
            if not frame.eof:
                raise Corrupt("the zstd body is truncated")
            data = frame.unused_data
    except zstandard.ZstdError as error:
        raise Corrupt(f"the body is not valid zstd: {error}") from error
    return b"".join(parts)
