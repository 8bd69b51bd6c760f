"""The two sides of the training benchmarks: peers as users would write them, and our own step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import allformer as af
from allformer.config import EncoderDecoder
from allformer.core.loss import IGNORE
from allformer.core.position import sinusoid
from allformer.train.objectives.seq2seq import PairBatch, Seq2Seq
from allformer.train.step import Stepper, StepSettings

Padded = tuple[Tensor, Tensor, Tensor]  # source, what the decoder reads, labels; 0 is padding
Step = Callable[[Any], Tensor]
# Dropout where torch.nn.Transformer has it: attention weights and the inner layer as well.
EVERYWHERE: Any = {"attention_dropout": 0.1, "feed_dropout": 0.1}


class TorchTransformer(nn.Module):
    """torch.nn.Transformer of a config's size, with the paper's embedding and tied output."""

    def __init__(self, config: EncoderDecoder) -> None:
        super().__init__()
        stack, block = config.encoder, config.encoder.blocks[0]
        self.dim = stack.dim
        self.table = nn.Embedding(stack.source.vocab, stack.dim)
        nn.init.normal_(self.table.weight, std=stack.dim**-0.5)
        self.body = nn.Transformer(
            stack.dim,
            block.attention.heads,
            len(stack.blocks),
            len(config.decoder.blocks),
            block.feed.width,
            block.dropout,
            batch_first=True,
        )
        self.dropout = block.dropout
        self.register_buffer("positions", sinusoid(torch.arange(512), stack.dim), persistent=False)

    def embed(self, ids: Tensor) -> Tensor:
        x = self.table(ids) * math.sqrt(self.dim) + self.positions[: ids.shape[1]]
        return F.dropout(x, self.dropout, self.training)

    def forward(self, source: Tensor, target: Tensor, labels: Tensor, padded: bool) -> Tensor:
        blocked = source == 0 if padded else None
        causal = torch.ones(
            target.shape[1], target.shape[1], dtype=torch.bool, device=source.device
        )
        hidden = self.body(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal.triu(1),
            tgt_is_causal=True,
            src_key_padding_mask=blocked,
            tgt_key_padding_mask=target == 0 if padded else None,
            memory_key_padding_mask=blocked,
        )
        return smoothed_loss(F.linear(hidden, self.table.weight), labels)


class Marian(nn.Module):
    """transformers' MarianMTModel of a config's size."""

    def __init__(self, config: EncoderDecoder) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        stack, block = config.encoder, config.encoder.blocks[0]
        self.model = MarianMTModel(
            MarianConfig(
                vocab_size=stack.source.vocab,
                d_model=stack.dim,
                encoder_layers=len(stack.blocks),
                decoder_layers=len(config.decoder.blocks),
                encoder_attention_heads=block.attention.heads,
                decoder_attention_heads=block.attention.heads,
                encoder_ffn_dim=block.feed.width,
                decoder_ffn_dim=block.feed.width,
                activation_function="relu",
                dropout=block.dropout,
                attention_dropout=block.dropout,
                activation_dropout=block.dropout,
                scale_embedding=True,
                max_position_embeddings=512,
                pad_token_id=0,
                decoder_start_token_id=2,
                eos_token_id=3,
                use_cache=False,
            )
        )

    def forward(self, source: Tensor, target: Tensor, labels: Tensor, padded: bool) -> Tensor:
        out = self.model(
            input_ids=source,
            attention_mask=(source != 0).long() if padded else None,
            decoder_input_ids=target,
            decoder_attention_mask=(target != 0).long() if padded else None,
        )
        return smoothed_loss(out.logits, labels)


def smoothed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1, ignore_index=IGNORE
    )


def peer_step(
    model: nn.Module, padded: bool, *, compiled: bool = False, bf16: bool = False
) -> Step:
    """Forward, backward, fused AdamW: the plain loop."""
    model.train()
    call = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    device = next(model.parameters()).device.type

    def step(batch: Padded) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
            loss = call(*batch, padded)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def our_step(config: EncoderDecoder, device: str, precision: str, compiled: bool) -> Step:
    """The step that `allformer train` runs (it clips gradients as well)."""
    torch.manual_seed(0)
    model: Any = af.build(config, device=device).train()
    stepper = Stepper(model, Seq2Seq(), StepSettings(precision=precision, compile=compiled))

    def step(batch: PairBatch) -> Tensor:
        result = stepper([batch], 1e-4)
        return result.loss

    return step


def to_padded(batch: PairBatch, multiple: int = 1) -> Padded:
    """The same sentences as a grid, its width a multiple of `multiple`."""
    source, target = batch.source_layout, batch.target_layout
    grids = (
        source.to_grid(batch.source),
        target.to_grid(batch.target),
        target.to_grid(batch.labels - IGNORE),
    )
    s, t, y = (F.pad(x, (0, -x.shape[1] % multiple)) for x in grids)
    return s, t, y + IGNORE
