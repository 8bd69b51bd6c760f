"""Searches: every convention is sound, and each classical mistake is named."""

from __future__ import annotations

import pytest
import torch

from allformer.auditor import audit


def beams_of(counted=False, start_too=True, end_too=True, power=0.0, ended_first=False, bug=""):
    """A beam search with these conventions."""

    def worth(item):
        total, ids = item
        return total / max(1, len(ids) - 1) ** power

    def search(log_probs, start, end, beams, longest):
        live, done = [(0.0, [start])], []
        for _ in range(longest - counted):
            grown = []
            for total, ids in live:
                row = log_probs(torch.tensor([ids]))[0].tolist()
                before = 0.0 if bug == "forgets" else total
                grown += [(before + row[i], [*ids, i]) for i in range(len(row))]
            grown = sorted(grown, reverse=True)[:beams]
            ends = [] if bug == "past the end" else [g for g in grown if g[1][-1] == end]
            done += ends
            live = [g for g in grown if g not in ends]
            if not live or (bug == "first end" and done):
                break
        pick = min if bug == "worst" else max
        best = pick(done if done and (ended_first or bug) else done + live, key=worth)[1]
        best = best if start_too else best[1:]
        return best if end_too or best[-1] != end else best[:-1]

    return search


def by_topk(bug=""):
    """Tensors, the best `beams` of the first step: more than the vocabulary is an error."""

    def search(log_probs, start, end, beams, longest):
        ids, totals = torch.tensor([[start]]), torch.zeros(1)
        done = []
        for _ in range(longest):
            scores = (totals[:, None] + log_probs(ids)).flatten()
            totals, best = scores.topk(beams)
            width = len(scores) // len(ids)
            rows = best % width if bug == "rows" else best // width
            ids = torch.cat([ids[rows.clamp(max=len(ids) - 1)], best[:, None] % width], 1)
            over = ids[:, -1] == end
            done += [(float(t), i.tolist()) for t, i in zip(totals[over], ids[over], strict=True)]
            ids, totals = ids[~over], totals[~over]
            if not len(ids):
                break
        done += [(float(t), i.tolist()) for t, i in zip(totals, ids, strict=True)]
        return max(done)[1], max(done)[0]

    return search


@pytest.mark.parametrize(
    "conventions",
    [
        {},
        {"counted": True},
        {"start_too": False, "end_too": False},
        {"power": 0.7},
        {"power": 1.0, "counted": True},
        {"ended_first": True},
    ],
    ids=str,
)
def test_every_convention_is_sound(conventions):
    report = audit(beams_of(**conventions), "search")
    assert report.ok, report.text()


def test_a_search_that_cannot_keep_more_beams_than_ids_is_sound():
    report = audit(by_topk(), "search")
    assert report.ok, report.text()


@pytest.mark.parametrize("bug", ["forgets", "past the end", "first end", "worst"])
@pytest.mark.parametrize("counted", [False, True])
def test_mistakes_are_no_convention(bug, counted):
    report = audit(beams_of(counted=counted, bug=bug), "search")
    assert report.checks == {"search.wrong"}, report.text()
    assert ("run past the end" in report.findings[0].evidence) == (bug == "past the end")


def test_beams_that_take_another_beams_words_are_named():
    assert audit(by_topk("rows"), "search").checks == {"search.wrong"}
