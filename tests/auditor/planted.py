"""Bugs planted into the zoo's sources: (model, what stands there, what is put there, the check).

The zoo's text is changed and run, so each bug is what somebody would have typed.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

SOURCE = (Path(__file__).parent / "zoo.py").read_text(encoding="utf-8")

PLANTED: list[tuple[str, str, str, str]] = [
    # --- who sees whom ---
    ("lecture", "masked_fill(self.tril[:T, :T] == 0, float", "masked_fill(self.tril[:T, :T] == 2, float", "mask.future_leak"),  # noqa: E501
    ("lecture", "masked_fill(self.tril[:T, :T] == 0, float", "masked_fill(self.tril[:T, :T] == 1, float", "mask.inverted"),  # noqa: E501
    ("lecture", 'torch.tril(torch.ones(block_size, block_size)))', 'torch.tril(torch.ones(block_size, block_size), 1))', "mask.off_by_one"),  # noqa: E501
    ("lecture", '== 0, float("-inf"))', "== 0, -100.0)", "mask.finite"),
    ("lecture", '== 0, float("-inf"))', "== 0, -1e9)", "mask.fp16"),
    ("lecture", '== 0, float("-inf"))', "== 0, 0.0)", "mask.future_leak"),
    ("nano", "is_causal=True\n        )", "is_causal=False\n        )", "mask.future_leak"),
    ("nano", "attn_mask=None, dropout_p=self.p if self.training else 0, is_causal=True", "attn_mask=torch.ones(T, T).triu(1).bool()", "mask.inverted"),  # noqa: E501
    ("nano", "attn_mask=None, dropout_p=self.p if self.training else 0, is_causal=True", "attn_mask=torch.ones(T, T, dtype=x.dtype).tril()", "mask.future_leak"),  # noqa: E501
    ("torch decoder", ", mask=mask, is_causal=True", "", "mask.future_leak"),
    ("torch seq2seq", "dtype=torch.bool).triu(1)", "dtype=torch.bool).triu(2)", "mask.off_by_one"),
    ("torch seq2seq", "dtype=torch.bool).triu(1)", "dtype=torch.bool).tril(-1)", "mask.inverted"),
    ("meta llama", '.triu(1)\n            mask = torch.hstack', '.triu(2)\n            mask = torch.hstack', "mask.off_by_one"),  # noqa: E501
    ("alibi", "masked_fill(gap > 0,", "masked_fill(gap < 0,", "mask.inverted"),
    ("alibi", 'masked_fill(gap > 0, float("-inf"))', "masked_fill(gap > 0, -1e4)", "mask.finite"),
    ("masks inside", "torch.tril(torch.ones(trg.shape[1], trg.shape[1])).bool()", "torch.ones(trg.shape[1], trg.shape[1]).bool()", "mask.future_leak"),  # noqa: E501
    # --- scale, softmax, heads ---
    ("lecture", "* k.shape[-1] ** -0.5", "* x.shape[-1] ** -0.5", "attention.scale"),
    ("lecture", "* k.shape[-1] ** -0.5", "", "attention.scale"),
    ("nano", "y = F.scaled_dot_product_attention(\n            q, k,", "y = F.scaled_dot_product_attention(\n            q / math.sqrt(C // self.h), k,", "attention.scale"),  # noqa: E501
    ("annotated", "/ math.sqrt(query.size(-1))", "* math.sqrt(query.size(-1))", "attention.scale"),
    ("annotated", "/ math.sqrt(query.size(-1))", "/ query.size(-1)", "attention.scale"),
    ("meta llama", "/ math.sqrt(self.d)", "/ math.sqrt(self.d * self.h)", "attention.scale"),
    ("plain attention", "(q / math.sqrt(c // self.h))", "q", "attention.scale"),
    ("lecture", "F.softmax(wei, dim=-1)", "F.softmax(wei, dim=1)", "attention.softmax_axis"),
    ("annotated", "scores.softmax(dim=-1)", "scores.softmax(dim=1)", "attention.softmax_axis"),
    ("classifier", "s.softmax(-1)", "s.softmax(-2)", "attention.softmax_axis"),
    ("plain attention", "e / e.sum(-1, keepdim=True)", "e / e.sum(-2, keepdim=True)", "attention.softmax_axis"),  # noqa: E501
    ("nano", "q = q.view(B, T, self.h, C // self.h).transpose(1, 2)", "q = q.contiguous().view(B, self.h, T, C // self.h)", "heads.split"),  # noqa: E501
    ("annotated", "lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)", "lin(x).view(n, self.h, -1, self.d_k)", "heads.split"),  # noqa: E501
    ("classifier", ".reshape(b, t, self.h, -1).permute(0, 2, 1, 3) for", ".reshape(b, self.h, t, -1) for", "heads.split"),  # noqa: E501
    ("nano", "y.transpose(1, 2).contiguous().view(B, T, C)", "y.contiguous().view(B, T, C)", "heads.merge"),  # noqa: E501
    ("plain attention", "(w @ v).transpose(1, 2).reshape(b, t, c)", "(w @ v).reshape(b, t, c)", "heads.merge"),  # noqa: E501
    ("meta llama", "out.transpose(1, 2).contiguous().view(b, t, -1)", "out.reshape(b, t, -1)", "heads.merge"),  # noqa: E501
    ("annotated", "[copy.deepcopy(nn.Linear(d_model, d_model)) for _ in range(4)]", "[nn.Linear(d_model, d_model)] * 4", "attention.shared_projections"),  # noqa: E501
    ("classifier", "self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))", "self.q, self.v, self.o = (nn.Linear(d, d) for _ in range(3)); self.k = self.q", "attention.shared_projections"),  # noqa: E501
    ("plain attention", "for w in (self.wq, self.wk, self.wv)\n", "for w in (self.wq, self.wq, self.wv)\n", "attention.shared_projections"),  # noqa: E501
    ("lecture", "self.proj(torch.cat([h(x) for h in self.heads], dim=-1))", "torch.cat([h(x) for h in self.heads], dim=-1)", "weights.unused"),  # noqa: E501
    ("classifier", "self.n1(x + self.o(y))", "self.n1(x + y)", "attention.output_projection"),
    ("meta llama", "z[:, :, :, None, :].expand(b, z.shape[1], self.kv, self.h // self.kv, self.d)", "z[:, :, None].expand(b, z.shape[1], self.h // self.kv, self.kv, self.d)", "attention.grouped_order"),  # noqa: E501
    # --- layers ---
    ("lecture", "*[LectureBlock(n_embd, n_head, block_size, dropout) for _ in range(n_layer)]", "*[LectureBlock(n_embd, n_head, block_size, dropout)] * n_layer", "layers.reused"),  # noqa: E501
    ("nano", "nn.ModuleList([NanoBlock(c, h, p) for _ in range(layers)])", "nn.ModuleList([NanoBlock(c, h, p)] * layers)", "layers.reused"),  # noqa: E501
    ("meta llama", "nn.ModuleList([MetaBlock(dim, heads, kv) for _ in range(n)])", "nn.ModuleList([copy.deepcopy(x) for x in [MetaBlock(dim, heads, kv)] for _ in range(n)])", "layers.identical"),  # noqa: E501
    # --- positions ---
    ("lecture", " + self.position_embedding_table(torch.arange(T))", " + 0 * self.position_embedding_table(torch.arange(T))", "positions.missing"),  # noqa: E501
    ("nano", "+ self.transformer.wpe(pos))", ")", "positions.missing"),
    ("torch encoder", "self.enc(self.pe(self.emb(tokens))", "self.enc(self.emb(tokens)", "positions.missing"),  # noqa: E501
    ("classifier", " + self.pos.weight[: input_ids.shape[1]]", "", "positions.missing"),
    ("meta llama", "        q, k = apply_rotary(q, k, freqs)\n", "", "positions.missing"),
    ("torch encoder", "self.pe[:, : x.size(1)]", "self.pe[0, : x.size(0)].unsqueeze(1)", "positions.batch_axis"),  # noqa: E501
    ("annotated", "torch.arange(0, d_model, 2) * -(math", "2 * torch.arange(0, d_model, 2) * -(math", "positions.frequencies"),  # noqa: E501
    ("torch encoder", "torch.arange(0, d_model, 2) * -(math", "torch.arange(0, d_model // 2) * -(math", "positions.frequencies"),  # noqa: E501
    ("annotated", "torch.cos(position * div_term)\n        self.register_buffer(\"pe\", pe.unsqueeze(0))", "torch.cos(position * div_term * 0.8)\n        self.register_buffer(\"pe\", pe.unsqueeze(0))", "positions.frequencies"),  # noqa: E501
    ("annotated", "torch.cos(position * div_term)\n        self.register_buffer(\"pe\", pe.unsqueeze(0))", "torch.sin(position * div_term)\n        self.register_buffer(\"pe\", pe.unsqueeze(0))", "positions.frequencies"),  # noqa: E501
    ("meta llama", "torch.view_as_real(k * freqs)", "torch.view_as_real(k * freqs.conj())", "positions.rotary"),  # noqa: E501
    ("meta llama", "torch.view_as_real(k * freqs)", "torch.view_as_real(k)", "positions.rotary"),
    ("annotated", 'self.register_buffer("pe", pe.unsqueeze(0))', "self.pe = pe.unsqueeze(0)", "positions.buffer"),  # noqa: E501
    # --- padding and batches ---
    ("torch encoder", "src_key_padding_mask=src_key_padding_mask)", "src_key_padding_mask=None)", "padding.ignored"),  # noqa: E501
    ("mha encoder", "key_padding_mask=pad_mask", "key_padding_mask=None", "padding.ignored"),
    ("classifier", "attention_mask[:, None, None, :] == 0", "attention_mask[:, None, :, None] == 2", "padding.ignored"),  # noqa: E501
    ("classifier", "attention_mask[:, None, None, :] == 0", "attention_mask[:, None, None, :] == 1", "mask.inverted"),  # noqa: E501
    ("torch seq2seq", "tgt_padding_mask, memory_key_padding_mask,", "tgt_padding_mask, None,", "cross.mask"),  # noqa: E501
    ("annotated", "y = layer(y, tgt_mask, x, src_mask)\n        return F.log", "y = layer(y, tgt_mask, x, None)\n        return F.log", "cross.mask"),  # noqa: E501
    ("masks inside", "y = layer(y, trg_mask, x, src_mask)\n        return self.fc", "y = layer(y, trg_mask, x, None)\n        return self.fc", "cross.mask"),  # noqa: E501
    ("annotated", "self.src_attn(x, memory, memory, src_mask)", "self.src_attn(x, x, x, None)", "cross.unread"),  # noqa: E501
    ("mha encoder", "nn.MultiheadAttention(d, h, 0.1, batch_first=True)", "nn.MultiheadAttention(d, h, 0.1)", "batch.mixing"),  # noqa: E501
    ("torch encoder", '"gelu", batch_first=True, norm', '"gelu", norm', "batch.mixing"),
    # --- blocks ---
    ("lecture", "x = x + self.sa(self.ln1(x))", "x = self.sa(self.ln1(x))", "residual.missing"),
    ("lecture", "return x + self.ffwd(self.ln2(x))", "return self.ffwd(self.ln2(x))", "residual.missing"),  # noqa: E501
    ("alibi", "x = x + a(n1(x))", "x = a(n1(x))", "residual.missing"),
    ("mha encoder", "x = b(x + f2(F.gelu(f1(x))))", "x = b(f2(F.gelu(f1(x))))", "residual.missing"),
    ("annotated", "self.norms[0](x + self.self_attn(x, x, x, mask))", "self.norms[0](self.self_attn(x, x, x, mask))", "residual.missing"),  # noqa: E501
    ("nano", "        x = x + self.attn(self.ln_1(x))\n", "        x = self.ln_1(x)\n        x = x + self.attn(x)\n", "residual.after_norm"),  # noqa: E501
    ("meta llama", "out.pow(2).mean(-1, keepdim=True)", "out.pow(2).mean(1, keepdim=True)", "norm.axis"),  # noqa: E501
    ("meta llama", "out.pow(2).mean(-1, keepdim=True)", "out.pow(2).sum(-1, keepdim=True)", "norm.variance"),  # noqa: E501
    ("meta llama", "eps=1e-6", "eps=0.5", "norm.epsilon"),
    ("classifier", "self.n1, self.n2, self.h = nn.LayerNorm(d), nn.LayerNorm(d), h", "self.n1, self.n2, self.h = nn.LayerNorm([12, d]), nn.LayerNorm(d), h", "norm.axis"),  # noqa: E501
    # --- dropout ---
    ("nano, dropout", "dropout_p=self.p if self.training else 0", "dropout_p=self.p", "dropout.eval"),  # noqa: E501
    ("lecture", "wei = self.dropout(F.softmax(wei, dim=-1))", "wei = F.dropout(F.softmax(wei, dim=-1), 0.2)", "dropout.eval"),  # noqa: E501
    ("alibi", "x = x + f(n2(x))", "x = x + F.dropout(f(n2(x)), 0.1, training=False)", "dropout.train"),  # noqa: E501
    # --- loss ---
    ("nano", "F.cross_entropy(flat, targets.view(-1), ignore_index=-1)", "F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())", "loss.shift"),  # noqa: E501
    ("nano", "F.cross_entropy(flat, targets.view(-1), ignore_index=-1)", "F.cross_entropy(flat.softmax(-1), targets.view(-1))", "loss.softmax"),  # noqa: E501
    ("torch decoder", "self.emb, self.pos = nn.Embedding(V, d), nn", "self.register_forward_hook(lambda m, a, out: out.softmax(-1)); self.emb, self.pos = nn.Embedding(V, d), nn", "loss.softmax"),  # noqa: E501
    # --- state and weights ---
    ("meta llama", "freqs, mask = self.freqs_cis(start, start + t), None", "freqs, mask = self.freqs_cis(0, t), None", "cache.mismatch"),  # noqa: E501
    ("nano", "self.transformer.wte.weight = self.lm_head.weight", "self.transformer.wte.weight.data = self.lm_head.weight.data", "weights.save_load"),  # noqa: E501
    ("mha encoder", "self.head = nn.Linear(d, V)", "self.head = nn.Linear(d, V); self.extra = nn.Linear(d, d)", "weights.unused"),  # noqa: E501
    ("nano", "nn.init.normal_(m.weight, std=0.02)", "nn.init.normal_(m.weight, std=1.0)", "training.initial_loss"),  # noqa: E501
    ("nano", "v, _ = torch.topk(logits, min(top_k, logits.size(-1)))\n                logits[logits < v", "v, _ = torch.topk(-logits, min(top_k, logits.size(-1)))\n                logits[-logits < v", "search.wrong"),  # noqa: E501
]  # fmt: skip


def plant(model: str, old: str, new: str) -> tuple[nn.Module, str]:
    """The model with the bug, and its kind."""
    assert old in SOURCE, f"{model}: {old!r} is not in the zoo"
    text = SOURCE.replace(old, new)
    names: dict[str, object] = {"__name__": "planted"}
    exec(compile(text, "planted zoo", "exec"), names)
    build, kind, _ = names["SOUND"][model]  # type: ignore[index]
    return build(), kind
