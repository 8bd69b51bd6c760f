"""The lab's table: each bug, the model it is planted in and the check that names it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bug:
    """One bug: `name` is the switch in the lab's models, `check` what the auditor says."""

    name: str
    shape: str
    check: str
    line: str  # the wrong line
    right: str  # the right one
    styles: tuple[str, ...] = ("separate", "fused", "mha")
    options: tuple[tuple[str, object], ...] = field(default=())
    pad: int | None = None


HAND = ("separate", "fused", "einsum")  # what nn.MultiheadAttention does not let one get wrong
ROTARY = (("positions", "rotary"),)

# Sinusoids are learned to be read slowest: their bugs are shown where the task is easiest.
BUGS = (
    Bug("no_mask", "decoder", "mask.future_leak", "scores.softmax(-1)", "scores.masked_fill(~tril, -inf).softmax(-1)"),  # noqa: E501
    Bug("ahead", "decoder", "mask.off_by_one", "ones(T, T).tril(1)", "ones(T, T).tril()"),
    Bug("behind", "decoder", "mask.off_by_one", "ones(T, T).tril(-1)", "ones(T, T).tril()", HAND),
    Bug("inverted", "decoder", "mask.inverted", "masked_fill(tril, -inf)", "masked_fill(~tril, -inf)"),  # noqa: E501
    Bug("finite", "decoder", "mask.finite", "scores + (~mask) * -1e4", "scores.masked_fill(~mask, -inf)"),  # noqa: E501
    Bug("fp16", "decoder", "mask.fp16", "masked_fill(~mask, -1e9)", "masked_fill(~mask, torch.finfo(dtype).min)", HAND),  # noqa: E501
    Bug("mask_late", "decoder", "mask.after_softmax", "scores.softmax(-1) * mask", "scores.masked_fill(~mask, -inf).softmax(-1)", HAND),  # noqa: E501
    Bug("nan_rows", "decoder", "mask.blind_rows", "masked_fill(~mask, -inf), left padding", "masked_fill(~mask, torch.finfo(dtype).min)"),  # noqa: E501
    Bug("no_scale", "decoder", "attention.scale", "q @ k.mT", "q @ k.mT / sqrt(d_k)", HAND),
    Bug("scale_model", "decoder", "attention.scale", "q @ k.mT / sqrt(d_model)", "q @ k.mT / sqrt(d_k)", HAND),  # noqa: E501
    Bug("scale_twice", "decoder", "attention.scale", "q @ k.mT / d_k", "q @ k.mT / sqrt(d_k)", HAND),  # noqa: E501
    Bug("scale_inverted", "decoder", "attention.scale", "q @ k.mT * sqrt(d_k)", "q @ k.mT / sqrt(d_k)", HAND),  # noqa: E501
    Bug("softmax_axis", "encoder", "attention.softmax_axis", "scores.softmax(-2)", "scores.softmax(-1)", HAND),  # noqa: E501
    Bug("split", "encoder", "heads.split", "x.view(B, H, T, D)", "x.view(B, T, H, D).transpose(1, 2)", HAND),  # noqa: E501
    Bug("merge", "encoder", "heads.merge", "y.reshape(B, T, C)", "y.transpose(1, 2).reshape(B, T, C)", HAND),  # noqa: E501
    Bug("shared_qkv", "encoder", "attention.shared_projections", "self.k = self.v = self.q", "three nn.Linear", HAND),  # noqa: E501
    Bug("no_out", "encoder", "attention.output_projection", "return y", "return self.out(y)", HAND),
    Bug("grouped", "decoder", "attention.grouped_order", "k.repeat(1, n, 1, 1)", "k.repeat_interleave(n, 1)", HAND, (("kv_heads", 2),)),  # noqa: E501
    Bug("unused", "decoder", "weights.unused", "self.extra = nn.Linear(C, C)", "call it or delete it"),  # noqa: E501
    Bug("identical", "decoder", "layers.identical", "[deepcopy(layer) for _ in range(n)]", "[Layer() for _ in range(n)]"),  # noqa: E501
    Bug("reused", "encoder", "layers.reused", "[Layer()] * n", "[Layer() for _ in range(n)]"),
    Bug("no_positions", "encoder", "positions.missing", "x = embed(ids)", "x = embed(ids) + pe[:T]"),  # noqa: E501
    Bug("batch_axis", "seq2seq", "positions.batch_axis", "x + pe[: x.size(0), None]", "x + pe[: x.size(1)]"),  # noqa: E501
    Bug("frequencies", "seq2seq", "positions.frequencies", "pos / 10000 ** (2 * arange(0, d, 2) / d)", "pos / 10000 ** (arange(0, d, 2) / d)"),  # noqa: E501
    Bug("frequencies_half", "seq2seq", "positions.frequencies", "pos / 10000 ** (arange(d // 2) / d)", "pos / 10000 ** (arange(0, d, 2) / d)"),  # noqa: E501
    Bug("pairs", "seq2seq", "positions.frequencies", "cos with the next exponent", "sin and cos of one angle"),  # noqa: E501
    Bug("rotary_layout", "decoder", "positions.rotary", "halves turned with repeat_interleave(angle, 2)", "cat([angle, angle])", HAND, ROTARY),  # noqa: E501
    Bug("rotary_q_only", "encoder", "positions.rotary", "q = rotate(q)", "q, k = rotate(q), rotate(k)", HAND, ROTARY),  # noqa: E501
    Bug("buffer", "seq2seq", "positions.buffer", "self.pe = pe", "self.register_buffer('pe', pe)"),
    Bug("left_padding", "decoder", "positions.left_padding", "positions = arange(T)", "positions = mask.cumsum(-1) - 1"),  # noqa: E501
    Bug("pad_ignored", "encoder", "padding.ignored", "attention(x)", "attention(x, keep)"),
    Bug("pad_query", "encoder", "padding.query_axis", "keep[:, None, :, None]", "keep[:, None, None, :]", HAND),  # noqa: E501
    Bug("pad_inverted", "decoder", "mask.inverted", "masked_fill(attention_mask == 1, -inf)", "masked_fill(attention_mask == 0, -inf)"),  # noqa: E501
    Bug("cross_mask", "seq2seq", "cross.mask", "cross(x, memory)", "cross(x, memory, source_keep)"),
    Bug("cross_unread", "seq2seq", "cross.unread", "cross(x, x)", "cross(x, memory)"),
    Bug("batch_first", "encoder", "batch.mixing", "nn.MultiheadAttention(C, H)", "nn.MultiheadAttention(C, H, batch_first=True)", ("mha", "separate", "fused")),  # noqa: E501
    Bug("no_residual", "encoder", "residual.missing", "x = attention(norm(x))", "x = x + attention(norm(x))"),  # noqa: E501
    Bug("residual_norm", "decoder", "residual.after_norm", "x = norm(x); x = x + attention(x)", "x = x + attention(norm(x))"),  # noqa: E501
    Bug("norm_axis", "encoder", "norm.axis", "x.mean(1)", "x.mean(-1)"),
    Bug("norm_unbiased", "encoder", "norm.variance", "x.var(-1)", "x.var(-1, unbiased=False)"),
    Bug("norm_eps", "encoder", "norm.epsilon", "eps = 0.1", "eps = 1e-5"),
    Bug("dropout_eval", "decoder", "dropout.eval", "F.dropout(x, p)", "F.dropout(x, p, self.training)"),  # noqa: E501
    Bug("dropout_train", "decoder", "dropout.train", "x = f(x)", "x = self.drop(f(x))", HAND),
    Bug("shifted_twice", "decoder", "loss.shift", "loss(logits[:, :-1], targets[:, 1:])", "loss(logits, targets)"),  # noqa: E501
    Bug("pad_loss", "decoder", "loss.padding", "cross_entropy(logits, targets)", "cross_entropy(…, ignore_index=pad)", pad=0),  # noqa: E501
    Bug("eos_loss", "decoder", "loss.eos", "targets[targets == eos] = pad", "mask by position"),
    Bug("softmax_loss", "decoder", "loss.softmax", "cross_entropy(softmax(logits), targets)", "cross_entropy(logits, targets)"),  # noqa: E501
    Bug("copied_tie", "decoder", "weights.save_load", "head.weight.data = embed.weight.data", "head.weight = embed.weight"),  # noqa: E501
    Bug("loud_start", "decoder", "training.initial_loss", "nn.Embedding(V, C) tied, std 1", "std 0.02"),  # noqa: E501
)  # fmt: skip
