"""`allformer embed` and `allformer similarity`: texts as vectors, and how near they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import (
    AsJson,
    Device,
    Dtype,
    File,
    Model,
    Texts,
    given,
    open_model,
    save_vectors,
    show,
    writable,
)
from allformer.cli.lines import Verb, read_source, run, split_pair, work_through
from allformer.errors import AllformerError

EMBED = (
    'Examples: `allformer embed sentence-transformers/all-MiniLM-L6-v2 "A dog runs." --json`; '
    "`allformer embed MODEL --file sentences.txt --out vectors.npy`"
)
SIMILARITY = (
    'Examples: `allformer similarity MODEL "A dog runs." "A puppy plays."`; '
    "`allformer similarity MODEL --file pairs.tsv > scores.txt` (two texts, a tab between); "
    '`allformer similarity openai/clip-vit-base-patch32 "a cat" "a dog" --image photos/`; '
    '`allformer similarity openai/clip-vit-base-patch32 "a red car" --image photos/ --top 5`'
)
Pooling = Annotated[
    str | None,
    typer.Option(help="mean, cls, max, lasttoken, …; default: the checkpoint's, else mean."),
]
Normalise = Annotated[
    bool | None,
    typer.Option("--normalise/--no-normalise", help="To length 1; default: the checkpoint's."),
]
Prompt = Annotated[str | None, typer.Option(help="Words to put before each text.")]
PromptName = Annotated[str | None, typer.Option(help="One of the checkpoint's prompts: query, …")]
Cut = Annotated[
    bool | None,
    typer.Option(help="Cut texts that are too long; default: as the checkpoint says, or refuse."),
]


def embed(
    model: Model,
    text: Texts = None,
    file: File = None,
    out: Annotated[Path | None, typer.Option(help="Write them as a NumPy array: x.npy")] = None,
    pooling: Pooling = None,
    normalise: Normalise = None,
    prompt: Prompt = None,
    prompt_name: PromptName = None,
    truncate: Cut = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Texts as vectors.

    A line of numbers for each text. What a sentence-transformers directory says (pooling, further
    layers, prompts, the longest text) holds; any other checkpoint gives the mean of its tokens.
    """
    from allformer.cli.views import vector_text
    from allformer.tasks import embed as work

    if out is not None and (as_json or out.suffix != ".npy"):
        raise AllformerError(f"--out {out} writes a NumPy array: give x.npy, and no --json")
    if out is not None:
        writable(out)
    source = read_source(text, file)
    pipeline = open_model(model, device, dtype, head=False)
    options = _options(pooling, normalise, prompt, prompt_name, truncate)
    seen = source.typed and sys.stdout.isatty()
    verb = Verb(
        lambda texts: work(pipeline, texts, **options),
        lambda vector: " ".join(f"{x:.8g}" for x in vector.tolist()),
        lambda text, vector: {"text": text, "vector": vector.tolist()},
        vector_text if seen else None,
    )
    if out is None:
        run(source, verb, as_json=as_json)
    else:
        save_vectors([vector for _, vector in work_through(source, verb, seen=False)], out)


def similarity(
    model: Model,
    text: Texts = None,
    file: Annotated[
        Path | None, typer.Option(help="Lines of two texts with a tab between; .gz is read too.")
    ] = None,
    measure: Annotated[
        str | None, typer.Option(help="cosine, dot, euclidean, manhattan; default: cosine.")
    ] = None,
    pooling: Pooling = None,
    prompt: Prompt = None,
    prompt_name: PromptName = None,
    truncate: Cut = None,
    image: Annotated[
        list[str] | None,
        typer.Option(help="With a CLIP: an image, or a folder of them, against the texts."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --image: the N nearest of each text."),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """How near texts are, by the cosine of their vectors.

    Two texts give a number, more a table; a line of a file (two texts, a tab between) a number.
    With --image, images are compared with texts (of a file: one a line): one text and a folder are
    a search, nearest first; so are one image and several texts.
    """
    from allformer.cli.views import matrix_table
    from allformer.tasks import similarity as work

    options = given(measure=measure) | _options(pooling, None, prompt, prompt_name, truncate)
    if image:
        from allformer.cli.image_texts import compare

        if options:
            raise AllformerError(
                "--image goes with TEXT, --file, --top, --device, --dtype and --json alone"
            )
        compare(model, image, text, file, top, device, dtype, as_json)
        return
    if top is not None:
        raise AllformerError(f"--top {top} is for --image: the nearest images of a text")
    if text and len(text) == 1:
        raise AllformerError("similarity compares texts: give two or more, or --file")
    source = read_source(text, file)
    pipeline = open_model(model, device, dtype, head=False)
    if text and not as_json and len(text) > 2:
        show(matrix_table(text, work(pipeline, text, **options)))
        return
    if text:  # every pair of what was typed
        texts = [f"{a}\t{b}" for i, a in enumerate(text) for b in text[i + 1 :]]
        source = read_source(texts, None)

    def scores(lines: list[str]) -> Any:
        first, second = zip(*map(split_pair, lines), strict=True)
        return work(pipeline, first, second, pairs=True, **options).tolist()

    verb = Verb(
        scores,
        lambda score: f"{score:.6f}",
        lambda line, score: dict(zip("ab", split_pair(line), strict=True)) | {"score": score},
    )
    run(source, verb, as_json=as_json)


def _options(
    pooling: str | None,
    normalise: bool | None,
    prompt: str | None,
    prompt_name: str | None,
    truncate: bool | None,
) -> dict[str, Any]:
    modes = None if pooling is None else [mode.strip() for mode in pooling.split(",")]
    return given(
        pooling=modes,
        normalise=normalise,
        prompt=prompt,
        prompt_name=prompt_name,
        truncate=truncate,
    )
