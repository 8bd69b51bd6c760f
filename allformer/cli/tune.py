"""`allformer tune MODEL --data FILE --task TASK`: a recipe with defaults, and its training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.before import shown_instead
from allformer.cli.common import Device
from allformer.cli.evaluate import absolute
from allformer.errors import AllformerError

TUNE = (
    "Examples: `allformer tune MODEL --data reviews.csv --task classify`; "
    "`allformer tune MODEL --data chats.jsonl --task sft --rank 16 --out runs/chat`; "
    "`allformer tune MODEL --data ner.conll --task tag --method bitfit`; "
    "`allformer tune MODEL --data prompts.jsonl --task grpo --reward words.py:used`; "
    "`allformer tune VIT --data flowers --task images --new-head`; "
    "`allformer tune WHISPER --data recordings --task transcribe --source zh`; "
    "`allformer tune MODEL --data chats.jsonl --task sft --dry-run`; "
    "`allformer tune MODEL --data chats.jsonl --task sft --show-batch`; "
    "`allformer train --resume runs/chat` goes on; "
    "`allformer generate runs/chat --chat` answers"
)


def tune(
    model: Annotated[str, typer.Argument(help="What to begin with: a directory or a hub id.")],
    data: Annotated[str, typer.Option(help="A file, a pattern, or a directory with splits.")],
    task: Annotated[
        str,
        typer.Option(
            help="sft, classify, tag, answer, embed, translate, summarise, reward, dpo, kto, grpo, "
            "ppo, images, detect, segment or transcribe."
        ),
    ],
    method: Annotated[
        str, typer.Option(help="full, lora, qlora, ia3, bitfit, …: what is trained of the model.")
    ] = "lora",
    rank: Annotated[int | None, typer.Option(help="Of lora; default: 8.")] = None,
    targets: Annotated[
        str | None, typer.Option(help="The layers: q,v or all-linear; default: the method's.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="The learning rate; default: by method and task.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Times through the data.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of an example at most.")] = None,
    validation: Annotated[
        str | None, typer.Option(help="A file to validate on; default: some are held out.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="What the data calls it: label=sentiment")
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(help="Of grpo, ppo: file.py:function, a run (DIR, DIR:label), or command:…"),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Of translate and transcribe: the language read or heard.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of translate: the language said.")] = None,
    quantise: Annotated[
        str | None, typer.Option(help="int8 or int4: how what stays frozen is held.")
    ] = None,
    new_head: Annotated[
        bool,
        typer.Option("--new-head", help="For the data's labels, in the place of the model's own."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The run directory; default: runs/TASK-METHOD.")
    ] = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", help="Change the recipe: tune.dropout=0.05")
    ] = None,
    device: Device = None,
    compile: Annotated[
        bool | None, typer.Option(help="torch.compile; default: on a GPU only.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print memory, steps and time; train nothing.")
    ] = False,
    show_batch: Annotated[
        bool, typer.Option("--show-batch", help="Print what is learnt of the first batch.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="--dry-run and --show-batch as JSON.")
    ] = False,
) -> None:
    """Tune a checkpoint on your data: all weights, or a method that trains few numbers beside them.

    The run opens like any checkpoint, with the verb of its task. Ctrl-C saves.
    """
    from allformer.train.tune_recipe import tune_recipe

    settings: dict[str, Any] = {} if rank is None else {"rank": rank}
    if targets is not None:
        settings["targets"] = targets.split(",") if "," in targets else [targets]
    recipe = tune_recipe(
        str(Path(model).resolve()) if Path(model).is_dir() else model,
        absolute(data),
        task=task,
        method=method,
        settings=settings,
        columns=_columns(column or ()),
        overrides=set or (),
        new_head=new_head,
        rate=rate,
        epochs=epochs,
        length=length,
        validation=validation and absolute(validation),
        source=source,
        target=target,
        rewards=reward or None,
        quantise=quantise,
    )
    if shown_instead(
        recipe, batch=show_batch, plan=dry_run, as_json=as_json, device=device, compile=compile
    ):
        return
    from allformer.train.loop import train

    train(recipe, out or Path("runs") / recipe.name, device=device, compile=compile)


def _columns(given: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        ours, equals, theirs = one.partition("=")
        if not equals or not ours or not theirs:
            raise AllformerError(f"--column {one} is not OURS=THEIRS; try label=sentiment")
        found[ours] = theirs
    return found
