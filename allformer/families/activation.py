"""transformers' names of activations, and ours."""

from __future__ import annotations

from typing import Any

from allformer.config import Feed
from allformer.families.fields import Fields

READ = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "mish": "mish",
    "relu2": "relu2",
    "relu6": "relu6",
    "leaky_relu": "leaky_relu",
    "linear": "identity",
}
WRITE = {ours: theirs for theirs, ours in reversed(READ.items())} | {"gelu_tanh": "gelu_new"}
# T5 says in one name whether it is gated too.
GATED = READ | {f"gated-{name}": act for name, act in READ.items()}
GATED["gated-gelu"] = "gelu_tanh"  # as v1.1 was trained; "gelu" alone is the exact one


def read_gated(fields: Fields) -> dict[str, Any]:
    """`feed_forward_proj` says both; where `dense_act_fn` and `is_gated_act` stand beside it, as
    later versions write them, they are what transformers uses: `Feed(2048, **read_gated(fields))`.
    """
    act = fields.choice("feed_forward_proj", GATED)
    gated = fields.take("feed_forward_proj").startswith("gated-")
    act = fields.choice("dense_act_fn", READ, WRITE[act])
    return {"act": act, "gated": fields.flag("is_gated_act", gated)}


def write_gated(feed: Feed) -> dict[str, Any]:
    """The inverse of `read_gated`."""
    act = WRITE[feed.act]
    proj = "gelu" if feed.gated and act == "gelu_new" else act
    both = {"dense_act_fn": act, "is_gated_act": feed.gated}
    return {"feed_forward_proj": f"gated-{proj}" if feed.gated else proj, **both}
