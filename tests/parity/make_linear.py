"""Write linear.json: what performer-pytorch 1.1.4 and linformer 0.2.3 compute on a few numbers.

    pip install performer-pytorch==1.1.4 linformer==0.2.3     # in an environment of its own
    python tests/parity/make_linear.py

Performer's ε (added to every feature, 1e-4 by default) is 0 here: with it the weights are drawn
towards equal ones and are no unbiased estimate.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch


def performer() -> dict[str, object]:
    """Bidirectional; causal from the same features, pair by pair."""
    from performer_pytorch.performer_pytorch import linear_attention, softmax_kernel

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 7, 4, dtype=torch.float64) for _ in "qkv")
    draws = 2 * torch.randn(6, 4, dtype=torch.float64)
    a, b = (softmax_kernel(x, projection_matrix=draws, is_query=x is q, eps=0.0) for x in (q, k))
    pairs = (a @ b.mT).tril()
    causal = pairs / pairs.sum(-1, keepdim=True) @ v
    both = {"whole": linear_attention(a, b, v), "causal": causal}
    return as_lists({"q": q, "k": k, "v": v, "draws": draws, **both})


def linformer() -> dict[str, object]:
    """Five tokens of at most seven, three keys of rank, two heads."""
    from linformer.linformer import LinformerSelfAttention

    torch.manual_seed(1)
    layer = LinformerSelfAttention(8, 7, k=3, heads=2, dim_head=4).double()
    layer.to_out = torch.nn.Identity()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    parts = {"q": layer.to_q(x), "k": layer.to_k(x), "v": layer.to_v(x)}
    matrices = {"keys": layer.proj_k.T, "values": layer.proj_v.T}
    return as_lists({**parts, **matrices, "context": layer(x)})


def as_lists(named: dict[str, torch.Tensor]) -> dict[str, object]:
    """Ten digits are enough for what is compared to 1e-8."""
    return {name: torch.round(x.detach(), decimals=10).tolist() for name, x in named.items()}


if __name__ == "__main__":
    record = {"performer": performer(), "linformer": linformer()}
    path = Path(__file__).with_name("linear.json")
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
