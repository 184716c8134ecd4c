from __future__ import annotations

import pytest
from fake_engine import fake_engine
from sending import MODEL, held

from kvsched.engine.openai_accepted import OPTIONAL, accepted_fields, ask_once
from kvsched.engine.target import Target
from kvsched.foundation.errors import KvschedError


def test_an_engine_that_takes_everything() -> None:
    with fake_engine() as engine:
        found = accepted_fields(Target(engine.url, MODEL))
        stats = engine.stats_when_quiet()
    assert (found.extra_body, found.notes) == ({}, ())
    assert found.tells_token_ids
    assert found.tells_usage
    assert found.tells_cached_tokens
    assert (stats["requests"], stats["open"]) == (1, 0)


@pytest.mark.parametrize("refused", [["min_tokens"], ["ignore_eos", "return_token_ids"]])
def test_refused_fields_are_taken_out_and_told(refused: list[str]) -> None:
    with fake_engine(refuse=refused, keep_bodies=9) as engine:
        found = accepted_fields(Target(engine.url, MODEL))
        bodies = engine.stats()["bodies"]
    assert found.extra_body == dict.fromkeys(refused)
    assert len(found.notes) == len(refused)
    for field, note in zip(refused, sorted(found.notes), strict=True):
        assert note.startswith(f"the engine refuses {field}: {OPTIONAL[field]}")
    assert found.tells_token_ids == ("return_token_ids" not in refused)
    assert set(OPTIONAL) - set(bodies[-1]) == set(refused)


def test_a_refusal_without_a_name_takes_out_all_but_the_needed() -> None:
    """Four refusals, and then an engine that still says no."""
    with fake_engine(status=400) as engine:
        with pytest.raises(KvschedError, match="client_error: HTTP 400"):
            accepted_fields(Target(engine.url, MODEL))
        assert engine.stats()["requests"] == 1 + len(OPTIONAL)


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ({"usage": "none"}, None),
        ({"cached_details": False}, None),
        ({"status": 401}, "client_error"),
        ({"status": 500}, "server_error"),
        ({"silent": True}, "timeout_first_token"),
    ],
)
def test_what_an_engine_does_not_tell(script: dict[str, object], fault: str | None) -> None:
    before = held()
    with fake_engine(**script) as engine:
        target = Target(engine.url, MODEL)
        if fault is None:
            found = accepted_fields(target)
            assert found.tells_usage == ("usage" not in script)
            assert not found.tells_cached_tokens
        else:
            with pytest.raises(KvschedError, match=f"{engine.url}: {fault}"):
                accepted_fields(target, timeout_s=0.1 if "silent" in script else 60.0)
        assert engine.stats()["requests"] == 1
    assert held() == before


def test_one_request() -> None:
    with fake_engine() as engine:
        answer = ask_once(Target(engine.url, MODEL), range(40), 4)
    assert (answer.fault, answer.token_counts, answer.prompt_tokens) == (None, [1] * 4, 40)
