"""Counters of an engine: by either name, summed over engines, and null where they began anew."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kvsched.engine import counters, plain_http
from kvsched.engine.counters import (
    Sampler,
    cache_config,
    detect_kind,
    engine_version,
    growth,
    reset_prefix_cache,
    scrape,
    served_models,
    wanted_names,
)
from kvsched.engine.kinds.registry import KINDS
from kvsched.engine.metrics_text import parse
from kvsched.engine.plain_http import EngineSilentError, ask
from kvsched.engine.target import Target
from kvsched.foundation.errors import KvschedError

VLLM, SGLANG = KINDS["vllm"], KINDS["sglang"]
TEXT = """
# HELP vllm:prefix_cache_queries_total Prefix cache queries
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 50.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e9
vllm:prefix_cache_hits{engine="0"} 32.0
vllm:prompt_tokens_by_source_total{source="a"} 7.0
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 4.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25
vllm:request_success_total{engine="0",finished_reason="stop"} 2.0
vllm:request_success_total{engine="0",finished_reason="length"} 3.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="99",engine="0"} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="1"} 1.0
"""


@contextlib.contextmanager
def serving(answer: Callable[[str, str], tuple[int, bytes]]) -> Iterator[Target]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            status, data = answer(self.command, self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = _answer  # noqa: N815  # names of the standard library
        do_POST = _answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # who asked has gone

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield Target(f"http://127.0.0.1:{server.server_address[1]}", "m")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def text(hits: float, queries: float = 100.0, started: float = 1.0) -> str:
    return (
        f"vllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total {hits}\n"
        f"process_start_time_seconds {started}\n"
    )


def test_names_with_total_or_without_and_several_engines() -> None:
    found = parse(TEXT, wanted_names(VLLM))
    assert found.total("vllm:prefix_cache_queries") == 150
    assert found.total("vllm:prefix_cache_hits") == 32
    assert found.total("vllm:num_requests_running") == 7
    assert found.mean("vllm:kv_cache_usage_perc") == 0.375
    assert found.total("vllm:request_success") == 5
    assert found.total("vllm:prompt_tokens") is None
    config = cache_config(VLLM, found)
    assert (config.block_size, config.blocks) == (16, 199)


def test_sglangs_gauges_say_the_blocks() -> None:
    data = "sglang:page_size 16\nsglang:max_total_num_tokens 1600\n"
    config = cache_config(SGLANG, parse(data, wanted_names(SGLANG)))
    assert (config.block_size, config.blocks) == (16, 100)
    assert cache_config(SGLANG, parse("", wanted_names(SGLANG))).blocks is None
    assert cache_config(VLLM, parse("", wanted_names(VLLM))).block_size is None


def test_growth() -> None:
    names = wanted_names(VLLM)
    found = growth(VLLM, parse(text(10), names), parse(text(35, 180), names))
    assert found.delta(VLLM.hit_tokens) == (25, "")
    assert found.delta(VLLM.query_tokens) == (80, "")
    assert found.counters["vllm:prefix_cache_hits"] == {"before": 10, "after": 35, "delta": 25}
    value, why = found.delta(("vllm:none",))
    assert value is None
    assert "no counter vllm:none" in why


@pytest.mark.parametrize("after", [text(4), text(40, started=2.0)])
def test_a_counter_that_began_anew_has_no_growth(after: str) -> None:
    names = wanted_names(VLLM)
    found = growth(VLLM, parse(text(10), names), parse(after, names))
    value, why = found.delta(VLLM.hit_tokens)
    assert value is None
    assert "began anew" in why


def test_a_counter_with_labels_appears_when_it_counts() -> None:
    names = wanted_names(VLLM)
    later = 'vllm:request_success_total{finished_reason="length"} 4.0\n'
    found = growth(VLLM, parse(text(1), names), parse(text(1) + later, names))
    assert found.delta(VLLM.finished) == (4, "")
    gone = growth(VLLM, parse(text(1) + later, names), parse(text(1), names))
    assert gone.delta(VLLM.finished)[0] is None
    assert "not after it" in gone.delta(VLLM.finished)[1]


def test_without_metrics_the_reason_is_told() -> None:
    found = growth(VLLM, "the engine has no /metrics", "x")
    assert found.delta(VLLM.hit_tokens) == (None, "the engine has no /metrics")


def test_text_that_is_no_metrics() -> None:
    with pytest.raises(KvschedError, match="no metrics"):
        parse("vllm:prefix_cache_hits{ nothing", wanted_names(VLLM))


def test_an_engine_is_asked() -> None:
    def answer(method: str, path: str) -> tuple[int, bytes]:
        told = {
            "/metrics": TEXT.encode(),
            "/version": b'{"version": "1.2"}',
            "/v1/models": b'{"data": [{"id": "m", "max_model_len": 9}]}',
        }
        return (200, told[path]) if path in told else (404, b"")

    with serving(answer) as target:
        assert detect_kind(target) is VLLM
        assert engine_version(VLLM, target) == "1.2"
        assert engine_version(SGLANG, target) is None
        assert served_models(target) == [{"id": "m", "max_model_len": 9}]
        assert scrape(target, wanted_names(VLLM)).total("vllm:request_success") == 5
        assert reset_prefix_cache(VLLM, target) == "the engine does not serve /reset_prefix_cache"


def test_a_reset_is_tried_until_no_block_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [False, False, True]

    def answer(method: str, path: str) -> tuple[int, bytes]:
        assert (method, path) == ("POST", "/reset_prefix_cache")
        return 200, json.dumps({"success": answers.pop(0) if answers else False}).encode()

    monkeypatch.setattr(counters.time, "sleep", lambda seconds: None)
    with serving(answer) as target:
        assert reset_prefix_cache(VLLM, target) is None
        assert answers == []
        assert "stayed in use" in str(reset_prefix_cache(VLLM, target, tries=2))


def test_silence_is_an_error() -> None:
    with serving(lambda method, path: (500, b"")) as target:
        with pytest.raises(EngineSilentError, match="status 500"):
            ask(target, "/health")
        with pytest.raises(EngineSilentError, match="status 500"):
            served_models(target)
        gone = target
    with pytest.raises(EngineSilentError, match="GET http"):
        ask(gone, "/health")
    with (
        serving(lambda method, path: (200, b"x" * 100)) as target,
        pytest.raises(EngineSilentError, match="longer than 50 bytes"),
    ):
        ask(target, "/", most_bytes=50)
    with (
        serving(lambda method, path: (200, b"[]")) as target,
        pytest.raises(EngineSilentError, match="no list of models"),
    ):
        served_models(target)


def test_a_slow_engine_is_not_waited_for() -> None:
    done = threading.Event()

    def answer(method: str, path: str) -> tuple[int, bytes]:
        done.wait(10)
        return 200, b""

    with serving(answer) as target:
        with pytest.raises(EngineSilentError, match=r"no answer in time|timed out"):
            ask(target, "/health", timeout_s=0.05)
        done.set()
    assert plain_http.MOST_BYTES > 0


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"[" * 200_000, "no list of models"), (b"null", "no list of models")],
)
def test_models_that_are_none(body: bytes, said: str) -> None:
    with (
        serving(lambda method, path: (200, body)) as target,
        pytest.raises(EngineSilentError, match=said),
    ):
        served_models(target)


def test_what_is_no_http_is_told_in_few_plain_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            one, _ = server.accept()
            with one:
                one.recv(65536)
                one.sendall(b"\x1b[31m garbage" * 99)

        thread = threading.Thread(target=answer)
        thread.start()
        target = Target(f"http://127.0.0.1:{server.getsockname()[1]}", "m")
        with pytest.raises(EngineSilentError, match="garbage") as error:
            ask(target, "/metrics")
        thread.join()
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300


def test_an_answer_drop_by_drop_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            one, _ = server.accept()
            with one, contextlib.suppress(OSError):
                one.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    one.sendall(b"x")
                    time.sleep(0.02)

        thread = threading.Thread(target=drip)
        thread.start()
        target = Target(f"http://127.0.0.1:{server.getsockname()[1]}", "m")
        with pytest.raises(EngineSilentError, match="no answer in time"):
            ask(target, "/metrics", timeout_s=0.1)
        thread.join()


def test_gauges_are_sampled_and_failures_counted() -> None:
    calls = [0]

    def answer(method: str, path: str) -> tuple[int, bytes]:
        calls[0] += 1
        return (503, b"") if calls[0] % 2 == 0 else (200, TEXT.encode())

    with serving(answer) as target, Sampler(VLLM, target, 0.01) as sampler:
        until = time.monotonic() + 10
        while (sampler.failures < 2 or len(sampler.at_s) < 2) and time.monotonic() < until:
            time.sleep(0.01)
    assert set(sampler.values["running"]) == {7.0}
    assert set(sampler.values["kv_use"]) == {0.375}
    assert set(sampler.values["waiting"]) == {None}
    assert len(sampler.values["running"]) == len(sampler.at_s)
    assert sampler.problem is not None
    assert f"{sampler.failures} of {calls[0]} samples" in sampler.problem
    assert "503" in sampler.problem
