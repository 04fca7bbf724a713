"""`pdtrace proxy`: the ASGI middleware as a ready program, for engines that nobody may change.

Needs the server extra (httpx, uvicorn); nothing else of pdtrace imports it.
"""
