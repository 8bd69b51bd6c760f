"""Planted bugs of codecs: the trunk, the two bottlenecks, the losses."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutants.mutants import Mutant, bug
from tests.parity import test_dvae
from tests.unit import test_codec_learning

KILLERS: dict[str, Callable[[], None]] = {
    "dvae halves": test_dvae.check_halves,
    "dvae bound": test_dvae.check_bound,
    "logit-Laplace": test_dvae.check_laplace,
    "pixels mapped": test_dvae.check_mapping,
    "nearest code": test_dvae.check_vector_quantised,
    "gumbel limits": test_codec_learning.check_limits,
    "gumbel draws": test_codec_learning.check_draws,
    "idle codes": test_codec_learning.check_idle,
    "straight-through": test_codec_learning.check_straight_through,
    "codebook follows": test_codec_learning.check_follows,
    "codebook restarts": test_codec_learning.check_restarts,
    "codebook at rest": test_codec_learning.check_only_training_moves,
}
HERE = "allformer.codecs"
BOOK = f"{HERE}.codebook:Codebook"

MUTANTS: list[Mutant] = [
    bug("blocks by the depth", "what they add is too loud", f"{HERE}.trunk:Bottleneck.__init__",
        "1 / layers**2", "1 / layers", "dvae halves"),
    bug("the path is bent", "nothing is left of the input", f"{HERE}.trunk:Bottleneck.forward",
        "self.id_path(x) + self.gain", "self.id_path(x.relu()) + self.gain", "dvae halves"),
    bug("the scale is shown", "noise for a picture", f"{HERE}.dvae:DVAEModel.picture",
        ".chunk(2, dim=1)[0]", ".chunk(2, dim=1)[1]", "dvae halves"),
    bug("raw pixels in", "the encoder reads what it never saw", f"{HERE}.dvae:DVAEModel.as_input",
        "map_pixels(pixels)", "pixels", "dvae halves"),
    bug("a code's bias is lost", "all colours are off", f"{HERE}.dvae:DVAEModel.vectors",
        " + first.b", "", "dvae halves"),
    bug("half of ε", "white comes back as grey", f"{HERE}.laplace:map_pixels",
        "(1 - 2 * EPSILON)", "(1 - EPSILON)", "pixels mapped", "dvae halves"),
    bug("beyond white", "pixels that no screen has", f"{HERE}.laplace:unmap_pixels",
        ".clamp(0, 1)", "", "pixels mapped"),
    bug("no change of variable", "no density: grey costs most", f"{HERE}.laplace:logit_laplace_nll",
        "log_scale + log_x + log_rest", "log_scale + log_x", "logit-Laplace", "dvae bound"),
    bug("twice as dense", "the bound is log 2 off", f"{HERE}.laplace:logit_laplace_nll",
        " + math.log(2)", "", "logit-Laplace", "dvae bound"),
    bug("b and not 1/b", "sure where it should doubt", f"{HERE}.laplace:logit_laplace_nll",
        "(-log_scale).exp()", "log_scale.exp()", "logit-Laplace", "dvae bound"),
    bug("KL with the wrong sign", "codes are driven apart", f"{HERE}.gumbel:divergence",
        "+ (log_q.exp()", "- (log_q.exp()", "dvae bound"),
    bug("noise upside down", "codes are not drawn as they are scored",
        f"{HERE}.gumbel:gumbel_noise", "-torch.empty_like", "torch.empty_like", "gumbel draws"),
    bug("temperature inverted", "annealing makes codes soft", f"{HERE}.gumbel:relaxed",
        "/ temperature).softmax", "* temperature).softmax", "gumbel limits", "dvae bound"),
    bug("each image is to use all codes", "no choice may be sure", f"{HERE}.gumbel:idleness",
        "torch.special.xlogy(share, share)", "(torch.special.xlogy(use, use) / len(use))",
        "idle codes"),
    bug("the gradient twice", "the encoder is pulled twice as hard",
        f"{HERE}.gumbel:straight_through", "+ soft - soft.detach()",
        "+ 2 * (soft - soft.detach())", "straight-through"),
    bug("long codes are near", "one code wins all", f"{HERE}.codebook:nearest",
        "book.square().sum(-1) - 2 *", "-2 *", "nearest code"),
    bug("no way through", "the encoder never learns", f"{HERE}.vqvae:VQVAEModel.learn",
        "(near - z).detach()", "(near - z)", "nearest code"),
    bug("new for old", "the codebook jumps with each batch", f"{BOOK}.follow",
        "self.sums.lerp_(total, 1 - decay)", "self.sums.lerp_(total, decay)", "codebook follows"),
    bug("sums for means", "codes grow without end", f"{BOOK}.follow",
        "self.sums / smooth[:, None]", "self.sums", "codebook follows"),
    bug("the living begin anew", "codes never settle", f"{BOOK}.follow",
        "self.counts < restart", "self.counts > restart", "codebook restarts"),
    bug("to look is to learn", "a page of statistics changes the run",
        f"{HERE}.vqvae:VQVAEModel.learn", "self.training and not listening()", "self.training",
        "codebook at rest"),
]  # fmt: skip
