"""Planted bugs of sound codecs: convolutions, quantisers, pieces, files."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutants.mutants import Mutant, bug
from tests.parity import test_encodec, test_mimi

KILLERS: dict[str, Callable[[], None]] = {
    "encodec causal": test_encodec.check_causal,
    "encodec trimmed": test_encodec.check_trimmed,
    "encodec stereo": test_encodec.check_stereo,
    "encodec gradients": test_encodec.check_gradients,
    "encodec older names": test_encodec.check_older_names,
    "mimi": test_mimi.check_mimi,
    "mimi split": test_mimi.check_split,
}
HERE = "allformer.codecs.sound"
CONV = f"{HERE}.convolution"
TREE = f"{HERE}.seanet_config:Seanet"
MODEL = f"{HERE}.encodec:EncodecModel"
MIMI = f"{HERE}.mimi"

MUTANTS: list[Mutant] = [
    bug("it looks ahead", "no streaming, and a frame late", f"{CONV}:Convolution.forward",
        "0 if self.trunk.causal else more // 2", "more // 2", "encodec causal", "mimi"),
    bug("the odd sample stands behind", "half a step off in stereo", f"{CONV}:Convolution.forward",
        "else more // 2", "else -(-more // 2)", "encodec stereo"),
    bug("the last step is not filled", "the end of each sound is lost",
        f"{CONV}:Convolution.forward", "-x.shape[-1] % shape.stride", "0",
        "encodec causal", "mimi", raises=(AssertionError, RuntimeError)),
    bug("zeros stay behind a reflection", "short sounds are too long", f"{CONV}:padded",
        "x[..., : x.shape[-1] - lacks]", "x", "encodec causal", raises=RuntimeError),
    bug("zeros for a reflection", "a click where each sound begins", f"{CONV}:padded",
        "return F.pad(x, (before, behind), mode)", "return F.pad(x, (before, behind))",
        "encodec causal"),
    bug("the surplus is cut off before", "all sound is late", f"{CONV}:Upward.forward",
        "math.ceil(more * self.trunk.trim)", "math.floor(more * self.trunk.trim)",
        "encodec trimmed"),
    bug("no weight norm", "other weights than were trained", f"{CONV}:Weighted.weights",
        "torch._weight_norm(self.direction, self.length, 0)", "self.direction",
        "encodec causal", "encodec gradients"),
    bug("a group a channel", "what is loud in one channel is not in the other",
        f"{CONV}:TimeNorm.forward", "x, 1, cast", "x, x.shape[1], cast", "encodec stereo",
        raises=(AssertionError, ValueError)),
    bug("no dilation", "blocks see too little", f"{TREE}.encoder",
        "Residual(width, self.growth**j)", "Residual(width, 1)", "encodec causal"),
    bug("the LSTM alone", "nothing goes past it", f"{HERE}.lstm:LSTM.forward",
        "(steps + out)", "out", "encodec causal", "encodec gradients"),
    bug("the convolution beside a block is left out", "other sound",
        f"{HERE}.seanet:Block.forward", "self.shortcut(x) + y", "x + y", "encodec causal"),
    bug("each book quantises the whole", "books repeat each other", f"{HERE}.books:Books.encode",
        "left = left - self.book(q).look_up(found[-1])", "left = left + 0", "encodec causal",
        "mimi"),
    bug("the first book alone is heard", "more bandwidth is no better",
        f"{HERE}.books:Books.decode", "torch.stack(list(parts)).sum(0)",
        "torch.stack(list(parts))[0]", "encodec causal", "mimi"),
    bug("a book too many", "more bits than were asked for",
        f"{HERE}.config:Encodec.books_of", "math.floor(bandwidth * 1000 / each)",
        "math.ceil(bandwidth * 1000 / each)", "encodec causal"),
    bug("padding is heard", "what stands there comes back", f"{MODEL}._given",
        "x * keep.to(x.device).bool()", "x", "encodec causal", "encodec stereo"),
    bug("the loudest channel's loudness", "scales are off", f"{MODEL}.pieces",
        "piece.mean(1, keepdim=True)", "piece.amax(1, keepdim=True)", "encodec stereo"),
    bug("loudness is not given back", "all pieces are equally loud", f"{MODEL}.join",
        "x * loud.to(x)", "x", "encodec stereo"),
    bug("pieces are not faded", "a click each second", f"{HERE}.overlap:faded",
        "0.5 - (ramp - 0.5).abs()", "torch.ones_like(ramp)", "encodec stereo"),
    bug("a triangle from zero", "the first sample is divided by nothing",
        f"{HERE}.overlap:faded", "[1:-1]", "[:-2]", "encodec stereo"),
    bug("pieces do not overlap", "other codes", f"{HERE}.config:Chunks.stride",
        "(1.0 - self.overlap) * self.length", "self.length", "encodec stereo"),
    bug("means for vectors", "codes stand for what they did once",
        "allformer.families.encodec:BOOK",
        "'vectors': 'embed', 'sums': 'embed_avg'", "'vectors': 'embed_avg', 'sums': 'embed'",
        "encodec causal"),
    bug("older names are forgotten", "Meta's files come back under other names",
        "allformer.checkpoint.save:as_read", "if new != name", "if not name",
        "encodec older names"),
    bug("silence before frames are joined", "the first frame of each sound is off",
        f"{MIMI}:MimiModel.__init__", 'padding="replicate", ', "", "mimi"),
    bug("acoustic books go on from semantic ones", "other codes", f"{MIMI}:MimiModel.choose",
        "self.acoustic.encode(z, ", "self.acoustic.encode(z - self.semantic.decode(codes), ",
        "mimi", "mimi split"),
    bug("sums of codes for their means", "codes that stand for much are far away",
        f"{MIMI}:MeanBook.table", " / widen(self.counts).clamp_min(_LEAST)[:, None]", "", "mimi"),
    bug("an empty code is at infinity", "not a number", f"{MIMI}:MeanBook.table",
        "clamp_min(_LEAST)", "clamp_min(0.0)", "mimi"),
    bug("a window one wider", "Mimi looks too far back", "allformer.families.mimi:_read_stack",
        'fields.take("sliding_window") - 1', 'fields.take("sliding_window")', "mimi"),
    bug("always two frames in one", "another frame rate", "allformer.families.mimi:_read_every",
        "int(math.ceil(rate / trunk.hop) / slow)", "2", "mimi split", raises=RuntimeError),
]  # fmt: skip
