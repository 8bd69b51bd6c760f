"""Tasks on images give what transformers gives, in Python and from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from typer.testing import CliRunner

import allformer as af
from allformer.cli.images import chunk_of
from allformer.cli.main import app
from allformer.errors import ConfigError, DataError, LengthError, TaskError
from tests import seeing

CLOSE = 2e-6  # fp32 on both sides
WORDS = ["a cat", "two dogs", "ship"]


@pytest.fixture(scope="module")
def there(tmp_path_factory) -> Path:
    hf.logging.disable_progress_bar()
    root = tmp_path_factory.mktemp("seeing")
    seeing.vit(root / "vit")
    seeing.vit(root / "bare", hf.ViTModel)
    seeing.clip(root / "clip")
    seeing.pictures(root / "photos")
    return root


def photos(root: Path) -> list[str]:
    return sorted(map(str, (root / "photos").iterdir()))


def same(ours, theirs) -> None:
    assert [one.label for one in ours] == [one["label"] for one in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert abs(a.score - b["score"]) < CLOSE


def test_classify_image_gives_the_pipelines_labels_and_scores(there):
    model = hf.ViTForImageClassification.from_pretrained(there / "vit")
    processor = ViTImageProcessorPil.from_pretrained(there / "vit")
    pipe = hf.pipeline("image-classification", model=model, image_processor=processor)
    found = af.classify_image(there / "vit", photos(there), top=3, batch=2)
    for path, ours in zip(photos(there), found, strict=True):
        same(ours, pipe(path, top_k=3))
    assert len({ours[0].score for ours in found}) == 5
    kit = af.open_image_pipeline(there / "vit")
    same(af.classify_image(kit, photos(there)), [ours[0].to_dict() for ours in found])
    opened = Image.open(photos(there)[1])
    for image in (photos(there)[1], opened, np.array(opened), Path(photos(there)[1]).read_bytes()):
        same([af.classify_image(kit, image)], [found[1][0].to_dict()])
        same(af.classify_image(kit, image, top=2), [one.to_dict() for one in found[1][:2]])
    assert af.classify_image(kit, []) == []


@pytest.mark.parametrize(
    "kind",
    [
        hf.DeiTForImageClassification, hf.DeiTForImageClassificationWithTeacher,
        hf.Dinov2ForImageClassification,
    ],
    ids=lambda kind: kind.__name__,
)  # fmt: skip
def test_other_families_that_see_are_classified_and_embedded_too(kind, tmp_path):
    seeing.vit(tmp_path / "model", kind)
    paths = seeing.pictures(tmp_path / "photos", 3)
    model = kind.from_pretrained(tmp_path / "model")
    processor = ViTImageProcessorPil.from_pretrained(tmp_path / "model")
    inputs = processor([Image.open(path) for path in paths], return_tensors="pt")
    with torch.no_grad():
        scores = model(**inputs).logits.softmax(-1)
        states = getattr(model, model.base_model_prefix)(**inputs).last_hidden_state
    kit = af.open_image_pipeline(tmp_path / "model")
    for ours, row in zip(af.classify_image(kit, paths, top=3), scores.tolist(), strict=True):
        theirs = [{"label": seeing.LABELS[i], "score": x} for i, x in enumerate(row)]
        same(ours, sorted(theirs, key=lambda one: -one["score"]))
    torch.testing.assert_close(af.embed_image(kit, paths), states[:, 0], atol=1e-5, rtol=1e-5)
    front = kit.model.config.encoder.source.front
    mean = af.embed_image(kit, paths, pooling="mean")
    torch.testing.assert_close(mean, states[:, front:].mean(1), atol=1e-5, rtol=1e-5)


def test_siglip_reads_rows_filled_up_and_scores_each_pair_by_itself(there, tmp_path):
    path, photo = seeing.siglip(tmp_path / "siglip"), photos(there)[0]
    kit = af.open_image_pipeline(path)
    texts = [f"This is a photo of {word}." for word in WORDS]
    ids = hf.CLIPTokenizer.from_pretrained(path)(
        texts, padding="max_length", max_length=48, return_tensors="pt"
    ).input_ids
    pixels = kit.processor([photo])
    theirs = hf.SiglipModel.from_pretrained(path).eval()
    with torch.no_grad():
        out = theirs(input_ids=ids, pixel_values=pixels)
    found = {x.label: x.score for x in af.classify_image(kit, photo, labels=WORDS, top=len(WORDS))}
    wanted = dict(zip(WORDS, out.logits_per_image[0].sigmoid().tolist(), strict=True))
    assert found == pytest.approx(wanted, abs=2e-6)
    vector = af.embed_image(kit, photo)
    torch.testing.assert_close(vector, out.image_embeds[0], atol=2e-6, rtol=0)


def test_zero_shot_gives_the_pipelines_labels_and_scores(there):
    pipe = hf.pipeline(
        "zero-shot-image-classification",
        model=hf.CLIPModel.from_pretrained(there / "clip"),
        tokenizer=hf.CLIPTokenizer.from_pretrained(there / "clip"),
        image_processor=CLIPImageProcessorPil.from_pretrained(there / "clip"),
    )
    kit = af.open_image_pipeline(there / "clip")
    found = af.classify_image(kit, photos(there), labels=WORDS, top=3, batch=2)
    for path, ours in zip(photos(there), found, strict=True):
        same(ours, pipe(path, candidate_labels=WORDS))
    told = af.classify_image(kit, photos(there)[0], labels=WORDS, template="look: {}!", top=3)
    same(told, pipe(photos(there)[0], candidate_labels=WORDS, hypothesis_template="look: {}!"))


def test_similarity_is_the_cosine_of_both_towers_vectors(there):
    model = hf.CLIPModel.from_pretrained(there / "clip")
    tokens = hf.CLIPTokenizer.from_pretrained(there / "clip")(
        WORDS, padding=True, return_tensors="pt"
    )
    processor = CLIPImageProcessorPil.from_pretrained(there / "clip")
    images = [Image.open(path) for path in photos(there)]
    with torch.no_grad():
        out = model(**tokens, **processor(images, return_tensors="pt"))
    kit = af.open_image_pipeline(there / "clip")
    found = af.image_similarity(kit, photos(there), WORDS)
    torch.testing.assert_close(found, out.image_embeds @ out.text_embeds.T, atol=CLOSE, rtol=0)
    one = af.image_similarity(kit, photos(there)[2], WORDS)
    torch.testing.assert_close(one, found[2], atol=CLOSE, rtol=0)
    assert torch.allclose(
        af.image_similarity(kit, photos(there), WORDS[1]), found[:, 1], atol=CLOSE
    )
    torch.testing.assert_close(
        af.embed_image(kit, photos(there), batch=2), out.image_embeds, atol=CLOSE, rtol=0
    )


@pytest.mark.parametrize("name", ["vit", "bare"])
def test_embed_image_gives_the_last_state_of_cls_or_the_mean_of_the_patches(there, name):
    kind = {"vit": hf.ViTForImageClassification, "bare": hf.ViTModel}[name]
    model = kind.from_pretrained(there / name)
    images = [Image.open(path) for path in photos(there)]
    processor = ViTImageProcessorPil.from_pretrained(there / name)
    with torch.no_grad():
        body = getattr(model, "vit", model)
        states = body(**processor(images, return_tensors="pt")).last_hidden_state
    kit = af.open_image_pipeline(there / name)
    found = af.embed_image(kit, photos(there), batch=2)
    torch.testing.assert_close(found, states[:, 0], atol=1e-5, rtol=1e-5)
    mean = af.embed_image(kit, photos(there), pooling="mean", normalise=True)
    wanted = torch.nn.functional.normalize(states[:, 1:].mean(1), dim=-1)
    torch.testing.assert_close(mean, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(af.embed_image(kit, photos(there)[3]), found[3])


def test_a_fresh_vit_of_ours_is_saved_with_its_processor_and_sees(tmp_path):
    from allformer import config
    from allformer.images import Processor
    from allformer.images.settings import make_settings

    attention = config.Attention(heads=2)
    block = config.Block(attention, config.Feed(32, act="gelu"), norm_at="pre")
    source = config.Patches(4, channels=1, image=(28, 28))
    stack = config.Stack(16, source, config.LearnedPlane(source.shape, source.placed), (block,) * 2)
    head = config.ClassHead(("shoe", "shirt"), at="first")
    af.save(af.build(config.EncoderOnly(stack, head), seed=0), tmp_path, family="allformer")
    raw = {"image_processor_type": "ViTImageProcessor", "size": 28, "image_mean": [0.5],
           "image_std": [0.5]}  # fmt: skip
    Processor(make_settings(raw)).save(tmp_path)
    kit = af.open_image_pipeline(tmp_path)
    found = af.classify_image(kit, [Image.new("L", (28, 28)), Image.new("RGB", (90, 50))], top=2)
    assert [{one.label for one in each} for each in found] == [{"shoe", "shirt"}] * 2
    assert af.embed_image(kit, Image.new("L", (28, 28))).shape == (16,)


def test_what_a_checkpoint_cannot_is_refused_with_what_it_can(there, tmp_path):
    photo = photos(there)[0]
    with pytest.raises(
        TaskError, match=r"classify-image needs .*is a ViTModel: it can embed-image"
    ):
        af.classify_image(there / "bare", photo)
    with pytest.raises(TaskError, match=r"--labels needs a model of texts and images \(CLIP\)"):
        af.classify_image(there / "vit", photo, labels=WORDS)
    with pytest.raises(TaskError, match=r"similarity --image needs .*it can classify-image, embed"):
        af.image_similarity(there / "vit", photo, WORDS)
    with pytest.raises(TaskError, match=r"classify-image needs .*can classify-image --labels"):
        af.classify_image(there / "clip", photo)
    with pytest.raises(TaskError, match="reads images, not text; try `allformer classify-image`"):
        af.classify(there / "vit", "a text")


def test_options_that_cannot_be_are_refused(there):
    kit, photo = af.open_image_pipeline(there / "clip"), photos(there)[0]
    for options, said in (
        ({"labels": []}, "must be one or more texts"),
        ({"labels": ["a"], "template": "a photo"}, "where a label goes"),
        ({"labels": ["a"], "top": 0}, "top=0 must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=said):
            af.classify_image(kit, photo, **options)
    with pytest.raises(ConfigError, match="pooling='max' is not known; try cls, mean"):
        af.embed_image(kit, photo, pooling="max")
    with pytest.raises(LengthError, match=r"has \d+ tokens, but CLIPModel takes 48; say it in"):
        af.image_similarity(kit, photo, ["a", "long " * 30])
    with pytest.raises(DataError, match=r"gone.png is not there"):
        af.embed_image(kit, [photo, "gone.png"])


def run(*args: object, **options):
    return CliRunner().invoke(app, [str(x) for x in args], **options)


def test_the_command_line_classifies_files_folders_and_lists(there):
    found = af.classify_image(there / "vit", photos(there), top=2)
    lines = run("classify-image", there / "vit", there / "photos", "--top", 2, "--json").output
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [row["image"] for row in rows] == photos(there)
    assert [row["labels"] for row in rows] == [[x.to_dict() for x in each] for each in found]
    told = run("classify-image", there / "vit", "--top", 1, input="\n".join(photos(there))).output
    assert told.splitlines() == [f"{each[0].label}\t{each[0].score:.6f}" for each in found]
    table = run("classify-image", there / "vit", photos(there)[0]).output
    assert all(name in table for name in seeing.LABELS.values())
    zero = run(
        "classify-image", there / "clip", photos(there)[0], "--labels", "a cat, ship", "--json"
    )
    assert {x["label"] for x in json.loads(zero.output)["labels"]} == {"a cat", "ship"}


def test_the_command_line_embeds_and_compares(there, tmp_path):
    vectors = af.embed_image(there / "vit", photos(there))
    assert (
        run("embed-image", there / "vit", there / "photos", "--out", tmp_path / "x.npy").exit_code
        == 0
    )
    assert np.array_equal(np.load(tmp_path / "x.npy"), vectors.numpy())
    line = run("embed-image", there / "vit", photos(there)[0], "--json").output
    assert json.loads(line)["vector"] == vectors[0].tolist()
    scores = af.image_similarity(there / "clip", photos(there), WORDS)
    pairs = run("similarity", there / "clip", *WORDS, "--image", there / "photos", "--json").output
    told = [json.loads(line)["score"] for line in pairs.splitlines()]
    assert told == scores.flatten().tolist()
    search = run("similarity", there / "clip", "ship", "--image", there / "photos", "--json").output
    order = [photos(there)[i] for i in scores[:, 2].argsort(descending=True).tolist()]
    assert [json.loads(line)["image"] for line in search.splitlines()] == order
    assert order != photos(there)
    one = run("similarity", there / "clip", "ship", "--image", photos(there)[0]).output
    assert abs(float(one) - scores[0, 2].item()) < 1e-5
    assert (
        "two dogs" in run("similarity", there / "clip", *WORDS, "--image", photos(there)[0]).output
    )


def test_a_search_gives_the_nearest_images_of_a_text_and_texts_of_an_image(there):
    kit, paths = af.open_image_pipeline(there / "clip"), photos(there)
    scores = af.image_similarity(kit, paths, WORDS)
    found = af.search_images(kit, WORDS[2], paths, top=2)
    order = scores[:, 2].argsort(descending=True).tolist()
    assert [match.index for match in found] == order[:2]
    assert found[0].found == paths[order[0]]
    assert found[0].score == pytest.approx(scores[:, 2].max().item(), abs=1e-5)
    every = af.search_images(kit, WORDS, paths)
    assert [x.index for x in every[2]] == order
    texts = af.search_texts(kit, paths, WORDS, top=1)
    assert [x[0].found for x in texts] == [WORDS[i] for i in scores.argmax(1).tolist()]
    assert af.search_texts(kit, paths[1], WORDS)[0].index == texts[1][0].index
    with pytest.raises(ConfigError, match="top=0"):
        af.search_images(kit, "a", paths, top=0)


@pytest.mark.parametrize("batch", [1, 8])
def test_one_picture_that_cannot_be_read_does_not_keep_the_others_waiting(there, tmp_path, batch):
    folder = tmp_path / "photos"
    shutil.copytree(there / "photos", folder)
    (folder / "a-broken.png").write_bytes(b"no image at all")
    (folder / "m-empty.jpg").touch()
    good = photos(there)
    found = run("classify-image", there / "vit", folder, "--json", "--batch", batch)
    assert found.exit_code != 0
    seen = [Path(json.loads(x)["image"]).name for x in found.stdout.splitlines()]
    assert seen == [Path(x).name for x in good]
    assert f"2 of {len(good) + 2} images are left out" in str(found.exception)
    told = [line for line in found.stderr.splitlines() if "left out: " in line]
    assert ["a-broken.png" in told[0], "m-empty.jpg" in told[1]] == [True, True]
    alone = run("classify-image", there / "vit", folder / "a-broken.png")
    assert "left out" not in alone.output + str(alone.exception)
    for words in (["a cat"], WORDS):  # a search, and a table of all
        found = run("similarity", there / "clip", *words, "--image", folder, "--json")
        near = {Path(json.loads(x)["image"]).name for x in found.stdout.splitlines()}
        assert near == {Path(x).name for x in good}
        assert found.stderr.count("left out: ") == 2
        assert f"2 of {len(good) + 2} images are left out" in str(found.exception)


def test_a_picture_that_cannot_be_read_has_a_row_or_a_line_without_numbers(there, tmp_path):
    good, bad = photos(there)[:2], str(tmp_path / "bad.png")
    Path(bad).write_bytes(b"no image at all")
    wanted = af.embed_image(there / "vit", good)
    paths = [bad, good[0], bad, good[1]]
    found = run("embed-image", there / "vit", *paths, "--out", tmp_path / "x.npy")
    assert "2 of 4 images are left out" in str(found.exception)
    rows = np.load(tmp_path / "x.npy")
    assert np.isnan(rows[[0, 2]]).all()
    assert np.abs(rows[[1, 3]] - wanted.numpy()).max() < 1e-5
    (tmp_path / "paths.txt").write_text("\n".join(paths), encoding="utf-8")
    found = run("embed-image", there / "vit", "--file", tmp_path / "paths.txt")
    assert found.exit_code != 0
    lines = np.loadtxt(found.stdout.splitlines())
    assert np.array_equal(np.isnan(lines), np.isnan(rows))
    found = run("embed-image", there / "vit", *paths, "--json")
    assert [json.loads(x)["image"] for x in found.stdout.splitlines()] == good
    found = run("classify-image", there / "vit", "--file", tmp_path / "paths.txt")  # line by line
    assert [bool(line) for line in found.stdout.splitlines()] == [False, True, False, True]
    assert "2 of 4 images are left out" in str(found.exception)


def test_the_command_line_searches_a_folder_and_ranks_texts(there, tmp_path):
    clip, folder = there / "clip", there / "photos"
    scores = af.image_similarity(clip, photos(there), WORDS)
    lines = run("similarity", clip, *WORDS, "--image", folder, "--top", 1, "--json").output
    rows = [json.loads(line) for line in lines.splitlines()]
    best = [photos(there)[i] for i in scores.argmax(0).tolist()]
    assert [(x["text"], x["image"], x["rank"]) for x in rows] == [
        (text, path, 1) for text, path in zip(WORDS, best, strict=True)
    ]
    (tmp_path / "texts.txt").write_text("\n".join(WORDS), encoding="utf-8")
    asked = ("--image", photos(there)[0], "--file", tmp_path / "texts.txt")
    rows = [json.loads(x) for x in run("similarity", clip, *asked, "--json").output.splitlines()]
    order = [WORDS[i] for i in scores[0].argsort(descending=True).tolist()]
    assert [(x["text"], x["rank"]) for x in rows] == list(zip(order, range(1, 4), strict=True))
    shown = run("similarity", clip, "ship", "--image", folder, "--top", 2).output
    assert len(shown.splitlines()) == 3
    refused = run("similarity", clip, "a", "b", "--top", 2)
    assert "is for --image" in str(refused.exception)


def test_the_command_line_refuses_in_one_line(there, tmp_path):
    for args, said in (
        (("classify-image", there / "vit", tmp_path), "holds no images"),
        (("classify-image", there / "vit", "x.png", "--template", "{}"), "goes around --labels"),
        (("embed-image", there / "vit", "x.png", "--out", "x.txt"), "give x.npy"),
        (("similarity", there / "clip", "--image", photos(there)[0]), "give one or more"),
        (("similarity", there / "clip", "a", "--image", "x", "--measure", "dot"), "alone"),
    ):
        result = run(*args)
        assert result.exit_code != 0
        assert said in str(result.exception)


@pytest.mark.parametrize(("kind", "chunk"), [("cpu", 8), ("cuda", 64)])
def test_a_verb_reads_further_ahead_where_a_gpu_is_soon_through(kind, chunk):
    model = SimpleNamespace(device=torch.device(kind))
    assert chunk_of(SimpleNamespace(model=model), 4) == chunk
