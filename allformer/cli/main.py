"""`allformer VERB …`: parse, call, print. `entry` runs it, and tells every error in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from allformer.cli import bench, images, understand, vectors, write
from allformer.cli.audit import audit
from allformer.cli.before import shown_instead
from allformer.cli.common import Device, say, show
from allformer.cli.convert import convert
from allformer.cli.detect import DETECT, detect
from allformer.cli.draw import DRAW, draw
from allformer.cli.entry import run
from allformer.cli.evaluate import EVALUATE, absolute, evaluate
from allformer.cli.help import App, Verbs
from allformer.cli.info import INFO, info
from allformer.cli.replay import REPLAY, replay
from allformer.cli.report import REPORT, report
from allformer.cli.reproduce import REPRODUCE, reproduce
from allformer.cli.segment import SEGMENT, segment
from allformer.cli.sound_tokens import UNITS, units
from allformer.cli.transcribe import TRANSCRIBE, transcribe
from allformer.cli.tune import TUNE, tune
from allformer.errors import AllformerError, ConfigError
from allformer.version import __version__

app = App(
    name="allformer",
    cls=Verbs,
    help="The whole Transformer family from one small core.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"allformer {__version__}")
        raise typer.Exit


@app.callback()
def _all_verbs(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say which it is."),
    ] = False,
) -> None:
    pass


AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, for scripts.")]


@app.command(
    epilog="Examples: `allformer demo --out demo`, then open `demo/report.html` in a browser; "
    "`allformer demo --vision`: models that see, on drawn shapes; "
    "`allformer demo --audio`: models that hear and speak, on synthesised digits"
)
def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the run and report.html go; default: demo, demo-vision or demo-audio."
        ),
    ] = None,
    vision: Annotated[
        bool,
        typer.Option("--vision", help="Pictures instead: drawn shapes, no download, 4 minutes."),
    ] = False,
    audio: Annotated[
        bool,
        typer.Option("--audio", help="Sound instead: spoken digits, no download, 4 minutes."),
    ] = False,
    set: Annotated[
        list[str] | None, typer.Option("--set", help="Change the recipe: train.steps=300")
    ] = None,
    device: Annotated[str, typer.Option(help="The demo is made for a laptop's CPU.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train a small Transformer to translate English into Chinese, in three minutes on a laptop."""
    if vision and audio:
        raise ConfigError("--vision and --audio are two demos; give one of them at a time")
    if audio:
        from allformer.cli.demos import show_audio

        return show_audio(out or Path("demo-audio"), tuple(set or ()), device, as_json)
    if vision:
        from allformer.cli.demos import show_vision

        return show_vision(out or Path("demo-vision"), tuple(set or ()), device, as_json)
    from allformer.demo import demo as run_demo

    out = out or Path("demo")
    result = run_demo(out, overrides=tuple(set or ()), device=device, say=say)
    if as_json:
        print(
            json.dumps({"report": str(result.report), "seconds": result.seconds, **result.scores})
        )
        return
    from allformer.cli.tables import samples_table, scores_table

    show(samples_table(result.samples))
    show(scores_table(result.scores))
    print(f"\n{result.seconds:.0f} s in all. Open {result.report} in a browser.")
    print(f"打开 {result.report} 查看报告（可切换中文）。")
    print(f'Try: allformer translate {out} "Where did your friend buy these two books?"')


@app.command(
    epilog="Examples: `allformer train recipes/multi30k-en-de.yaml --out runs/m30k`; "
    "`allformer train --data corpus/ --source en --target zh --out runs/mine`; "
    "`allformer train recipes/multi30k-en-de.yaml --dry-run`; "
    "`allformer train recipes/smollm2-zh.yaml --show-batch`; "
    "`allformer train --resume runs/mine`; "
    "`allformer train --resume runs/mine --set train.steps=20000` goes on after its end"
)
def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe (YAML).")] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory to write.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A directory (train.en, train.de, val.en, …), A.en,A.de or a .tsv file."),
    ] = None,
    source: Annotated[str | None, typer.Option(help="Source language: en, de, zh, …")] = None,
    target: Annotated[str | None, typer.Option(help="Target language.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run directory.")] = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", help="Change the recipe: section.key=value")
    ] = None,
    allow_changed_data: Annotated[
        bool, typer.Option("--allow-changed-data", help="Resume with other data than before.")
    ] = False,
    device: Device = None,
    compile: Annotated[
        bool | None, typer.Option(help="torch.compile; default: on a GPU only.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print sizes, memory, steps and time; train nothing."),
    ] = False,
    show_batch: Annotated[
        bool,
        typer.Option("--show-batch", help="Print what is learnt of the first batch; no training."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="--dry-run and --show-batch as JSON.")
    ] = False,
    profile: Annotated[
        int, typer.Option(min=0, help="Look at so many steps with torch's profiler.")
    ] = 0,
) -> None:
    """Train what a recipe says: any objective, any model. Ctrl-C saves; --resume goes on."""
    from allformer.train.loop import train as run_training
    from allformer.train.recipe import make_recipe, read_recipe

    if resume is not None:
        if any(x is not None for x in (recipe, out, data, source, target)):
            raise AllformerError(
                "--resume goes on in the run's own directory with its own recipe.yaml; leave out "
                "RECIPE, --out, --data, --source and --target, or start anew without --resume"
            )
        flags = {"--dry-run": dry_run, "--show-batch": show_batch, "--json": as_json}
        if odd := next((flag for flag, given in flags.items() if given), None):
            raise AllformerError(
                f"{odd} is of a run that has not begun; leave it out, or ask "
                f"{resume}/recipe.yaml without --resume"
            )
        run_training(
            None,
            resume,
            device=device,
            resume=True,
            overrides=set or (),
            allow_changed_data=allow_changed_data,
            compile=compile,
            profile=profile,
        )
        return
    if allow_changed_data:
        raise AllformerError("--allow-changed-data belongs to --resume; leave it out")
    overrides = [
        *(set or ()),
        *([f"data.path={json.dumps(absolute(data))}"] if data else ()),
        *([f"data.source={source}"] if source else ()),
        *([f"data.target={target}"] if target else ()),
    ]
    asked = read_recipe(recipe, overrides) if recipe else make_recipe({}, overrides)
    if shown_instead(
        asked, batch=show_batch, plan=dry_run, as_json=as_json, device=device, compile=compile
    ):
        return
    run_training(
        asked, out or Path("runs") / asked.name, device=device, compile=compile, profile=profile
    )


app.command(epilog=TUNE)(tune)
app.command(epilog=INFO)(info)
app.add_typer(bench.app)
app.command(epilog=EVALUATE)(evaluate)
app.command(epilog=REPORT)(report)
app.command(epilog=REPLAY)(replay)
app.command(epilog=REPRODUCE)(reproduce)
app.command(epilog=write.TRANSLATE)(write.translate)
app.command(epilog=write.GENERATE)(write.generate)
app.command(epilog=write.SUMMARISE)(write.summarise)
app.command(name="summarize", hidden=True, epilog=write.SUMMARISE)(write.summarise)
app.command(epilog=understand.FILL)(understand.fill)
app.command(epilog=understand.CLASSIFY)(understand.classify)
app.command(epilog=understand.CHOOSE)(understand.choose)
app.command(epilog=understand.TAG)(understand.tag)
app.command(epilog=understand.ANSWER)(understand.answer)
app.command(epilog=vectors.EMBED)(vectors.embed)
app.command(epilog=vectors.SIMILARITY)(vectors.similarity)
app.command(name="classify-image", epilog=images.CLASSIFY)(images.classify_image)
app.command(epilog=DETECT)(detect)
app.command(epilog=TRANSCRIBE)(transcribe)
app.command(name="embed-image", epilog=images.EMBED)(images.embed_image)
app.command(epilog=DRAW)(draw)
app.command(epilog=SEGMENT)(segment)
app.command(epilog=UNITS)(units)
app.command(
    epilog="Examples: `allformer convert openai-community/gpt2 out --dtype bf16`; "
    "`allformer convert runs/demo out --family marian`; "
    "`allformer convert stories260K.bin out --tokenizer tok512.bin`; "
    "`allformer convert path/to/adapter out --merge`"
)(convert)

app.command(
    epilog="Examples: `allformer audit my_model.py:build --kind decoder`; "
    "`allformer audit checkpoint/`; `allformer audit my_model.py:build --consistency`; "
    "`allformer audit --teach`"
)(audit)


def main() -> None:
    """The console script."""
    sys.exit(run(app, sys.argv[1:]))


if __name__ == "__main__":
    main()
