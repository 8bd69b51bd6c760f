"""Bottlenecks in the `adapters` library's files: read, written, and what they compute.

The oracle is transformers' model with the library's formulas hung into its layers by hand, from the
tensors of the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import MethodType

import pytest
import torch
import transformers as hf

import allformer as af
from allformer import tune
from allformer.checkpoint.weights import read_tensors, write_tensors
from allformer.errors import CheckpointError
from tests.loud import make_loud

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
IDS = torch.tensor([[7, 3, 9, 11, 5, 2], [4, 8, 1, 6, 3, 9]])
FORMS = ["houlsby", "pfeiffer", "parallel"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bert")
    config = hf.BertConfig(**SIZES, intermediate_size=32)
    make_loud(hf.BertForSequenceClassification(config), tables=None).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gpt2")
    config = hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=32)
    make_loud(hf.GPT2LMHeadModel(config), tables=None).save_pretrained(path)
    return path


def written(base: Path, folder: Path, form: str, **settings) -> af.core.model.AnyModel:
    """A model with a loud adapter on it, and the files of that."""
    model = af.load(base, dtype=torch.float64)
    method = tune.Bottleneck(form, size=3, act="silu", **{"whole": (), **settings})
    tune.apply(model, method, name="tales", seed=0)
    with torch.no_grad():
        for x in tune.adapter_state(model, "tales").values():
            x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(x.numel())))
    assert af.save_adapter(model, folder, layout="adapters") == "adapters"
    return model.eval()


def necks(folder: Path):
    """`neck("bert.encoder.layer.0.output.adapters")`: the library's own sum, of its tensors."""
    said = json.loads((folder / "adapter_config.json").read_text())
    tensors = torch.load(folder / "pytorch_adapter.bin", weights_only=True)

    def neck(place: str):
        down, low, up, high = (
            tensors[f"{place}.{said['name']}.{end}"].double()
            for end in ("adapter_down.0.weight", "adapter_down.0.bias", "adapter_up.weight",
                        "adapter_up.bias")
        )  # fmt: skip

        def run(x):
            y = torch.nn.functional.silu(x @ down.T + low) @ up.T + high
            return y * said["config"]["scaling"]

        return run

    return neck


def bert_with(folder: Path, base: Path, form: str):
    theirs = hf.BertForSequenceClassification.from_pretrained(base).double().eval()
    neck = necks(folder)
    for i, layer in enumerate(theirs.bert.encoder.layer):
        places = {"output": layer.output, "attention.output": layer.attention.output}
        for name, module in places.items():
            if form != "houlsby" and name != "output":
                continue
            one = neck(f"bert.encoder.layer.{i}.{name}.adapters")

            def forward(self, hidden_states, input_tensor, one=one):
                h = self.dense(hidden_states)
                read = {"houlsby": h, "pfeiffer": self.LayerNorm(h + input_tensor),
                        "parallel": input_tensor}[form]  # fmt: skip
                return self.LayerNorm(h + one(read) + input_tensor)

            module.forward = MethodType(forward, module)
    return theirs


def gpt2_with(folder: Path, base: Path, form: str):
    theirs, neck = hf.GPT2LMHeadModel.from_pretrained(base).double().eval(), necks(folder)
    for i, block in enumerate(theirs.transformer.h):
        seen = {}
        block.ln_2.register_forward_pre_hook(lambda m, args, seen=seen: seen.update(x=args[0]))
        feed = neck(f"transformer.h.{i}.output_adapters.adapters")

        def after(m, args, h, feed=feed, seen=seen):
            return h + feed(h if form == "houlsby" else h + seen["x"])

        block.mlp.register_forward_hook(after)
        if form == "houlsby":
            one = neck(f"transformer.h.{i}.attention_adapters.adapters")
            block.attn.register_forward_hook(
                lambda m, args, out, one=one: (out[0] + one(out[0]), *out[1:])
            )
    return theirs


@pytest.mark.parametrize("form", FORMS)
def test_files_mean_what_the_library_computes_in_bert(form, bert, tmp_path):
    ours = written(bert, tmp_path, form)
    theirs = bert_with(tmp_path, bert, form)
    again = af.load(bert, dtype=torch.float64)
    af.load_adapter(again, tmp_path, name="told")
    with torch.no_grad():
        want = theirs(input_ids=IDS).logits
        plain = af.load(bert, dtype=torch.float64)(input_ids=IDS).logits
        for model in (ours, again.eval(), af.load(tmp_path, dtype=torch.float64)):
            torch.testing.assert_close(model(input_ids=IDS).logits, want, rtol=1e-10, atol=1e-10)
    assert (want - plain).abs().max() > 0.1
    said = json.loads((tmp_path / "adapter_config.json").read_text())["config"]
    assert int(16 // said["reduction_factor"]) == 3
    assert said["non_linearity"] == "swish"


@pytest.mark.parametrize("form", FORMS[:2])
def test_files_mean_what_the_library_computes_in_gpt2(form, gpt2, tmp_path):
    ours = written(gpt2, tmp_path, form)
    theirs = gpt2_with(tmp_path, gpt2, form)
    with torch.no_grad():
        want = theirs(input_ids=IDS).logits
        for model in (ours, af.load(tmp_path, dtype=torch.float64)):
            torch.testing.assert_close(model(input_ids=IDS).logits, want, rtol=1e-9, atol=1e-9)


def test_a_head_lies_beside_and_layers_are_left_out(bert, tmp_path):
    written(bert, tmp_path, "pfeiffer", whole=("head",), layers=(1,))
    keys = torch.load(tmp_path / "pytorch_model_head.bin", weights_only=True)
    assert set(keys) == {"classifier.weight", "classifier.bias"}
    said = json.loads((tmp_path / "adapter_config.json").read_text())
    assert said["config"]["leave_out"] == [0]
    assert json.loads((tmp_path / "head_config.json").read_text())["config"] is None
    again = af.load(tmp_path)
    assert torch.equal(again.head.out.weight, keys["classifier.weight"].float())
    assert again.tuning.adapters["default"].methods[0].layers == (1,)


def test_a_neck_at_cross_attention_is_there_where_the_file_says_so(tmp_path):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 50,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
             "decoder_ffn_dim": 32, "max_position_embeddings": 32}  # fmt: skip
    bart = hf.BartForConditionalGeneration(hf.BartConfig(**sizes))
    make_loud(bart, tables=None).save_pretrained(tmp_path / "bart")
    ours = written(tmp_path / "bart", tmp_path / "out", "houlsby")
    given = {"input_ids": IDS, "decoder_input_ids": IDS}
    with torch.no_grad():
        again = af.load(tmp_path / "out", dtype=torch.float64)
        assert torch.equal(again(**given).logits, ours(**given).logits)
        file, weights = (
            tmp_path / "out" / n for n in ("adapter_config.json", "pytorch_adapter.bin")
        )
        raw, tensors = json.loads(file.read_text()), torch.load(weights, weights_only=True)
        file.write_text(json.dumps({**raw, "config": {**raw["config"], "cross_adapter": False}}))
        torch.save(
            {k: x for k, x in tensors.items() if ".cross_attention_adapters." not in k}, weights
        )
        less = af.load(tmp_path / "out", dtype=torch.float64)
        for path, x in tune.adapter_state(ours, "tales").items():
            x.mul_(0 if ".at.cross.up" in path else 1)
        assert torch.equal(less(**given).logits, ours(**given).logits)


def test_safetensors_and_a_bare_models_names_are_read(bert, tmp_path):
    ours = written(bert, tmp_path, "houlsby")
    tensors = torch.load(tmp_path / "pytorch_adapter.bin", weights_only=True)
    bare = {key.removeprefix("bert."): x for key, x in tensors.items()}
    write_tensors(bare, tmp_path / "adapter.safetensors")
    (tmp_path / "pytorch_adapter.bin").unlink()
    assert read_tensors(tmp_path / "adapter.safetensors").keys() == bare.keys()
    model = af.load(tmp_path, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, ours(input_ids=IDS).logits)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"phm_layer": True}, r"has phm_layer=True, which no bottleneck here has"),
        ({"architecture": "lora"}, r"has architecture='lora'; of the `adapters` library's kinds"),
        ({"mh_adapter": True, "original_ln_before": True}, r"none of double_seq_bn, seq_bn and"),
        ({"non_linearity": "selu"}, r"Bottleneck\.act='selu' is not known"),
        ({"scaling": "learned"}, r"has scaling='learned'; here it must be a number"),
    ],
)
def test_what_is_no_bottleneck_of_ours_is_refused(change, said, bert, tmp_path):
    written(bert, tmp_path, "houlsby" if "non_linearity" in change else "pfeiffer")
    file = tmp_path / "adapter_config.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps({**raw, "config": {**raw["config"], **change}}))
    with pytest.raises(CheckpointError, match=said):
        af.load_adapter(af.load(bert), tmp_path)


def test_an_adapter_of_another_model_is_refused(bert, gpt2, tmp_path):
    written(bert, tmp_path, "pfeiffer")
    with pytest.raises(CheckpointError, match=r"has no transformer\.h\.0\.output_adapters.*of an"):
        af.load_adapter(af.load(gpt2), tmp_path)
    model = af.load(gpt2)
    tune.apply(model, tune.Bottleneck("parallel", size=2), name="tales")
    with pytest.raises(CheckpointError, match=r"they agree in post-norm models alone"):
        af.save_adapter(model, tmp_path / "out", layout="adapters")
    tune.remove(model, "tales")
    tune.apply(model, tune.Lora(2), name="tales")
    with pytest.raises(CheckpointError, match=r"'tales' is no bottleneck alone"):
        af.save_adapter(model, tmp_path / "out", layout="adapters")
