from __future__ import annotations

import math
import string

import pytest

from kvsched.foundation.errors import UsageError
from kvsched.lesson import KVCacheSchedulerSim
from kvsched.lesson.flaw_answers import replayed
from kvsched.lesson.flaw_texts import TEXTS
from kvsched.lesson.flaws import FLAWS, find_flaw


def of(name: str) -> tuple[dict[str, object], dict[str, object]]:
    flaw = next(each for each in FLAWS if each.example.__name__ == name)
    return dict(flaw.example()), dict(flaw.instead())


def test_an_old_hot_prefix_stays_for_ever() -> None:
    facts, instead = of("old_and_hot")
    assert facts == {"kept": True, "unused_for": 100, "hits_of_the_new": 0, "recency": [0.5]}
    # All uses but the first two, and those until the old one has faded.
    assert 0 < instead["hits_of_the_new"] < 98  # type: ignore[operator]
    # A half-life without an end is the chapter's order again.
    prompts = [["old"]] * 100 + [["new 1"], ["new 2"]] * 50
    assert replayed(prompts, "decay:half_life_s=1e6", 2).request_hits[100:].sum() == 0


def test_heap_and_log_grow() -> None:
    facts, instead = of("grows")
    assert facts == {"entries": 1, "records": 10_000, "lines": 10_000}
    assert instead == {"records": 1, "events": 0}


def test_a_hit_with_another_size_is_not_counted() -> None:
    facts, instead = of("another_size")
    assert facts["counted"] == 10 + 60
    assert facts["really"] == 150
    assert "evict:chat" not in facts["log"]  # type: ignore[operator]
    # The 60 blocks of the other made some of the chat's leave: never more than there is room for.
    assert instead == {"hit": 10, "counted": 100}


def test_a_running_requests_entry_leaves() -> None:
    facts, instead = of("running")
    assert facts == {"log": ["add:running", "evict:running", "add:other"], "kept": False}
    assert instead["reason"]
    assert (instead["outcome"], instead["kept"], instead["later"]) == ("queue", 60, "admit")


def test_one_scan_empties_the_cache() -> None:
    facts, instead = of("scan")
    assert facts == {"evicted": 5, "left": ["scan"]}
    assert (instead["outcome"], instead["hits"]) == ("degrade", 10)
    assert (instead["hits_of_opt"], instead["hits_of_chapter"]) == (5, 0)


def test_history_is_lost() -> None:
    facts, instead = of("history")
    assert facts == {"hits": 1, "uses": 11}
    assert instead == {"uses": 11}


def test_shared_prefixes_are_charged_twice() -> None:
    facts, instead = of("shared")
    assert facts["needed"] == 80
    assert facts["log"][1] == "evict:system + question 1"  # type: ignore[index]
    assert instead == {"hit": 60, "cached": 80}


def test_what_costs_most_leaves_first() -> None:
    facts, instead = of("dear")
    assert facts == {"evicted": ["document"]}
    assert instead == {"greeting": 0, "document": 90, "of": 90}
    document = [f"d{each}" for each in range(90)]
    prompts = [document, ["greeting"], ["new"], ["greeting"], document]
    without = replayed(prompts, "lru", 91).request_hits
    assert (without[3], without[4]) == (1, 89)


def test_nan_infinity_and_true_corrupt_the_ledger() -> None:
    facts, instead = of("ledger")
    assert math.isnan(facts["bytes_after_nan"])  # type: ignore[arg-type]
    assert facts["really"] == 500 > facts["capacity"]  # type: ignore[operator]
    assert facts["evicted"] == 0
    assert len(instead["refused"]) == 3  # type: ignore[arg-type]


def test_a_batch_is_half_applied() -> None:
    facts, instead = of("half")
    assert facts["log"] == ["add:kept", "evict:kept", "add:a", "add:b"]
    assert instead["answers"][:2] == ["admit", "admit"]  # type: ignore[index]
    assert instead["answers"][2].startswith("reject (it needs 11 blocks")  # type: ignore[index]
    assert instead["answers"][3] == "admit"  # type: ignore[index]


class Mended(KVCacheSchedulerSim):
    """Checks a batch before anything of it is done."""

    def schedule(self, requests):  # type: ignore[no-untyped-def]
        batch = list(requests)
        if any(size > self.capacity_bytes for _, size in batch):
            raise ValueError("one does not fit")
        return super().schedule(batch)


def test_an_example_notices_a_class_without_the_flaw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsched.lesson.flaws.KVCacheSchedulerSim", Mended)
    assert of("half")[0]["log"] == ["add:kept"]


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.example.__name__)
def test_the_texts_name_facts_that_there_are(flaw) -> None:  # type: ignore[no-untyped-def]
    for template, facts in (
        (flaw.text.shows, flaw.example()),
        (flaw.text.instead, flaw.instead()),
    ):
        for text in (template.en, template.zh):
            named = {name for _, name, _, _ in string.Formatter().parse(text) if name}
            assert named <= set(facts)
    assert flaw.shows() == flaw.shows()
    assert flaw.done_instead() == flaw.done_instead()
    assert flaw.text.title.en != flaw.text.title.zh


def test_every_text_has_its_example() -> None:
    assert set(TEXTS) == {each.example.__name__ for each in FLAWS}
    with pytest.raises(UsageError, match="no flaw 11; there are 1 to 10"):
        find_flaw(11)
