"""Planted bugs of the families: what a port gets wrong, and the parity check that it fails."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from allformer.errors import AllformerError
from tests.mutants.mutants import Mutant, bug
from tests.parity import test_decoders, test_encoders, test_seq2seq_families, zoo
from tests.property import test_relative

GROUPS = (test_decoders, test_encoders, test_seq2seq_families)
_FOLDER = tempfile.TemporaryDirectory(prefix="mutants")


@cache
def _written(group: ModuleType, name: str) -> Path:
    """The case as transformers writes it, once."""
    return zoo.on_disk(zoo.oracle(group.BY_NAME[name]), Path(_FOLDER.name) / name)


def _check(kind: str, group: ModuleType, name: str, side: str) -> None:
    getattr(group, f"check_{kind}")(name, side, _written(group, name))


def _same(name: str, side: str = "right", kind: str = "forward") -> Callable[[], None]:
    group = next(g for g in GROUPS if name in g.BY_NAME)
    return partial(_check, kind, group, name, side)


KILLERS: dict[str, Callable[[], None]] = {
    "llama": _same("llama grouped queries"),
    "llama stretched": _same("llama every option"),
    "llama squeezed": _same("llama bare, squeezed"),
    "llama classes right": _same("llama classes"),
    "llama answers, trained": _same("llama answers", "right", "training"),
    "gpt2": _same("gpt2 plain"),
    "gpt2, left": _same("gpt2 plain", "left"),
    "bert": _same("Bert"),
    "bert, left": _same("Bert", "left"),
    "bert words": _same("Bert words"),
    "bert pair": _same("Bert pair", "right", "training"),
    "bert several": _same("Bert several", "right", "training"),
    "roberta": _same("Roberta"),
    "roberta, left": _same("Roberta", "left"),
    "roberta classes": _same("Roberta classes"),
    "roberta measures": _same("Roberta measures", "right", "training"),
    "bert answers, trained": _same("Bert span", "right", "training"),
    "albert": _same("Albert"),
    "albert groups": _same("Albert words"),
    "albert classes": _same("Albert classes"),
    "marian": _same("marian plain"),
    "marian, left": _same("marian plain", "left"),
    "bart": _same("bart plain"),
    "bart classes": _same("bart classes"),
    "mbart": _same("mbart plain"),
    "mbart, trained": _same("mbart no first token", "right", "training"),
    "t5": _same("t5 plain"),
    "t5 gated": _same("t5 v1.1, tied"),
    "t5, trained": _same("t5 plain", "right", "training"),
    "rotary is relative": test_relative.check_rotary_is_relative,
    "rotary scaling": test_relative.check_scaling,
    "buckets": test_relative.check_buckets,
    "window": test_relative.check_window,
}
ASIDE = {"raises": (AssertionError, AllformerError)}  # seen when the file is read, or in the result

MUTANTS: list[Mutant] = [
    # --- rotary -----------------------------------------------------------------------------------
    bug("rotary pairs are neighbours", "Meta's layout on Hugging Face's weights",
        "relatives.rotary:Turn.turn",
        "first, second = heads.chunk(2, dim=-1)",
        "first, second = heads[..., ::2], heads[..., 1::2]",
        "llama"),
    bug("rotary turns the other way", "a mirrored position", "relatives.rotary:Turn.turn",
        "second * cos + first * sin", "second * cos - first * sin",
        "llama", "rotary is relative"),
    bug("rotary turns the values too", "positions leak into what is said",
        "attention:Attention.__init__", "attention.heads + attention.groups",
        "attention.heads + 2 * attention.groups", "turned", "llama"),
    bug("rotary turns the queries alone", "absolute, not relative", "attention:Attention.__init__",
        "attention.heads + attention.groups", "attention.heads", "turned", "llama"),
    bug("linear scaling forgotten", "long texts read as longer", "relatives.rotary:frequencies",
        "return plain / scaling.factor", "return plain", "llama squeezed", "rotary scaling"),
    bug("llama3 scaling forgotten", "long texts read as longer", "relatives.rotary:frequencies",
        "turns > scaling.high, plain", "turns > 0, plain", "llama stretched", "rotary scaling"),
    bug("llama3 ramp upside down", "middle frequencies wrong", "relatives.rotary:frequencies",
        "(1 - ramp) * slow + ramp * plain", "(1 - ramp) * plain + ramp * slow",
        "llama stretched", "rotary scaling"),
    bug("rotary exponent without the 2", "frequencies wrong", "relatives.rotary:frequencies",
        "rotary.theta ** (steps / size)", "rotary.theta ** (steps / size / 2)",
        "llama", "rotary scaling"),
    # --- relative buckets -------------------------------------------------------------------------
    bug("decoder has two-sided buckets", "half of the table unused",
        "relatives.bucket:BucketBias.__init__",
        "self.both_sides = not stack.causal", "self.both_sides = True", "t5"),
    bug("encoder has one-sided buckets", "the future is distance 0",
        "relatives.bucket:BucketBias.__init__",
        "self.both_sides = not stack.causal", "self.both_sides = False", "t5"),
    bug("max_distance ignored", "far distances in the wrong bucket", "relatives.bucket:bucket",
        "math.log(max_distance / exact)", "math.log(128 / exact)", "t5", "buckets"),
    bug("distance with the wrong sign", "before is after", "relatives.bucket:Buckets.bias",
        "bucket(places.distance,", "bucket(-places.distance,", "t5"),
    bug("bias for the wrong head", "heads exchanged", "relatives.bucket:Buckets.bias",
        "permute(0, 3, 1, 2)", "permute(0, 3, 2, 1)", "t5"),
    bug("relative bias forgotten", "no word order", "mixers.full:Full._grids",
        "bias = scene.relation.bias(places)", "bias = None", "t5"),
    bug("relative bias without the mask", "sees padding and future", "look:make_look",
        "merged = bias.masked_fill(~merged, float(\"-inf\"))", "merged = bias + 0", "t5"),
    bug("T5 scores scaled", "attention too flat", "allformer.families.t5_config:_read_encoder",
        "scale=1.0", "scale=None", "t5"),
    bug("T5 output not scaled", "logits √d too large", "heads.words:LMHead.prepare",
        "hidden * self.scale", "hidden", "t5"),
    bug("T5 gate and up exchanged", "the activation on the wrong half",
        "allformer.families.t5_map:layer_names",
        '{"feed.up": f"{feed}.wi_1", "feed.gate": f"{feed}.wi_0"}',
        '{"feed.up": f"{feed}.wi_0", "feed.gate": f"{feed}.wi_1"}', "t5 gated"),
    # --- windows ----------------------------------------------------------------------------------
    bug("window one too wide", "sees one token too many", "places:mask_of",
        "distance >= -left", "distance >= -left - 1", "window"),
    bug("window looks the wrong way", "sees after, not before", "places:mask_of",
        "(distance >= -left) & (distance <= right)",
        "(distance >= -right) & (distance <= left)", "window"),
    bug("window forgotten", "all layers are full", "places:mask_of",
        "if reach is not None:", "if False:", "window"),
    # --- sources and positions --------------------------------------------------------------------
    bug("position offset forgotten", "row 0 instead of row 2", "position:Learned.forward",
        "positions + self.config.offset", "positions", "bart"),
    bug("BERT's padding not counted", "left padding shifts positions", "layout:Grid.positions",
        'self.keep is None or count == "all"', "self.keep is None", "bert, left"),
    bug("BERT's padding not counted, packed", "left padding shifts positions",
        "layout:Packed.positions", 'if count == "all"', "if False", "marian, left"),
    bug("RoBERTa counts padding", "positions of padding too", "position:count_ids",
        "real.cumsum(-1) * real - 1", "torch.ones_like(real).cumsum(-1) - 1", "roberta, left"),
    bug("RoBERTa starts one later", "off by one row", "position:count_ids",
        "real.cumsum(-1) * real - 1", "real.cumsum(-1) * real", "roberta"),
    bug("token types forgotten", "sentence A and B alike", "sources.tokens:Tokens.vectors",
        'x + tap(self, "types", self.types(kinds))', "x", "bert"),
    bug("token types always the first", "sentence A and B alike", "sources.tokens:Tokens.vectors",
        'kinds = side.inputs.get("token_type_ids")', "kinds = None", "bert"),
    bug("norm after the embedding forgotten", "states of another size",
        "sources.source:Source.forward",
        "if self.norm is not None:", "if False:", "bert", "bart"),
    bug("scaled by the model's width, not the embedding's", "too loud",
        "sources.tokens:Tokens.__init__",
        "math.sqrt(stack.width) if", "float(stack.width) if", "marian"),
    bug("padding is trained", "nn.Embedding(padding_idx) has no gradient there",
        "sources.tokens:Tokens.vectors", '["input_ids"], self.fixed)', '["input_ids"])',
        "llama answers, trained"),
    bug("ALBERT's layers dealt out in turn", "groups in the wrong order",
        "allformer.families.albert:share", "int(i / (layers / groups))", "i % groups",
        "albert groups", "albert classes"),
    bug("shared layers run once", "too shallow", "stack:Stack.forward",
        "enumerate(self.order)", "enumerate(sorted(set(self.order)))", "albert",
        **{"raises": Exception}),
    bug("final norm forgotten", "states of another size", "stack:Stack.forward",
        "if self.final_norm is not None:", "if False:", "mbart", "gpt2"),
    bug("GPT-2 counts padding", "left padding shifts positions", "layout:Packed.positions",
        'if count == "all"', "if True", "gpt2, left"),
    # --- weights ----------------------------------------------------------------------------------
    bug("q and k exchanged in the file", "transposed attention",
        "allformer.families.layer_map:fused", "list(zip(theirs, sizes, strict=True))",
        "list(zip((theirs[1], theirs[0], *theirs[2:]), sizes, strict=True))",
        "bert", "bart", "t5"),
    bug("biases of q, k and v dropped", "small, everywhere", "allformer.families.layer_map:fused",
        '(("weight", parts), ("bias", with_bias))', '(("weight", parts),)', "bert", **ASIDE),
    bug("Conv1D not transposed", "square matrices load and are wrong",
        "allformer.families.layer_map:dense", "Transposed if transposed else Same", "Same",
        "gpt2", **ASIDE),
    bug("T5's two norms exchanged", "each sub-layer normed by the other's weights",
        "allformer.families.t5_map:layer_names",
        '"attention_norm": "layer.0.layer_norm"', '"attention_norm": f"{last}.layer_norm"',
        "t5", **{"raises": Exception}),
    bug("LLaMA's gate and up exchanged", "the activation on the wrong half",
        "allformer.families.llama:LAYER", "'mlp.gate_proj', 'feed.up': 'mlp.up_proj'",
        "'mlp.up_proj', 'feed.up': 'mlp.gate_proj'", "llama"),
    bug("LLaMA's two norms exchanged", "each sub-layer normed by the other's weights",
        "allformer.families.llama:LAYER", "'attention_norm': 'input_layernorm'",
        "'attention_norm': 'post_attention_layernorm'",
        "llama", **ASIDE),
    bug("BERT's norms exchanged", "each sub-layer normed by the other's weights",
        "allformer.families.bert:LAYER", "'attention_norm': 'attention.output.LayerNorm'",
        "'attention_norm': 'output.LayerNorm'",
        "bert", **{"raises": Exception}),
    bug("GPT-2's exact gelu", "gelu where its approximation belongs",
        "allformer.families.fields:Fields.choice", "return known[value]",
        'return known[value].replace("gelu_tanh", "gelu")', "gpt2"),
    bug("RoBERTa's positions as BERT's", "counted with the padding",
        "allformer.families.roberta:read", 'count="ids"', 'count="all"', "roberta, left"),
    bug("RoBERTa's classifier without tanh", "linear", "allformer.families.roberta:read",
        'dense="tanh"', 'dense="identity"', "roberta classes"),
    bug("a kept problem is forgotten", "another loss", "allformer.families.heads:class_head",
        'fields.raw.get("problem_type") if at != "token" else None', "None", "roberta measures"),
    bug("BERT's padding is trained", "nn.Embedding(padding_idx) has no gradient there",
        "allformer.families.encoder:read_stack", "pad_fixed=True", "pad_fixed=False",
        "bert answers, trained"),
    # --- heads ------------------------------------------------------------------------------------
    bug("final_logits_bias dropped", "some words too likely", "heads.words:LMHead.addend",
        "offset if bias is None else bias + offset", "bias", "bart", "marian"),
    bug("head without its dense layer's activation", "linear before the output",
        "heads.words:Transform.forward", "self.norm(self.act(self.dense(hidden)))",
        "self.norm(self.dense(hidden))", "bert words", "albert groups"),
    bug("head's norm before the activation", "another function", "heads.words:Transform.forward",
        "self.norm(self.act(self.dense(hidden)))", "self.act(self.norm(self.dense(hidden)))",
        "bert words"),
    bug("pooler takes the mean", "another vector", "heads.classes:Pool.forward",
        "hidden[:, 0]", "hidden.mean(1)", "bert", "albert"),
    bug("pooler without tanh", "unbounded", "heads.classes:Pool.forward",
        "self.act(self.dense(hidden[:, 0]))", "self.dense(hidden[:, 0])", "bert"),
    bug("classifies the last column", "padding speaks for the text",
        "heads.classes:ClassHead._last",
        "last(ids != tokens.pad_id)", "last(ids == ids)",
        "llama classes right"),
    bug("classifies the first token", "BART reads the last end", "heads.classes:ClassHead._last",
        "last(ends)", "ends.int().argmax(-1) * 0", "bart classes"),
    bug("classifier without its dense layer's activation", "linear",
        "heads.classes:ClassHead.forward",
        'tap(self, "dense", self.act(self.dense(x)))', 'tap(self, "dense", self.dense(x))',
        "roberta classes", "bart classes"),
    # --- losses and shifting ----------------------------------------------------------------------
    bug("several labels at once as one class", "softmax where sigmoid belongs", "loss:class_sums",
        'if problem == "single_label_classification":', 'if problem != "regression":',
        "bert several",
        **{"raises": Exception}),
    bug("one loss of the pair", "the second is not trained", "heads.several:Several.sums",
        "for name, head in self.each()", "for name, head in list(self.each())[:1]",
        "bert pair"),
    bug("mBART starts with the start token", "the language is lost",
        "model:EncoderDecoderModel.shift_right", "if self.config.start_last:", "if False:",
        "mbart, trained", **ASIDE),
    bug("labels not shifted", "the decoder reads what it must say",
        "model:EncoderDecoderModel.shift_right", "labels.roll(1, dims=-1)", "labels.clone()",
        "t5, trained"),
]  # fmt: skip
