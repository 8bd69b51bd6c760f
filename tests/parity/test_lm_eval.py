"""The adapter for lm-eval beside its Hugging Face backend, on tiny models and local tasks."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from allformer.errors import TaskError
from tests.tiny import LINES, edit, make

HERE = importlib.util.find_spec("lm_eval") is not None
needs_it = pytest.mark.skipif(not HERE, reason="lm-eval is not installed")
CONTEXTS = [*LINES, "The capital of", "Goethe wrote", "A man is eating food. Two women are playing"]
ANSWERS = (" Paris.", " Faust", " the dog", " in Berlin, and her")
CHOICES = """
task: tiny_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
TEXTS = """
task: tiny_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: bits_per_byte}}]
"""
WRITES = """
task: tiny_writes
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: " Paris"
generation_kwargs: {{until: ["."], max_gen_toks: 12, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


@pytest.mark.skipif(HERE, reason="lm-eval is installed")
def test_without_lm_eval_the_message_says_what_to_install():
    with pytest.raises(ImportError, match=r"pip install 'allformer\[lm-eval\]'"):
        import allformer.lm_eval  # noqa: F401


@pytest.fixture(scope="module", params=["gpt2-", "llama"])
def both(request, tmp_path_factory):
    from lm_eval.models.huggingface import HFLM

    from allformer.lm_eval import AllformerLM

    path = make(tmp_path_factory.mktemp("lm_eval") / request.param, request.param)
    if request.param == "llama":  # the backend cannot write without an end
        edit(path / "tokenizer_config.json", eos_token="<s>")
    asked = {"pretrained": str(path), "dtype": "float64", "device": "cpu"}
    return AllformerLM(**asked, batch_size="auto"), HFLM(**asked, batch_size=3)


def ask(both, kind, arguments):
    from lm_eval.api.instance import Instance

    requests = [Instance(kind, {}, given, i) for i, given in enumerate(arguments)]
    return [getattr(model, kind)(requests, disable_tqdm=True) for model in both]


@needs_it
def test_continuations_are_as_likely(both):
    pairs = [(context, answer) for context in CONTEXTS for answer in ANSWERS]
    pairs += [("", line) for line in LINES]  # without context: after the beginning
    pairs += [(line + "  ", "man") for line in LINES]  # spaces that belong to the answer
    pairs += [(" ".join(LINES * 6), answer) for answer in ANSWERS]  # cut on the left
    pairs += [(context, likeliest(both[1], context)) for context in CONTEXTS]
    found, wanted = ask(both, "loglikelihood", pairs)
    assert [x[1] for x in found] == [x[1] for x in wanted]
    assert any(x[1] for x in wanted)
    assert [x[0] for x in found] == pytest.approx([x[0] for x in wanted], rel=1e-6)


def likeliest(model, context):
    """What the model itself would say next."""
    ids = torch.tensor([model.tok_encode(context)])
    with torch.no_grad():
        return model.tok_decode([int(model.model(ids).logits[0, -1].argmax())])


@needs_it
def test_rows_that_are_read_alike_are_read_once(both, monkeypatch):
    ours, seen = both[0], []
    states = ours._states
    monkeypatch.setattr(ours, "_states", lambda rows: seen.append(len(rows)) or states(rows))
    pairs = [((LINES[0], a), [3, 4, 5], [answer]) for a, answer in enumerate([7, 8, 9])]
    one, two, three = ours._loglikelihood_tokens(pairs, disable_tqdm=True)
    assert sum(seen) == 1
    assert len({one[0], two[0], three[0]}) == 3


@needs_it
def test_whole_texts_are_as_likely(both):
    texts = [(line,) for line in LINES] + [(" ".join(LINES * 4),)]
    found, wanted = ask(both, "loglikelihood_rolling", texts)
    assert found == pytest.approx(wanted, rel=1e-6)


@needs_it
@pytest.mark.parametrize("until", [["."], ["e", " the"], []])
def test_the_same_is_written(both, until):
    options = {"until": until, "max_gen_toks": 10, "do_sample": False}
    asked = [(context, dict(options)) for context in [*CONTEXTS, " ".join(LINES * 6)]]
    found, wanted = ask(both, "generate_until", asked)
    assert found == wanted


@needs_it
def test_a_stop_string_that_began_in_the_context_does_not_stop(both):
    context = "Goethe wrote"
    ours = both[0]
    whole = ours._generate([ours.tok_encode(context)], {}, 8)[0][1]
    until = [f"e{whole[0]}"]  # ends with the answer's first sign, and begins before it
    options = {"until": until, "max_gen_toks": 8, "do_sample": False}
    (found,), (wanted,) = ask(both, "generate_until", [(context, options)])
    assert found == wanted == whole


@needs_it
def test_local_tasks_have_the_scores_of_the_backend(both, tmp_path, monkeypatch):
    import lm_eval
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    file = tmp_path / "test.jsonl"
    rows = [
        {"question": context, "choices": list(ANSWERS), "answer": i % len(ANSWERS)}
        for i, context in enumerate(CONTEXTS)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = {"tiny_choices": CHOICES, "tiny_texts": TEXTS, "tiny_writes": WRITES}
    for name, text in tasks.items():
        (tmp_path / f"{name}.yaml").write_text(text.format(file=file))
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found, wanted = (
        lm_eval.simple_evaluate(model=model, tasks=list(tasks), task_manager=manager)["results"]
        for model in both
    )
    assert found.keys() == wanted.keys() == set(tasks)
    for name in tasks:
        for figure, value in wanted[name].items():
            if isinstance(value, float):
                assert found[name][figure] == pytest.approx(value, rel=1e-6), (name, figure)


@needs_it
def test_what_is_no_decoder_is_refused(tmp_path):
    from allformer.lm_eval import AllformerLM

    with pytest.raises(TaskError, match="takes decoders"):
        AllformerLM(str(make(tmp_path / "bert", "bert-mlm")))
