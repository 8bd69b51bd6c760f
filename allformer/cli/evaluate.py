"""`allformer evaluate MODEL`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import Device, Dtype, given, pick_dtype, say, show
from allformer.errors import AllformerError

EVALUATE = (
    "Examples: `allformer evaluate runs/m30k --split val --beams 5`; "
    "`allformer evaluate openai-community/gpt2 --data wikitext/test.txt --stride 512`; "
    "`allformer evaluate runs/sst2 --data reviews.tsv`"
)
TRANSLATION = {
    "source": "--source", "target": "--target", "beams": "--beams",
    "length_penalty": "--length-penalty", "lowercase": "--lowercase", "output": "--output",
}  # fmt: skip
WINDOW = {
    "length": "--length", "stride": "--stride", "memory": "--memory", "column": "--column",
}  # fmt: skip
LANGUAGE = ("causal-lm", "causal-lm-memory")  # the objectives whose models foretell a text


def evaluate(
    model: Annotated[str, typer.Argument(help="A run, or any checkpoint: a directory or hub id.")],
    data: Annotated[str | None, typer.Option(help="As for train; default: the run's own.")] = None,
    split: Annotated[
        str | None, typer.Option(help="test, val or train; default: test, else val.")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="By what to score; default: the run's, or the head's.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Of texts: tokens read at once; default: the model's limit.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Of texts: tokens scored in each window; default: half.")
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(help="Of texts: tokens remembered of earlier segments (Transformer-XL)."),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Of texts in records: their column; default: text.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Of pairs: the source language; default: the run's.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of pairs: the target language.")] = None,
    beams: Annotated[int | None, typer.Option(help="1 is greedy; default: the recipe's.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Score = log p / length^penalty; default: the recipe's.")
    ] = None,
    lowercase: Annotated[bool, typer.Option(help="Score translations in lower case.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the translations here.")] = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", help="Change the recipe: data.columns={text: 0}")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for scripts.")] = False,
) -> None:
    """How good a model is, by what it was made for.

    Of a decoder: perplexity, bits per byte and per word of a text, read through a sliding window.
    Of a masked language model: pseudo-perplexity. Of a translator: BLEU (sacreBLEU, with its
    signature), chrF, exact match. Of a classifier, a tagger, a finder of answers: accuracy, F1,
    exact match; of one that sees images: accuracy. A run is scored on its own data unless --data
    names other.
    """
    from allformer.evaluate.objective import open_any, recipe_of, told_objective
    from allformer.train.outputs import check_file

    if output is not None:
        check_file(output)
    pipeline = open_any(model, device=device, dtype=pick_dtype(dtype))
    recipe = recipe_of(pipeline.directory)
    name = objective or (told_objective(pipeline) if recipe is None else recipe.objective)
    asked = given(source=source, target=target, beams=beams, length_penalty=length_penalty)
    asked |= given(output=output)
    asked |= {"lowercase": True} if lowercase else {}
    window = given(length=length, stride=stride, memory=memory, column=column)
    path = None if data is None else absolute(data)
    if name == "seq2seq":
        _refuse(window, WINDOW, "a text that one model reads; a translator has pairs")
        scores = _translations(pipeline, recipe, path, split or "test", asked, set)
        table = "scores_table"
    else:
        _refuse(asked, TRANSLATION, f"translations, not to {name}")
        scores = _figures(pipeline, recipe, name, path, split, window, set)
        table = "figures_table"
    if as_json:
        print(json.dumps(scores, ensure_ascii=False))
        return
    from allformer.cli import tables

    show(getattr(tables, table)(scores))


def _translations(
    pipeline: Any,
    recipe: Any,
    data: str | None,
    split: str,
    asked: dict[str, Any],
    changes: list[str] | None,
) -> dict[str, Any]:
    from allformer.evaluate import check_run, evaluate_run, evaluate_translator
    from allformer.train.corpora import open_split
    from allformer.train.outputs import told
    from allformer.train.recipe import Recipe

    own = "is" in pipeline.raw
    if own or data is None:
        check_run(pipeline)
    recipe = _changed(Recipe() if recipe is None else recipe, changes)
    languages = {name: asked.pop(name) for name in ("source", "target") if name in asked}
    of = replace(recipe.data, **languages, **({} if data is None else {"path": data}))
    pairs = open_split(of, split, new=data is not None)
    output, lowercase = asked.pop("output", None), asked.pop("lowercase", False)
    if "beams" in asked:
        asked["num_beams"] = asked.pop("beams")
    if own:
        scores, outputs = evaluate_run(pipeline, pairs, of.target, lowercase=lowercase, **asked)
    else:
        scores, outputs = evaluate_translator(
            pipeline, pairs, of.source, of.target, lowercase=lowercase, **asked
        )
    if output is not None:
        with told(output, "give another --output"):
            output.write_text("".join(line + "\n" for line in outputs), encoding="utf-8")
    return scores


def _figures(
    pipeline: Any,
    recipe: Any,
    name: str,
    data: str | None,
    split: str | None,
    window: dict[str, Any],
    changes: list[str] | None,
) -> dict[str, Any]:
    from allformer.evaluate.objective import checkpoint_recipe, evaluate_objective

    own = recipe is not None and recipe.objective == name
    if data is None and not own:
        raise AllformerError(
            f"{pipeline.directory} is a {pipeline.architecture} without data of its own; give "
            f"--data: texts for a language model, records for a classifier"
        )
    texts = name in LANGUAGE or (name == "masked-lm" and not own)
    if texts and data is not None:
        if changes:
            raise AllformerError("--set changes a recipe, and a text needs none; leave it out")
        return _texts(pipeline, name, data, split, window)
    _refuse(window, WINDOW, f"a text of --data, not to {name} on a split")
    if own:
        recipe = _changed(recipe, changes)
    else:
        assert data is not None
        recipe = checkpoint_recipe(pipeline, name, data, changes or ())
    return evaluate_objective(pipeline, recipe, data=data, split=split, say=say)


def _texts(
    pipeline: Any, name: str, data: str, split: str | None, window: dict[str, Any]
) -> dict[str, Any]:
    from allformer.evaluate import evaluate_masked, evaluate_texts, open_texts
    from allformer.evaluate.objective import split_files
    from allformer.train.progress import Progress

    paths: Any = data
    if Path(data).is_dir():
        split, paths = split_files(data, split)
    elif split is not None:
        raise AllformerError(f"--split {split}: {data} is a file, all of it; leave --split out")
    masked = name == "masked-lm"
    score = evaluate_masked if masked else evaluate_texts
    if masked:
        odd = given(stride=window.get("stride"), memory=window.get("memory"))
        _refuse(odd, WINDOW, "a decoder; here each token is masked")
    column = window.pop("column", "text")
    bar: list[Progress] = []

    def watch(done: int, total: int) -> None:
        if not bar:
            bar.append(Progress(total, what="scoring", unit="token"))
        if done < total:  # the figures are news enough of the end
            bar[0].update(done)

    try:
        found = score(pipeline, open_texts(paths, column, lines=masked), watch=watch, **window)
    finally:
        for each in bar:
            each.close()
    return {"objective": name, "data": data, **given(split=split), **found}


def _changed(recipe: Any, changes: list[str] | None) -> Any:
    if not changes:
        return recipe
    from allformer.train.plain_yaml import read_yaml
    from allformer.train.recipe import make_recipe

    return make_recipe(read_yaml(recipe.to_yaml(), "recipe"), changes)


def _refuse(asked: dict[str, Any], flags: dict[str, str], what: str) -> None:
    """An option that would do nothing is no option."""
    for name in asked:
        raise AllformerError(f"{flags[name]} belongs to {what}; leave it out")


def absolute(data: str) -> str:
    """Paths are kept in the run's recipe: they must hold from anywhere."""
    if data.startswith("hf:"):
        return data
    return ",".join(str(Path(part.strip()).absolute()) for part in data.split(","))
