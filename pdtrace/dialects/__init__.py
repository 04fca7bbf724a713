"""All dialects, in the order they are asked: a span belongs to the first that knows it.

Owns the list. Adding an engine is one file and one line here.
"""

from pdtrace.dialects.contract import Dialect
from pdtrace.dialects.dynamo import DynamoDialect
from pdtrace.dialects.generic import GenericDialect
from pdtrace.dialects.llmd import LlmdDialect
from pdtrace.dialects.lmcache import LmcacheDialect
from pdtrace.dialects.native import NativeDialect
from pdtrace.dialects.sglang import SglangDialect
from pdtrace.dialects.sglang_router import SmgRouterDialect
from pdtrace.dialects.trtllm import TrtllmDialect
from pdtrace.dialects.vllm import VllmDialect
from pdtrace.dialects.vllm_router import VllmRouterDialect

DIALECTS: tuple[Dialect, ...] = (
    NativeDialect(),
    DynamoDialect(),
    VllmDialect(),
    VllmRouterDialect(),
    LmcacheDialect(),
    SglangDialect(),
    SmgRouterDialect(),
    TrtllmDialect(),
    LlmdDialect(),
    GenericDialect(),  # last: it claims whatever is left
)

__all__ = ["DIALECTS", "Dialect"]
