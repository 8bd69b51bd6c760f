"""The whole original Transformer, forward, in plain NumPy: one line, one formula.

    python docs/lessons/numpy_transformer.py

First attention by hand, number by number, then the same in matrices, then the whole model. The
library's tests compare every step of this file with the fast model, to ten digits.

Legend: B batch, T target length, S source length, h heads, d = d_model, d_k = d/h, V vocabulary.
Masks are True where a query may look.
"""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray
Weights = dict  # names to arrays, nested by part: weights["encoder"][0]["attention"]["W_Q"]
Notes = dict  # what happened on the way: names to arrays


# --- 1. Attention by hand -------------------------------------------------------------------------


def attention_by_hand(
    queries: list[list[float]],
    keys: list[list[float]],
    values: list[list[float]],
    say=lambda text: None,
) -> list[list[float]]:
    """Attention without matrices: only numbers, loops, `exp` and a sum.

    For each query: how well does it fit each key? Turn that into shares that sum to one. Take that
    share of each value.
    """
    d_k = len(keys[0])
    outputs = []
    for i, q in enumerate(queries):
        # 1. scores: one number for each key, q·k / √d_k
        scores = [sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(d_k) for k in keys]
        say(f"query {i}: scores   q·k/√{d_k}               = {_row(scores)}")
        # 2. exp of (score − largest score): the largest becomes exp(0) = 1, nothing overflows
        largest = max(scores)
        exps = [math.exp(s - largest) for s in scores]
        say(f"         exps     exp(s − max)         = {_row(exps)}")
        # 3. weights: divide by the sum, so that they sum to 1
        weights = [e / sum(exps) for e in exps]
        say(f"         weights  exps / sum           = {_row(weights)}  (sum {sum(weights):.3f})")
        # 4. output: the values, each times its weight, added up
        output = [
            sum(w * v[j] for w, v in zip(weights, values, strict=True))
            for j in range(len(values[0]))
        ]
        say(f"         output   Σ weight · value     = {_row(output)}")
        outputs.append(output)
    return outputs


def _row(numbers: list[float]) -> str:
    return "[" + "  ".join(f"{x:6.3f}" for x in numbers) + "]"


# --- 2. The same in matrices ----------------------------------------------------------------------


def softmax(x: Array) -> Array:
    """softmax(x)_j = exp(x_j) / Σ exp(x), over the last axis."""
    # Subtracting the maximum changes nothing in the quotient, but exp(1000) would overflow.
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(q: Array, k: Array, v: Array, mask: Array | None = None) -> tuple[Array, ...]:
    """Attention(Q, K, V) = softmax(Q Kᵀ / √d_k + mask) V                              (eq. 1)

    q … T d_k, k … S d_k, v … S d_v → output … T d_v, weights … T S, scores … T S.
    """
    d_k = q.shape[-1]
    # swapaxes exchanges two axes; NumPy's k.transpose(-2, -1) is an error with three axes or more
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(d_k)  # … T S
    seen = scores if mask is None else np.where(mask, scores, -np.inf)  # forbidden: exp(−∞) = 0
    weights = softmax(seen)  # … T S, each row sums to 1
    return weights @ v, weights, scores


def padding_mask(keep: Array) -> Array:
    """keep B S (1 = a real token) → B 1 1 S: nobody looks at padding, whoever the query is."""
    return keep.astype(bool)[:, None, None, :]


def look_ahead_mask(length: int) -> Array:
    """T T, True on and below the diagonal: token i sees the tokens 0 … i."""
    return np.tril(np.ones((length, length), dtype=bool))


# --- 3. Several heads -----------------------------------------------------------------------------


def split_heads(x: Array, heads: int) -> Array:
    """B T d → B T h d_k → B h T d_k. The transpose is needed: a bare reshape mixes tokens."""
    batch, length, dim = x.shape
    return x.reshape(batch, length, heads, dim // heads).transpose(0, 2, 1, 3)


def merge_heads(x: Array) -> Array:
    """B h T d_k → B T h d_k → B T d: transpose back *before* flattening."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def multi_head(
    x: Array, memory: Array, w: Weights, heads: int, mask: Array | None, notes: Notes, name: str
) -> Array:
    """MultiHead = Concat(head_1, …, head_h) W_O, head_i = Attention(x W_Q, memory W_K, memory W_V).

    Self-attention when memory is x itself; cross-attention when it is the encoder's output.
    """
    q = split_heads(x @ w["W_Q"] + w["b_Q"], heads)  # B h T d_k
    k = split_heads(memory @ w["W_K"] + w["b_K"], heads)  # B h S d_k
    v = split_heads(memory @ w["W_V"] + w["b_V"], heads)  # B h S d_k
    context, weights, scores = attention(q, k, v, mask)
    context = merge_heads(context)  # B T d
    output = context @ w["W_O"] + w["b_O"]  # B T d
    steps = {"q": q, "k": k, "v": v, "scores": scores, "weights": weights}
    for step, value in {**steps, "context": context, "output": output}.items():
        notes[f"{name}.{step}"] = value
    return output


# --- 4. The other parts ---------------------------------------------------------------------------


def positional_encoding(length: int, d_model: int, layout: str = "interleaved") -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/d))"""
    table = np.zeros((length, d_model))
    for pos in range(length):
        for i in range(0, d_model, 2):  # this i *is* the formula's 2i: the exponent is i/d
            angle = pos / 10_000 ** (i / d_model)
            table[pos, i] = math.sin(angle)
            table[pos, i + 1] = math.cos(angle)
    if layout == "halves":  # the same numbers, all sines first
        return np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1)
    return table


def layer_norm(x: Array, w: Weights, eps: float = 1e-5) -> Array:
    """γ ⊙ (x − μ) / √(σ² + ε) + β, over the features of each token"""
    mean = x.mean(axis=-1, keepdims=True)  # μ
    variance = x.var(axis=-1, keepdims=True)  # σ², divided by d and not by d − 1
    return w["gamma"] * (x - mean) / np.sqrt(variance + eps) + w["beta"]


def feed_forward(x: Array, w: Weights, notes: Notes, name: str) -> Array:
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2                                          (eq. 2)"""
    up = x @ w["W_1"] + w["b_1"]  # B T d_ff
    inner = np.maximum(0, up)  # B T d_ff
    output = inner @ w["W_2"] + w["b_2"]  # B T d
    for step, value in {"up": up, "inner": inner, "output": output}.items():
        notes[f"{name}.{step}"] = value
    return output


def sublayer(x: Array, f, norm: Weights, norm_at: str, notes: Notes, name: str) -> Array:
    """post-norm (the paper): norm(x + f(x));  pre-norm: x + f(norm(x))"""
    if norm_at == "pre":
        notes[f"{name}_norm"] = layer_norm(x, norm)
        notes[f"{name}_added"] = x + f(notes[f"{name}_norm"])
        return notes[f"{name}_added"]
    notes[f"{name}_added"] = x + f(x)
    notes[f"{name}_norm"] = layer_norm(notes[f"{name}_added"], norm)
    return notes[f"{name}_norm"]


# --- 5. The whole model ---------------------------------------------------------------------------


def embed(ids: Array, table: Array, layout: str, notes: Notes, name: str) -> Array:
    """E[ids] · √d + PE                                                    (sections 3.4, 3.5)"""
    d_model = table.shape[1]
    notes[f"{name}.tokens"] = table[ids] * math.sqrt(d_model)  # B T d
    notes[f"{name}.positions"] = positional_encoding(ids.shape[1], d_model, layout)  # T d
    notes[f"{name}.embedded"] = notes[f"{name}.tokens"] + notes[f"{name}.positions"]
    return notes[f"{name}.embedded"]


def encoder_layer(
    x: Array, mask: Array, w: Weights, heads: int, norm_at: str, notes: Notes, name: str
) -> Array:
    """Self-attention, then feed-forward; each with its residual and its norm."""

    def look(y: Array) -> Array:
        return multi_head(y, y, w["attention"], heads, mask, notes, f"{name}.attention")

    def feed(y: Array) -> Array:
        return feed_forward(y, w["feed"], notes, f"{name}.feed")

    x = sublayer(x, look, w["attention_norm"], norm_at, notes, f"{name}.attention")
    return sublayer(x, feed, w["feed_norm"], norm_at, notes, f"{name}.feed")


def decoder_layer(
    x: Array,
    mask: Array,
    memory: Array,
    memory_mask: Array,
    w: Weights,
    heads: int,
    norm_at: str,
    notes: Notes,
    name: str,
) -> Array:
    """Masked self-attention, cross-attention (Q from here, K and V from the encoder), feed."""

    def look_back(y: Array) -> Array:
        return multi_head(y, y, w["attention"], heads, mask, notes, f"{name}.attention")

    def look_across(y: Array) -> Array:
        return multi_head(y, memory, w["cross"], heads, memory_mask, notes, f"{name}.cross")

    def feed(y: Array) -> Array:
        return feed_forward(y, w["feed"], notes, f"{name}.feed")

    x = sublayer(x, look_back, w["attention_norm"], norm_at, notes, f"{name}.attention")
    x = sublayer(x, look_across, w["cross_norm"], norm_at, notes, f"{name}.cross")
    return sublayer(x, feed, w["feed_norm"], norm_at, notes, f"{name}.feed")


def transformer(
    source: Array,
    source_keep: Array,
    target: Array,
    target_keep: Array,
    w: Weights,
    *,
    heads: int,
    norm_at: str = "post",
    layout: str = "interleaved",
) -> tuple[Array, Notes]:
    """Source and target ids (B S, B T) and their masks (1 = real) → logits B T V, and the notes."""
    notes: Notes = {}
    # The encoder: every token looks at every real token of its sentence.
    mask = padding_mask(source_keep)  # B 1 1 S
    x = embed(source, w["embedding"], layout, notes, "encoder")  # B S d
    for i, layer in enumerate(w["encoder"]):
        x = encoder_layer(x, mask, layer, heads, norm_at, notes, f"encoder.{i}")
    # Only pre-norm models have a norm here: their sum has not been normalised yet.
    memory = layer_norm(x, w["encoder_norm"]) if "encoder_norm" in w else x
    notes["encoder.output"] = memory

    # The decoder: looks back at itself, across at the encoder's output.
    back = padding_mask(target_keep) & look_ahead_mask(target.shape[1])  # B 1 T T: both allow it
    y = embed(target, w["embedding"], layout, notes, "decoder")  # B T d
    for i, layer in enumerate(w["decoder"]):
        y = decoder_layer(y, back, memory, mask, layer, heads, norm_at, notes, f"decoder.{i}")
    hidden = layer_norm(y, w["decoder_norm"]) if "decoder_norm" in w else y
    notes["decoder.output"] = hidden

    notes["head.logits"] = hidden @ w["embedding"].T  # B T V: the output matrix is the embedding
    return notes["head.logits"], notes


# --- 6. A tiny example ----------------------------------------------------------------------------


def random_weights(vocab: int, d_model: int, d_ff: int, layers: int, seed: int = 0) -> Weights:
    """Weights for a tiny post-norm model."""
    draw = np.random.default_rng(seed)

    def linear(names: tuple[str, str], inputs: int, outputs: int) -> Weights:
        matrix = draw.normal(size=(inputs, outputs)) / math.sqrt(inputs)
        return {names[0]: matrix, names[1]: np.zeros(outputs)}

    def heads() -> Weights:
        return {
            k: v for n in "QKVO" for k, v in linear((f"W_{n}", f"b_{n}"), d_model, d_model).items()
        }

    def feed() -> Weights:
        return linear(("W_1", "b_1"), d_model, d_ff) | linear(("W_2", "b_2"), d_ff, d_model)

    def norm() -> Weights:
        return {"gamma": np.ones(d_model), "beta": np.zeros(d_model)}

    def layer(cross: bool) -> Weights:
        parts = {
            "attention": heads(),
            "attention_norm": norm(),
            "feed": feed(),
            "feed_norm": norm(),
        }
        return parts | ({"cross": heads(), "cross_norm": norm()} if cross else {})

    return {
        "embedding": draw.normal(size=(vocab, d_model)) / math.sqrt(d_model),
        "encoder": [layer(cross=False) for _ in range(layers)],
        "decoder": [layer(cross=True) for _ in range(layers)],
    }


def main() -> None:
    """Print attention by hand and every step of a tiny model."""
    np.set_printoptions(precision=3, suppress=True)
    words = ["the", "cat", "sleeps"]
    vectors = [[1.0, 0.0], [0.5, 1.0], [0.0, 2.0]]  # queries, keys and values alike
    print("1. Attention by hand: three words, vectors of two numbers, Q = K = V\n")
    for word, vector in zip(words, vectors, strict=True):
        print(f"   {word:<7} {_row(vector)}")
    print()
    by_hand = attention_by_hand(vectors, vectors, vectors, say=lambda text: print("  ", text))

    print("\n2. The same in matrices: softmax(Q Kᵀ / √d_k) V\n")
    x = np.array(vectors)
    output, weights, scores = attention(x, x, x)
    for name, value in {"scores": scores, "weights": weights, "output": output}.items():
        print(f"{name} {value.shape}\n{value}\n")
    print("largest difference from the one by hand:", np.abs(output - np.array(by_hand)).max())

    print("\n3. With a look-ahead mask: no word sees a later one\n")
    print(attention(x, x, x, look_ahead_mask(3))[1])

    print("\n4. Positions: PE(pos, 2i) = sin(pos / 10000^(2i/d)), four positions, d = 6\n")
    print(positional_encoding(4, 6))

    print("\n5. The whole model: d = 8, 2 heads, 1 layer; every step and its shape\n")
    source, target = np.array([[5, 6, 7, 3], [8, 3, 0, 0]]), np.array([[2, 9, 4], [2, 5, 0]])
    logits, notes = transformer(
        source, source != 0, target, target != 0, random_weights(11, 8, 16, 1), heads=2
    )
    for name, value in notes.items():
        print(f"   {name:<28} {value.shape}")
    print("\nthe decoder's look back (row 1, head 1), each line sums to 1:")
    print(notes["decoder.0.attention.weights"][0, 0])
    print("\nits look across at the source (row 2, head 1): nothing goes to the padding:")
    print(notes["decoder.0.cross.weights"][1, 0])
    print("\nnext-word probabilities after the target so far (row 1):")
    print(softmax(logits)[0, -1])


if __name__ == "__main__":
    main()
