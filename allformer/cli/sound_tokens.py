"""`allformer units`, and `allformer generate --audio`: sound as units, and sound that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import Device, Model, say, writable, writable_directory
from allformer.errors import AllformerError

UNITS = (
    "Examples: `allformer units openai/whisper-tiny.en --data recordings --out runs/units`; "
    "`allformer units runs/my-whisper --data recordings --clusters 256 --layer 3` (into "
    "runs/my-whisper/units)"
)


def units(
    model: Model,
    data: Annotated[Path, typer.Option(help="A folder of recordings.")],
    clusters: Annotated[int, typer.Option(min=2, metavar="K", help="How many units.")] = 256,
    layer: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="States behind it; default: the last.")
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Read at a time; default: all the model can."),
    ] = None,
    held_out: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Names of recordings to leave out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; default: MODEL/units.")
    ] = None,
    tries: Annotated[int, typer.Option(min=1, metavar="N", help="The best of so many.")] = 1,
    seed: Annotated[int, typer.Option(metavar="N", help="The same one, the same units.")] = 0,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Cluster the hidden states of a model that hears: k-means, on recordings of your own.

    The units, and the layers below them, are written beside the model; recipes of
    objective=sound-tokens name that folder.
    """
    from allformer.audiolm.recordings import find_recordings, split
    from allformer.audiolm.units import FOLDER, fit_recordings
    from allformer.checkpoint.load import load
    from allformer.core.precision import pick_device

    if out is None and not Path(model).is_dir():
        raise AllformerError(f"{model} is no folder here to write into; give --out FOLDER")
    folder = writable_directory(Path(model) / FOLDER if out is None else out)
    found = find_recordings(data, name="--data")
    used = found if held_out is None else split(found, held_out, names=("--held-out", ""))[0]
    heard: Any = load(model, device=pick_device(device))
    made, explained = fit_recordings(
        heard, used, clusters=clusters, layer=layer, seconds=window, tries=tries, seed=seed
    )
    made.save(folder)
    told = {
        "folder": str(folder), "clusters": len(made), "rate": made.rate,
        "recordings": len(used), "explained": explained,
    }  # fmt: skip
    if as_json:
        print(json.dumps(told))
    else:
        say(
            f"{len(made)} units, {made.rate:g} a second, of {len(used):,} recordings; they explain "
            f"{100 * explained:.0f} % of the states' variance. In {folder}"
        )


def go_on(
    model: str,
    audio: Path | None,
    seconds: float,
    out: Path,
    *,
    temperature: float | None,
    top_k: int | None,
    seed: int | None,
    device: str | None,
    as_json: bool,
) -> None:
    """`allformer generate RUN --audio prompt.wav --seconds 5 --out out.wav`."""
    from allformer.audiolm.generate import open_audiolm
    from allformer.sound import describe
    from allformer.sound.write import check_ending
    from allformer.tasks.continue_sound import LONGEST, continue_sound
    from allformer.train.progress import Progress

    if not 0 < seconds <= LONGEST:
        raise AllformerError(f"--seconds {seconds:g} must be above 0, at most {LONGEST:g}; try 5")
    if temperature is not None and temperature <= 0:
        raise AllformerError(
            f"--temperature {temperature:g} must be above 0: sound is drawn, the likeliest is a hum"
        )
    if audio is not None:
        describe(audio)  # one that cannot be read is refused before anything is opened
    check_ending(out)
    writable(out)
    kit = open_audiolm(model, device=device)
    bar = Progress(max(1, round(seconds)), what="seconds", unit="second")
    try:
        found = continue_sound(
            kit, audio, seconds=seconds, temperature=temperature, top_k=top_k, seed=seed or 0,
            progress=lambda done: bar.update(min(round(done), max(1, round(seconds)))),
        )  # fmt: skip
    finally:
        bar.close()
    found.save(out)
    begin, whole = found.begin / found.rate, len(found.wave) / found.rate
    if as_json:
        told = {"file": str(out), "seconds": whole, "begin": begin, "rate": found.rate}
        print(json.dumps(told))
    else:
        given = f", of which the first {begin:.2f} were given" if found.begin else ""
        say(f"{out}: {whole:.2f} seconds{given}")
