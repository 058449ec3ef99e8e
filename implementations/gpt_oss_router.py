"""transformers' router of GPT-OSS."""

from attnspec.implementations.transformers_experts import gpt_oss_router, unavailable
from attnspec.spec.experts import RouterImplementation

IMPLEMENTATION = RouterImplementation(
    name="gpt_oss_router",
    function=gpt_oss_router,
    features=frozenset({"bias"}),
    unavailable=unavailable,
)
