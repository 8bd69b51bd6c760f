"""Sound Transformers in many people's styles, none of them from the lab. The auditor says nothing.

Each builder is written as such code is met in public: other names, other shapes, other idioms.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

V = 53


# --- a lecture's GPT: one module for each head ------------------------------------------------------  # noqa: E501


class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size, dropout):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        _B, T, _C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ self.value(x)


class ManyHeads(nn.Module):
    def __init__(self, n_embd, n_head, block_size, dropout):
        super().__init__()
        self.heads = nn.ModuleList(
            [Head(n_embd, n_embd // n_head, block_size, dropout) for _ in range(n_head)]
        )
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([h(x) for h in self.heads], dim=-1)))


class LectureBlock(nn.Module):
    def __init__(self, n_embd, n_head, block_size, dropout):
        super().__init__()
        self.sa = ManyHeads(n_embd, n_head, block_size, dropout)
        self.ffwd = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.ReLU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class LectureGPT(nn.Module):
    def __init__(self, n_embd=30, n_head=5, n_layer=3, block_size=16, dropout=0.2):
        super().__init__()
        self.token_embedding_table = nn.Embedding(V, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(
            *[LectureBlock(n_embd, n_head, block_size, dropout) for _ in range(n_layer)]
        )
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, V)

    def forward(self, idx, targets=None):
        B, T = idx.shape
        x = self.token_embedding_table(idx) + self.position_embedding_table(torch.arange(T))
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        if targets is None:
            return logits, None
        B, T, C = logits.shape
        logits = logits.view(B * T, C)
        return logits, F.cross_entropy(logits, targets.view(B * T))


# --- nanoGPT-like: fused projection, logits of the last position only, greedy generate --------------  # noqa: E501


class FusedCausal(nn.Module):
    def __init__(self, c, h, p):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.attn_dropout, self.resid_dropout = nn.Dropout(p), nn.Dropout(p)
        self.h, self.c, self.p = h, c, p

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.c, dim=2)
        k = k.view(B, T, self.h, C // self.h).transpose(1, 2)
        q = q.view(B, T, self.h, C // self.h).transpose(1, 2)
        v = v.view(B, T, self.h, C // self.h).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=None, dropout_p=self.p if self.training else 0, is_causal=True
        )
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


class NanoBlock(nn.Module):
    def __init__(self, c, h, p):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(c), FusedCausal(c, h, p), nn.LayerNorm(c)
        self.mlp = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c), nn.Dropout(p))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    def __init__(self, c=36, h=3, layers=2, block=24, p=0.0):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(V, c), "wpe": nn.Embedding(block, c), "drop": nn.Dropout(p),
                "h": nn.ModuleList([NanoBlock(c, h, p) for _ in range(layers)]), "ln_f": nn.LayerNorm(c),  # noqa: E501
            }
        )  # fmt: skip
        self.lm_head = nn.Linear(c, V, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, nn.Linear | nn.Embedding):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx, targets=None):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is not None:
            logits = self.lm_head(x)
            flat = logits.view(-1, logits.size(-1))
            return logits, F.cross_entropy(flat, targets.view(-1), ignore_index=-1)
        return self.lm_head(x[:, [-1], :]), None

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None):
        for _ in range(max_new_tokens):
            logits = self(idx)[0][:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
            idx = torch.cat((idx, torch.multinomial(F.softmax(logits, -1), 1)), 1)
        return idx


# --- the Annotated Transformer's shape: masks from outside, post-norm -------------------------------  # noqa: E501


def annotated_attention(query, key, value, mask=None, dropout=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class Annotated(nn.Module):
    def __init__(self, h, d_model, p=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([copy.deepcopy(nn.Linear(d_model, d_model)) for _ in range(4)])
        self.dropout = nn.Dropout(p)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        n = query.size(0)
        query, key, value = (
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        )
        x, self.attn = annotated_attention(query, key, value, mask, self.dropout)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k))


class SinePE(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=200):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])


class AnnotatedLayer(nn.Module):
    def __init__(self, d, h, cross):
        super().__init__()
        self.self_attn, self.src_attn = Annotated(h, d), Annotated(h, d) if cross else None
        self.ff = nn.Sequential(
            nn.Linear(d, 2 * d), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * d, d)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(3 if cross else 2)])

    def forward(self, x, mask, memory=None, src_mask=None):
        x = self.norms[0](x + self.self_attn(x, x, x, mask))
        if self.src_attn is not None:
            x = self.norms[2](x + self.src_attn(x, memory, memory, src_mask))
        return self.norms[1](x + self.ff(x))


class AnnotatedSeq2Seq(nn.Module):
    def __init__(self, d=32, h=4, n=2):
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(V, d), nn.Embedding(V, d)
        self.pe, self.d = SinePE(d), d
        self.enc = nn.ModuleList([AnnotatedLayer(d, h, False) for _ in range(n)])
        self.dec = nn.ModuleList([AnnotatedLayer(d, h, True) for _ in range(n)])
        self.generator = nn.Linear(d, V)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, tgt, src_mask, tgt_mask):
        x = self.pe(self.src_embed(src) * math.sqrt(self.d))
        for layer in self.enc:
            x = layer(x, src_mask)
        y = self.pe(self.tgt_embed(tgt) * math.sqrt(self.d))
        for layer in self.dec:
            y = layer(y, tgt_mask, x, src_mask)
        return F.log_softmax(self.generator(y), dim=-1)


# --- masks made inside from the padding id ----------------------------------------------------------  # noqa: E501


class InsideMasks(nn.Module):
    def __init__(self, d=40, h=5, n=2, pad=1):
        super().__init__()
        self.tok_s, self.tok_t = nn.Embedding(V, d), nn.Embedding(V + 6, d)
        self.pos_s, self.pos_t = nn.Embedding(60, d), nn.Embedding(60, d)
        self.enc = nn.ModuleList([AnnotatedLayer(d, h, False) for _ in range(n)])
        self.dec = nn.ModuleList([AnnotatedLayer(d, h, True) for _ in range(n)])
        self.fc_out, self.src_pad_idx, self.scale = nn.Linear(d, V + 6), pad, d**0.5

    def forward(self, src, trg):
        src_mask = (src != self.src_pad_idx).unsqueeze(1)
        keep = (trg != self.src_pad_idx).unsqueeze(1)
        trg_mask = keep & torch.tril(torch.ones(trg.shape[1], trg.shape[1])).bool()
        x = self.tok_s(src) * self.scale + self.pos_s(torch.arange(src.shape[1]))
        for layer in self.enc:
            x = layer(x, src_mask)
        y = self.tok_t(trg) * self.scale + self.pos_t(torch.arange(trg.shape[1]))
        for layer in self.dec:
            y = layer(y, trg_mask, x, src_mask)
        return self.fc_out(y), self.dec[-1].src_attn.attn


# --- torch's tutorial: (T, B) ------------------------------------------------------------------------  # noqa: E501


class TutorialPE(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=100):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.dropout(x + self.pe[: x.size(0)])


def fresh_layers(stack):
    """nn.TransformerEncoder copies one layer; draw each anew."""
    for p in stack.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return stack


class Tutorial(nn.Module):
    def __init__(self, d=28, h=4, n=2):
        super().__init__()
        self.pos_encoder = TutorialPE(d)
        self.transformer_encoder = fresh_layers(
            nn.TransformerEncoder(nn.TransformerEncoderLayer(d, h, 50, 0.1), n)
        )
        self.embedding, self.d, self.linear = nn.Embedding(V, d), d, nn.Linear(d, V)
        self.embedding.weight.data.uniform_(-0.1, 0.1)

    def forward(self, src, src_mask=None):
        src = self.pos_encoder(self.embedding(src) * math.sqrt(self.d))
        if src_mask is None:
            src_mask = nn.Transformer.generate_square_subsequent_mask(len(src)).to(src)
        return self.linear(self.transformer_encoder(src, src_mask))


class TorchSeq2Seq(nn.Module):
    def __init__(self, d=32, h=2, norm_first=False):
        super().__init__()
        self.transformer = nn.Transformer(
            d, h, 2, 2, 48, batch_first=True, norm_first=norm_first, dropout=0.1
        )
        self.src_tok_emb, self.tgt_tok_emb = nn.Embedding(V, d), nn.Embedding(V, d)
        self.positional_encoding, self.generator = SinePE(d), nn.Linear(d, V)

    def forward(
        self, src, trg, src_padding_mask=None, tgt_padding_mask=None, memory_key_padding_mask=None
    ):
        mask = torch.ones(trg.shape[1], trg.shape[1], dtype=torch.bool).triu(1)
        out = self.transformer(
            self.positional_encoding(self.src_tok_emb(src)),
            self.positional_encoding(self.tgt_tok_emb(trg)),
            None, mask, None, src_padding_mask, tgt_padding_mask, memory_key_padding_mask,
        )  # fmt: skip
        return self.generator(out)


class TorchEncoder(nn.Module):
    def __init__(self, d=36, h=6, pool=False, norm_first=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            d, h, 60, 0.1, "gelu", batch_first=True, norm_first=norm_first
        )
        self.enc = fresh_layers(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        self.emb, self.pe, self.pool = nn.Embedding(V, d, padding_idx=0), SinePE(d), pool
        self.fc = nn.Linear(d, 7 if pool else V)

    def forward(self, tokens, src_key_padding_mask=None):
        x = self.enc(self.pe(self.emb(tokens)), src_key_padding_mask=src_key_padding_mask)
        if self.pool:
            if src_key_padding_mask is None:
                return self.fc(x.mean(1))
            keep = (~src_key_padding_mask).to(x.dtype).unsqueeze(-1)
            return self.fc((x * keep).sum(1) / keep.sum(1))
        return self.fc(x)


class TorchDecoderOnly(nn.Module):
    def __init__(self, d=24, h=3):
        super().__init__()
        layer = nn.TransformerEncoderLayer(d, h, 60, batch_first=True)
        self.blocks = fresh_layers(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        self.emb, self.pos = nn.Embedding(V, d), nn.Parameter(torch.randn(1, 64, d) * 0.02)
        self.out = nn.Linear(d, V)

    def forward(self, x):
        T = x.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(T).to(self.pos)
        return self.out(self.blocks(self.emb(x) + self.pos[:, :T], mask=mask, is_causal=True))


# --- LLaMA-like: complex rotary, grouped keys, RMSNorm, SwiGLU, a cache ------------------------------  # noqa: E501


class RMS(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        out = x.float() if x.dtype != torch.float64 else x
        out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + self.eps)
        return out.type_as(x) * self.weight


def apply_rotary(xq, xk, freqs):
    wide = torch.float64 if xq.dtype == torch.float64 else torch.float32
    q = torch.view_as_complex(xq.to(wide).reshape(*xq.shape[:-1], -1, 2))
    k = torch.view_as_complex(xk.to(wide).reshape(*xk.shape[:-1], -1, 2))
    freqs = freqs[None, :, None].to(q.dtype)
    return (
        torch.view_as_real(q * freqs).flatten(3).type_as(xq),
        torch.view_as_real(k * freqs).flatten(3).type_as(xk),
    )


class MetaAttention(nn.Module):
    def __init__(self, dim, heads, kv):
        super().__init__()
        self.h, self.kv, self.d = heads, kv, dim // heads
        self.wq = nn.Linear(dim, heads * self.d, bias=False)
        self.wk, self.wv = (nn.Linear(dim, kv * self.d, bias=False) for _ in range(2))
        self.wo = nn.Linear(heads * self.d, dim, bias=False)

    def forward(self, x, freqs, mask, past):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.h, self.d)
        k, v = (w(x).view(b, t, self.kv, self.d) for w in (self.wk, self.wv))
        q, k = apply_rotary(q, k, freqs)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        keys, values = (
            z[:, :, :, None, :].expand(b, z.shape[1], self.kv, self.h // self.kv, self.d)
            .reshape(b, z.shape[1], self.h, self.d).transpose(1, 2)
            for z in (k, v)
        )  # fmt: skip
        scores = torch.matmul(q.transpose(1, 2), keys.transpose(2, 3)) / math.sqrt(self.d)
        if mask is not None:
            scores = scores + mask
        out = torch.matmul(
            F.softmax(scores.float() if scores.dtype == torch.bfloat16 else scores, dim=-1).type_as(
                x
            ),
            values,
        )
        return self.wo(out.transpose(1, 2).contiguous().view(b, t, -1)), (k, v)


class MetaBlock(nn.Module):
    def __init__(self, dim, heads, kv):
        super().__init__()
        self.attention = MetaAttention(dim, heads, kv)
        self.attention_norm, self.ffn_norm = RMS(dim), RMS(dim)
        self.w1, self.w3 = (nn.Linear(dim, 2 * dim, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x, freqs, mask, past):
        a, past = self.attention(self.attention_norm(x), freqs, mask, past)
        h = x + a
        y = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(y)) * self.w3(y)), past


class MetaLlama(nn.Module):
    def __init__(self, dim=48, heads=6, kv=2, n=2):
        super().__init__()
        self.tok_embeddings = nn.Embedding(V, dim)
        self.layers = nn.ModuleList([MetaBlock(dim, heads, kv) for _ in range(n)])
        self.norm, self.output, self.hd = RMS(dim), nn.Linear(dim, V, bias=False), dim // heads

    def freqs_cis(self, start, end):
        f = 1.0 / (10000.0 ** (torch.arange(0, self.hd, 2).double() / self.hd))
        a = torch.outer(torch.arange(start, end).double(), f)
        return torch.polar(torch.ones_like(a), a)

    def forward(self, tokens, past_key_values=None, use_cache=False):
        past = past_key_values or [None] * len(self.layers)
        start = 0 if past[0] is None else past[0][0].shape[1]
        t = tokens.shape[1]
        x = self.tok_embeddings(tokens)
        freqs, mask = self.freqs_cis(start, start + t), None
        if t > 1:
            mask = torch.full((t, t), float("-inf"), dtype=x.dtype).triu(1)
            mask = torch.hstack([torch.zeros(t, start, dtype=x.dtype), mask])
        kept = []
        for layer, p in zip(self.layers, past, strict=True):
            x, p = layer(x, freqs, mask, p)
            kept.append(p)
        logits = self.output(self.norm(x))
        return (logits, kept) if use_cache else logits


# --- relative positions without rotation ------------------------------------------------------------  # noqa: E501


class BiasAttention(nn.Module):
    """ALiBi (`buckets=0`) or T5's buckets, by einsum with one weight for all heads."""

    def __init__(self, d, h, buckets, causal):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, h, d, d // h) * (d**-0.5 if not buckets else 0.1))
        self.o = nn.Parameter(torch.randn(h, d // h, d) * d**-0.5)
        self.table = nn.Embedding(2 * buckets + 1, h) if buckets else None
        self.h, self.d, self.buckets, self.causal = h, d // h, buckets, causal
        self.register_buffer("slopes", 2.0 ** -(8 / h * torch.arange(1, h + 1)))

    def forward(self, x):
        q, k, v = torch.einsum("btc,nhcd->nbthd", x, self.w)
        scores = torch.einsum("bihd,bjhd->bhij", q, k)
        n = x.shape[1]
        gap = torch.arange(n)[None] - torch.arange(n)[:, None]
        if self.table is not None:
            bias = self.table(gap.clamp(-self.buckets, self.buckets) + self.buckets).permute(
                2, 0, 1
            )
            scores = scores + bias
        else:
            scores = scores * self.d**-0.5 - self.slopes[:, None, None].to(x) * gap.abs()
        if self.causal:
            scores = scores.masked_fill(gap > 0, float("-inf"))
        return torch.einsum("bhij,bjhd,hdc->bic", scores.softmax(-1), v, self.o)


class BiasModel(nn.Module):
    def __init__(self, buckets=0, causal=True, d=32, h=4):
        super().__init__()
        self.e, self.u = nn.Embedding(V, d), nn.Linear(d, V)
        self.att = nn.ModuleList([BiasAttention(d, h, buckets, causal) for _ in range(2)])
        self.n1, self.n2 = (nn.ModuleList([nn.LayerNorm(d) for _ in range(2)]) for _ in range(2))
        self.ff = nn.ModuleList(
            [nn.Sequential(nn.Linear(d, 60), nn.GELU(), nn.Linear(60, d)) for _ in range(2)]
        )

    def forward(self, x):
        x = self.e(x)
        for a, f, n1, n2 in zip(self.att, self.ff, self.n1, self.n2, strict=True):
            x = x + a(n1(x))
            x = x + f(n2(x))
        return self.u(x)


# --- BERT-like with nn.MultiheadAttention, post-norm, weights returned -------------------------------  # noqa: E501


class MhaEncoder(nn.Module):
    def __init__(self, d=40, h=4, n=2):
        super().__init__()
        self.words, self.places = nn.Embedding(V, d, padding_idx=0), nn.Embedding(50, d)
        self.norm0 = nn.LayerNorm(d, eps=1e-12)
        self.att = nn.ModuleList(
            [nn.MultiheadAttention(d, h, 0.1, batch_first=True) for _ in range(n)]
        )
        self.f1 = nn.ModuleList([nn.Linear(d, 70) for _ in range(n)])
        self.f2 = nn.ModuleList([nn.Linear(70, d) for _ in range(n)])
        self.a, self.b = (nn.ModuleList([nn.LayerNorm(d) for _ in range(n)]) for _ in range(2))
        self.head = nn.Linear(d, V)

    def forward(self, input_tokens, pad_mask=None):
        x = self.norm0(self.words(input_tokens) + self.places(torch.arange(input_tokens.shape[1])))
        for att, f1, f2, a, b in zip(self.att, self.f1, self.f2, self.a, self.b, strict=True):
            x = a(x + att(x, x, x, key_padding_mask=pad_mask)[0])
            x = b(x + f2(F.gelu(f1(x))))
        return self.head(x)


class Classifier(nn.Module):
    """Hugging Face's mask, −inf by hand, the first token pooled."""

    def __init__(self, d=30, h=3):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, d), nn.Embedding(40, d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.n1, self.n2, self.h = nn.LayerNorm(d), nn.LayerNorm(d), h
        self.ff, self.out = (
            nn.Sequential(nn.Linear(d, 50), nn.ReLU(), nn.Linear(50, d)),
            nn.Linear(d, 4),
        )

    def forward(self, input_ids, attention_mask=None):
        x = self.emb(input_ids) + self.pos.weight[: input_ids.shape[1]]
        b, t, c = x.shape
        q, k, v = (
            f(x).reshape(b, t, self.h, -1).permute(0, 2, 1, 3) for f in (self.q, self.k, self.v)
        )
        s = q @ k.mT / (c // self.h) ** 0.5
        if attention_mask is not None:
            s = s.masked_fill(attention_mask[:, None, None, :] == 0, float("-inf"))
        y = (s.softmax(-1) @ v).permute(0, 2, 1, 3).reshape(b, t, c)
        x = self.n1(x + self.o(y))
        x = self.n2(x + self.ff(x))
        return self.out(x[:, 0])


# --- attention by itself -----------------------------------------------------------------------------  # noqa: E501


class PlainAttention(nn.Module):
    """forward(x, mask): softmax written out."""

    def __init__(self, d=24, h=4, causal=False):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (
            nn.Parameter(torch.randn(d, d) * 0.1) for _ in range(4)
        )
        self.h, self.causal = h, causal

    def forward(self, x, mask=None):
        b, t, c = x.shape
        q, k, v = (
            (x @ w).view(b, t, self.h, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        s = (q / math.sqrt(c // self.h)) @ k.transpose(-1, -2)
        if self.causal:
            s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
        if mask is not None:
            s = s.masked_fill(mask == 0, -torch.inf)
        e = torch.exp(s - s.max(-1, keepdim=True).values)
        w = e / e.sum(-1, keepdim=True)
        return (w @ v).transpose(1, 2).reshape(b, t, c) @ self.wo, w


SOUND: dict[str, tuple[Callable[[], nn.Module], str, dict[str, object]]] = {
    "lecture": (LectureGPT, "decoder", {}),
    "lecture, no dropout": (lambda: LectureGPT(dropout=0.0), "decoder", {}),
    "nano": (NanoGPT, "decoder", {}),
    "nano, dropout": (lambda: NanoGPT(p=0.1, h=4), "decoder", {}),
    "annotated": (AnnotatedSeq2Seq, "seq2seq", {}),
    "masks inside": (InsideMasks, "seq2seq", {}),
    "tutorial": (Tutorial, "decoder", {}),
    "torch seq2seq": (TorchSeq2Seq, "seq2seq", {}),
    "torch seq2seq, pre-norm": (lambda: TorchSeq2Seq(norm_first=True), "seq2seq", {}),
    "torch encoder": (TorchEncoder, "encoder", {}),
    "torch encoder, post-norm": (lambda: TorchEncoder(norm_first=False), "encoder", {}),
    "torch classifier": (lambda: TorchEncoder(pool=True), "encoder", {}),
    "torch decoder": (TorchDecoderOnly, "decoder", {}),
    "meta llama": (MetaLlama, "decoder", {}),
    "alibi": (BiasModel, "decoder", {}),
    "alibi encoder": (lambda: BiasModel(causal=False), "encoder", {}),
    "t5 bias": (lambda: BiasModel(buckets=5), "decoder", {}),
    "t5 bias encoder": (lambda: BiasModel(buckets=5, causal=False), "encoder", {}),
    "mha encoder": (MhaEncoder, "encoder", {}),
    "classifier": (Classifier, "encoder", {}),
    "plain attention": (PlainAttention, "attention", {}),
    "causal attention": (lambda: PlainAttention(causal=True), "attention", {}),
    "annotated attention": (lambda: Annotated(4, 32), "attention", {}),
    "lecture attention": (lambda: ManyHeads(30, 5, 16, 0.1), "attention", {}),
    "lecture block": (lambda: LectureBlock(30, 5, 16, 0.1), "block", {}),
    "annotated block": (lambda: AnnotatedLayer(32, 4, False), "block", {}),
}
