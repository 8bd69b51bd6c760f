"""The lab's table: each bug is a change of the text of the right models, and is shown as such."""

from __future__ import annotations

from dataclasses import dataclass

Edit = tuple[str, str]  # what stands in the right models, what stands there instead


@dataclass(frozen=True)
class Bug:
    """One bug: `check` is what the auditor says; each edit is applied wherever its text stands."""

    name: str
    shape: str
    check: str
    right: str
    wrong: str
    styles: tuple[str, ...] = ("separate", "fused", "mha")
    options: tuple[tuple[str, object], ...] = ()
    pad: int | None = None
    beside: tuple[Edit, ...] = ()  # what it takes beside that, or in other styles

    @property
    def edits(self) -> tuple[Edit, ...]:
        """All of them, in order."""
        return ((self.right, self.wrong), *self.beside)


HAND = ("separate", "fused", "einsum")  # what nn.MultiheadAttention does not let one get wrong
ROTARY = (("positions", "rotary"),)
SDPA = "F.scaled_dot_product_attention(q, k, v, look, rate)"
FORMULA = (SDPA, "super().attend(q, k, v, look)")  # SDPA has no such switch
TRIL = "torch.ones(t, s, dtype=torch.bool, device=x.device).tril()"
HIDE = "scores.masked_fill(~look, torch.finfo(scores.dtype).min)"
MIN = "torch.finfo(scores.dtype).min"
SCORES, EINSUM = "q @ k.mT / math.sqrt(self.size)", "q / math.sqrt(self.size), k"
PADDING, MHA_PADDING = "keep[:, None, None, :]", "padding = None if keep is None else ~keep"
ATTENTION = "x = x + self.dropped(self.attention(self.norm1(x), None, keep, where))"
CROSS = "self.cross(self.norm3(x), memory, source_keep, where)"
BLOCKS = "[block() for _ in range(layers)]"
ANGLE = "10000 ** (torch.arange(0, width, 2) / width)"
WHERE = "where = (real.cumsum(-1) - 1).clamp(min=0)"
ARANGE = "where = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)"
MOMENTS = "x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)"
LOSS = "F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)"


def _scale(name: str, change: str, factor: str) -> Bug:
    """The scores' scale: a number that they are divided by, and SDPA's for the same."""
    return Bug(
        name, "decoder", "attention.scale", SCORES, f"q @ k.mT{change}", HAND,
        beside=((EINSUM, f"q{change}, k"), (SDPA, f"{SDPA[:-1]}, scale={factor})")),
    )  # fmt: skip


# Sinusoids are learned to be read slowest: their bugs are shown where the task is easiest.
BUGS = (
    Bug("no_mask", "decoder", "mask.future_leak", TRIL, TRIL.removesuffix(".tril()")),
    Bug("ahead", "decoder", "mask.off_by_one", TRIL, TRIL.replace("tril()", "tril(1)")),
    Bug("behind", "decoder", "mask.off_by_one", TRIL, TRIL.replace("tril()", "tril(-1)"), HAND),
    Bug("inverted", "decoder", "mask.inverted", TRIL, TRIL.replace("tril()", "triu()")),
    Bug("causal", "encoder", "mask.causal", "causal=False", "causal=True"),
    Bug("finite", "decoder", "mask.finite", HIDE, "(scores + ~look * -1e4)", beside=(
        FORMULA, ("~look\n", "(~look).to(x.dtype) * -1e4\n"),
        (MHA_PADDING, "padding = None if keep is None else (~keep).to(x.dtype) * -1e4"))),
    Bug("fp16", "decoder", "mask.fp16", MIN, "-1e9", HAND, beside=(FORMULA,)),
    Bug("mask_late", "decoder", "mask.after_softmax", f"{HIDE}.softmax(-1)", "scores.softmax(-1) * look", HAND, beside=(FORMULA,)),  # noqa: E501
    Bug("nan_rows", "decoder", "mask.blind_rows", MIN, "-math.inf", beside=(
        FORMULA, ("need_weights=False", "need_weights=True"))),
    _scale("no_scale", "", "1.0"),
    _scale("scale_model", " / math.sqrt(self.heads * self.size)", "(self.heads * self.size) ** -0.5"),  # noqa: E501
    _scale("scale_twice", " / self.size", "1 / self.size"),
    _scale("scale_inverted", " * math.sqrt(self.size)", "math.sqrt(self.size)"),
    Bug("softmax_axis", "encoder", "attention.softmax_axis", ".softmax(-1)", ".softmax(-2)", HAND, beside=(FORMULA,)),  # noqa: E501
    Bug("split", "encoder", "heads.split", "x.view(rows, length, heads, self.size).transpose(1, 2)", "x.reshape(rows, heads, length, self.size)", HAND),  # noqa: E501
    Bug("merge", "encoder", "heads.merge", "y.transpose(1, 2).reshape(x.shape)", "y.reshape(x.shape)", HAND),  # noqa: E501
    Bug("shared_qkv", "encoder", "attention.shared_projections",
        "self.k, self.v = nn.Linear(width, small), nn.Linear(width, small)", "self.k = self.v = self.q", HAND, beside=(  # noqa: E501
        ("self.wk, self.wv = matrix(small), matrix(small)", "self.wk = self.wv = self.wq"),
        ("return q, k, v\n\n    def attend", "return q, q, v\n\n    def attend"))),
    Bug("no_out", "encoder", "attention.output_projection", "return self.out(y)", "return y", HAND, beside=(  # noqa: E501
        ('return torch.einsum("btc,cd->btd", y, self.wo)', "return y"),)),
    Bug("grouped", "decoder", "attention.grouped_order", "k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)", "k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)", HAND, (("kv_heads", 2),)),  # noqa: E501
    Bug("unused", "decoder", "weights.unused", "self.head = nn.Linear(width, vocab, bias=False)", "self.head, self.extra = nn.Linear(width, vocab, bias=False), nn.Linear(width, width)"),  # noqa: E501
    Bug("identical", "decoder", "layers.identical", BLOCKS, "[copy.deepcopy(b) for b in [block()] for _ in range(layers)]"),  # noqa: E501
    Bug("reused", "encoder", "layers.reused", BLOCKS, "[block()] * layers"),
    Bug("no_positions", "encoder", "positions.missing", "x = x + self.positions(where)", "pass"),
    Bug("batch_axis", "seq2seq", "positions.batch_axis", "self.pe[where]", "self.pe[: where.shape[0], None]"),  # noqa: E501
    Bug("frequencies", "seq2seq", "positions.frequencies", ANGLE, "10000 ** (2 * torch.arange(0, width, 2) / width)"),  # noqa: E501
    Bug("frequencies_half", "seq2seq", "positions.frequencies", ANGLE, "10000 ** (torch.arange(width // 2) / width)"),  # noqa: E501
    Bug("base", "seq2seq", "positions.frequencies", ANGLE, ANGLE.replace("10000", "1000")),
    Bug("pairs", "seq2seq", "positions.frequencies", "pe[:, 1::2] = angle.cos()", "pe[:, 1::2] = (angle / 10000 ** (1 / width)).cos()"),  # noqa: E501
    Bug("rotary_layout", "decoder", "positions.rotary", "torch.cat([angle, angle], -1)", "angle.repeat_interleave(2, -1)", HAND, ROTARY),  # noqa: E501
    Bug("rotary_q_only", "encoder", "positions.rotary", "q, k = rotate(q, where), rotate(k, where)", "q = rotate(q, where)", HAND, ROTARY),  # noqa: E501
    Bug("buffer", "seq2seq", "positions.buffer", 'self.register_buffer("pe", pe, persistent=False)', "self.pe = pe"),  # noqa: E501
    Bug("left_padding", "decoder", "positions.left_padding", WHERE, ARANGE),
    Bug("rotary_left", "decoder", "positions.left_padding", WHERE, ARANGE, HAND, ROTARY),
    Bug("pad_ignored", "encoder", "padding.ignored", "if keep is not None:", "if False:", beside=(
        (MHA_PADDING, "padding = None"),)),
    Bug("pad_query", "encoder", "padding.query_axis", PADDING, "keep[:, None, :, None]", HAND),
    Bug("pad_inverted", "decoder", "mask.inverted", PADDING, f"~{PADDING}", beside=(
        (MHA_PADDING, "padding = keep"),)),
    Bug("cross_mask", "seq2seq", "cross.mask", CROSS, CROSS.replace("source_keep", "None")),
    Bug("cross_unread", "seq2seq", "cross.unread", CROSS, "self.cross(self.norm3(x), self.norm3(x), None, where)"),  # noqa: E501
    Bug("batch_first", "encoder", "batch.mixing", "dropout, batch_first=True)", "dropout)", ("mha", "separate", "fused"), beside=(  # noqa: E501
        (MHA_PADDING, "padding = None"),  # torch would refuse it
        ("q, k, v = self.project(x, source)", "x, keep = x.transpose(0, 1), None\n        q, k, v = self.project(x, x)"),  # noqa: E501
        ("return self.join(y)", "return self.join(y).transpose(0, 1)"))),
    Bug("no_residual", "encoder", "residual.missing", ATTENTION, ATTENTION.replace("x + ", "")),
    Bug("residual_norm", "decoder", "residual.after_norm", ATTENTION, "x = self.norm1(x); x = x + self.dropped(self.attention(x, None, keep, where))"),  # noqa: E501
    Bug("norm_axis", "encoder", "norm.axis", MOMENTS, MOMENTS.replace("(-1", "(1")),
    Bug("norm_unbiased", "encoder", "norm.variance", "unbiased=False", "unbiased=True"),
    Bug("norm_eps", "encoder", "norm.epsilon", "variance + 1e-5", "variance + 0.1"),
    Bug("dropout_eval", "decoder", "dropout.eval", "return self.drop(x)", "return F.dropout(x, self.drop.p)"),  # noqa: E501
    Bug("dropout_train", "decoder", "dropout.train", "return self.drop(x)", "return x", HAND, beside=(  # noqa: E501
        ("self.drop(weights)", "weights"), (SDPA, f"{SDPA[:-5]}0.0)"))),
    Bug("shifted_twice", "decoder", "loss.shift", LOSS, "F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=PAD)"),  # noqa: E501
    Bug("pad_loss", "decoder", "loss.padding", LOSS, LOSS.replace(", ignore_index=PAD", ""), pad=0),
    Bug("eos_loss", "decoder", "loss.eos", "targets.flatten()", "targets.masked_fill(targets == EOS, PAD).flatten()"),  # noqa: E501
    Bug("softmax_loss", "decoder", "loss.softmax", "logits = self.head(self.stack(idx, keep))", "logits = self.head(self.stack(idx, keep)).softmax(-1)"),  # noqa: E501
    Bug("copied_tie", "decoder", "weights.save_load", "self.head.weight = self.stack.embed.weight", "self.head.weight.data = self.stack.embed.weight.data"),  # noqa: E501
    Bug("loud_start", "decoder", "training.initial_loss", "std=width**-0.5", "std=1.0"),
)  # fmt: skip
