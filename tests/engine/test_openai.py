from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from absent import absent
from fake_engine import FakeEngine, fake_engine
from sending import MODEL, ask, held

import kvsched.engine.openai as client_module
from kvsched.engine.event_loop import new_event_loop
from kvsched.engine.openai import Client
from kvsched.engine.target import Target
from kvsched.foundation.errors import UsageError

PROMPT = list(range(100, 140))


def prompt(last: int) -> list[int]:
    return [*PROMPT, last]


JSON = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
RAW_OK = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    # what the engine does: the kind of error, a part of its detail
    "429": ({"status": 429}, "rate_limited", "HTTP 429: as the script says"),
    "500": ({"status": 500}, "server_error", "HTTP 500: as the script says"),
    "503": ({"status": 503}, "server_error", "HTTP 503"),
    "400": ({"status": 400}, "client_error", "HTTP 400: as the script says"),
    "404": ({"status": 404}, "client_error", "HTTP 404"),
    "an error in the stream": ({"error_after": 1}, "server_error", "the engine core died"),
    "an error first": ({"error_after": 0}, "server_error", "the engine core died"),
    "a reset": ({"reset_after": 2}, "reset", "broke off"),
    "a reset at once": ({"reset_after": 0}, "reset", "broke off"),
    "a closed connection": ({"fin_after": 2}, "reset", "broke off in mid-answer"),
    "no answer at all": ({"raw": ""}, "reset", "broke off before an answer"),
    "a part of a head": ({"raw": "HTTP/1.1 200 OK\r\nConte"}, "reset", "before an answer"),
    "a part of a length": (
        {"raw": RAW_OK + "Content-Length: 9\r\n\r\ndata"},
        "reset",
        "mid-answer",
    ),
    "no JSON": ({"invalid_after": 1}, "invalid_json", "an event is no completion"),
    "another type": (
        {"raw": RAW_OK + '\r\ndata: {"choices": [{"text": 5}]}\n\n'},
        "invalid_json",
        "no",
    ),
    "no UTF-8": (
        {"raw": RAW_OK + '\r\ndata: {"choices": [{"text": "\xff"}]}\n\n'},
        "invalid_json",
        "",
    ),
    "no HTTP": ({"raw": "220 mail.example ESMTP\r\n"}, "invalid_json", "no HTTP/1.1 answer"),
    "no chunk size": (
        {"raw": RAW_OK + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"},
        "invalid_json",
        "no chunk size",
    ),
    "long headers": (
        {"raw": RAW_OK + "A: " + "x" * 70_000},
        "invalid_json",
        "headers of more than",
    ),
    "packed": (
        {"raw": RAW_OK + "Content-Encoding: gzip\r\n\r\nxx"},
        "invalid_json",
        "encoded as gzip",
    ),
    "an error that is too deep": (
        {"raw": RAW_OK + '\r\ndata: {"error": ' + "[" * 9_000 + "\n\n"},
        "invalid_json",
        "recursion",
    ),
    "a body that is too deep": (
        {"raw": "HTTP/1.1 500 X\r\nContent-Length: 9000\r\n\r\n" + "[" * 9_000},
        "server_error",
        "HTTP 500",
    ),
    "what a terminal obeys": (
        {"raw": RAW_OK + '\r\ndata: {"error": {"message": "\\u001b[31m red"}}\n\n'},
        "server_error",
        "in the stream: ?[31m red",
    ),
    "a stream without a token": (
        {"raw": RAW_OK + '\r\ndata: {"choices": []}\n\ndata: [DONE]\n\n'},
        "incomplete",
        "no token came",
    ),
    "no stream": ({"raw": JSON + "Content-Length: 2\r\n\r\n{}"}, "invalid_json", "no stream: {}"),
    "an error with 200": (
        {"raw": JSON + '\r\n{"error": {"message": "out of memory"}}'},
        "server_error",
        "out of memory",
    ),
    "nothing": ({"raw": "HTTP/1.1 204 No Content\r\n\r\n"}, "invalid_json", "HTTP 204"),
    "elsewhere": (
        {"raw": "HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\n\r\n"},
        "client_error",
        "307",
    ),
    "no end mark": ({"done": False}, "incomplete", "ended without [DONE]"),
    "no end mark, no chunks": ({"done": False, "close": True}, "incomplete", "without [DONE]"),
    "too few tokens": ({"tokens": 2}, "incomplete", "2 tokens of 3 came"),
    "too few, by usage": ({"tokens": 2, "token_ids": False}, "incomplete", "2 tokens of 3 came"),
    "no token": ({"tokens": 0}, "incomplete", "0 tokens of 3 came"),
    "no end": ({"endless": True}, "invalid_json", "cut off"),
}

GOOD: dict[str, dict[str, Any]] = {
    "plain": {},
    "several tokens a piece": {"tokens_per_piece": 2},
    "comments between": {"keep_alives": True},
    "an empty piece first": {"empty_first": True},
    "no chunks": {"close": True},
    "no usage": {"usage": "none"},
    "no cached tokens": {"cached_details": False},
    "no token ids": {"token_ids": False},
    "wrong usage": {"usage": "wrong"},
}

NAMES = [*FAULTS, *GOOD]


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    scripts = [each[0] for each in FAULTS.values()] + list(GOOD.values())
    when = {str(number): script for number, script in enumerate(scripts)}
    with fake_engine(when=when, keep_bodies=1) as started:
        yield started


@pytest.fixture(scope="module")
def target(engine: FakeEngine) -> Target:
    return Target(engine.url, MODEL)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_kind(name: str, target: Target) -> None:
    _, kind, detail = FAULTS[name]
    # Between two good ones, over the same client: a fault spoils no other request.
    before, answer, after = ask(target, [PROMPT, prompt(NAMES.index(name)), PROMPT])
    assert (answer.fault, before.fault, after.fault) == (kind, None, None)
    assert answer.detail is not None
    assert detail in answer.detail
    assert len(answer.detail) <= 300
    assert "\n" not in answer.detail
    assert answer.finished_s is not None
    assert answer.sent_s is not None
    assert answer.finished_s >= answer.sent_s


@pytest.mark.parametrize("name", GOOD)
def test_good_answers_are_read(name: str, target: Target) -> None:
    last = NAMES.index(name)
    _, answer = ask(target, [PROMPT, prompt(last)], output_tokens=5)
    assert answer.fault is None
    assert answer.done
    pieces = 3 if name == "several tokens a piece" else 5
    assert len(answer.token_s) == pieces
    counts = None if name == "no token ids" else [2, 2, 1] if pieces == 3 else [1] * 5
    assert answer.token_counts == counts
    assert answer.first_token_s == answer.token_s[0]
    assert answer.token_s == sorted(answer.token_s)
    assert answer.finished_s is not None
    assert answer.finished_s >= answer.token_s[-1]
    # The prompt of 41 tokens shares its first two blocks with those before.
    told = (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens)
    others = {
        "no usage": (None, None, None),
        "no cached tokens": (41, 5, None),
        "wrong usage": (42, 7, 48),
    }
    assert told == others.get(name, (41, 5, 32))
    if name == "wrong usage":
        assert answer.detail == "usage says 7 tokens, 5 came"
    assert answer.finish_reason == "length"


def test_what_is_sent(engine: FakeEngine, target: Target) -> None:
    ask(target, [PROMPT])
    body = engine.stats()["bodies"][0]
    assert body["prompt"] == PROMPT
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (3, 3, True)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert (body["temperature"], body["model"], body["return_token_ids"]) == (0, MODEL, True)
    assert body["headers"]["content-type"] == "application/json"
    assert body["headers"]["host"] == engine.url.removeprefix("http://")


def test_connections_are_kept(target: Target, engine: FakeEngine) -> None:
    before = engine.stats_when_quiet()["connections"]
    assert all(answer.fault is None for answer in ask(target, [PROMPT] * 20))
    # One for the twenty, and one for each of these questions.
    assert engine.stats_when_quiet()["connections"] - before in range(2, 2 + 20)
    few = engine.stats_when_quiet()["connections"]
    ask(target, [PROMPT] * 20)
    after = engine.stats_when_quiet()
    assert after["connections"] - few < 20
    assert after["open"] == 0


def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    """The server says nothing of it, and closes once the next request comes."""
    server = """
import socket
listening = socket.create_server(("127.0.0.1", 0)); print(listening.getsockname()[1], flush=True)
event = b'data: {"choices": [{"text": "a", "token_ids": [1, 2, 3]}]}\\n\\ndata: [DONE]\\n\\n'
for closes in (True, False):
    connection, _ = listening.accept()
    while True:
        data = b""
        while b"\\r\\n\\r\\n" not in data or not data.endswith(b"}"):
            data += connection.recv(65536)
        head = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(event)
        connection.sendall(head + event)
        if closes:
            connection.recv(65536); connection.close(); break
        break
"""
    with subprocess.Popen(
        [sys.executable, "-c", server], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        first, second = ask(Target(url, MODEL), [PROMPT, PROMPT])
    assert (first.fault, first.sendings) == (None, 1)
    assert (second.fault, second.sendings) == (None, 2)


def test_nobody_there() -> None:
    with fake_engine() as engine:
        url = engine.url
    (answer,) = ask(Target(url, MODEL), [PROMPT])
    assert answer.fault == "refused"
    assert answer.sent_s is None
    assert answer.sendings == 0


def test_no_first_token_before_its_deadline() -> None:
    with fake_engine(when={"1": {"silent": True}, "2": {"headers_only": True}}) as engine:
        for last in (1, 2):
            (answer,) = ask(Target(engine.url, MODEL), [prompt(last)], ttft_timeout_s=0.1)
            assert answer.fault == "timeout_first_token"
            assert answer.detail == "no token within 0.1 s"
            assert answer.finished_s is not None
            assert answer.sent_s is not None
            assert answer.finished_s - answer.sent_s > 0.09
        assert engine.stats_when_quiet()["open"] == 0


def test_no_end_before_its_deadline() -> None:
    with fake_engine(endless=True, itl_s=0.02) as engine:
        (answer,) = ask(Target(engine.url, MODEL), [PROMPT], timeout_s=0.2)
        assert (answer.fault, answer.detail) == ("timeout", "no end within 0.2 s")
        assert engine.stats_when_quiet()["open"] == 0


def test_an_answer_that_does_not_end_after_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "GRACE_S", 0.05)
    server = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0)); print(listening.getsockname()[1], flush=True)
connection, _ = listening.accept()
data = b""
while not data.endswith(b"}"):
    data += connection.recv(65536)
event = b'data: {"choices": [{"text": "a", "token_ids": [1, 2, 3]}]}\\n\\ndata: [DONE]\\n\\n'
connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 9999\\r\\n\\r\\n" + event)
assert connection.recv(1) == b""
"""
    with subprocess.Popen(
        [sys.executable, "-c", server], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        (answer,) = ask(Target(url, MODEL), [PROMPT])
    assert (answer.fault, answer.done) == (None, True)
    assert process.returncode in (0, 1)  # closed in order, or with a reset


@pytest.mark.parametrize("secure", [False, True])
def test_a_call_can_be_cancelled_at_any_moment(
    secure: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancel(url: str, wait_s: float) -> tuple[str | None, int]:
        client = Client(Target(url, MODEL))
        ended: list[Any] = []
        call = client.send(
            b'{"prompt": [1], "max_tokens": 3}',
            asked_tokens=3,
            ttft_timeout_s=60,
            timeout_s=60,
            ended=ended.append,
        )
        await asyncio.sleep(wait_s)
        call.cancel("enough")
        call.cancel("enough")
        await client.close()
        return ended[0].fault, len(ended)

    tls = None
    if secure:
        tls = [str(path) for path in request.getfixturevalue("certificate")]
        monkeypatch.setenv("SSL_CERT_FILE", tls[0])
    with fake_engine(silent=True, tls=tls) as engine:
        before = held()
        for wait_s in (0.0, 0.0001, 0.001, 0.002, 0.003, 0.02):
            for new_loop in (asyncio.new_event_loop, new_event_loop):
                with asyncio.Runner(loop_factory=new_loop) as runner:
                    assert runner.run(cancel(engine.url, wait_s)) == ("cancelled", 1)
        assert held() == before
        assert engine.stats_when_quiet()["open"] == 0


def test_the_key_is_sent_and_never_told() -> None:
    with fake_engine(api_key="sk-very-secret", keep_bodies=1) as engine:
        target = Target(engine.url, MODEL, api_key="sk-very-secret", headers={"X-Team": "a"})
        (answer,) = ask(target, [PROMPT])
        assert answer.fault is None
        (answer,) = ask(Target(engine.url, MODEL, api_key="sk-wrong"), [PROMPT])
        assert (answer.fault, answer.status) == ("client_error", 401)
    assert "secret" not in repr(target)
    echo = "HTTP/1.1 401 No\r\nContent-Length: 24\r\n\r\nno such key: sk-very-secret"
    with fake_engine(raw=echo.replace("24", "27")) as engine:
        (answer,) = ask(Target(engine.url, MODEL, api_key="sk-very-secret"), [PROMPT])
        assert answer.detail == "HTTP 401: no such key: ***"


@pytest.mark.parametrize("key", ["a\r\nX-Evil: 1", "a\nb", "kluczyk-ż", "a\x00"])
def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(UsageError, match="the header 'Authorization'") as refused:
        ask(Target("http://127.0.0.1:9", MODEL, api_key=key), [PROMPT])
    assert key not in str(refused.value)


def test_addresses_that_cannot_be_used() -> None:
    with pytest.raises(UsageError, match="name and a password"):
        ask(Target("http://me:secret@127.0.0.1:9", MODEL), [PROMPT])
    with pytest.raises(UsageError, match=r"--engine-url: nowhere\.invalid"):
        ask(Target("http://nowhere.invalid", MODEL), [PROMPT])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-nodes", "-days", "2", "-out", str(paths[0]), "-keyout", str(paths[1])]
    try:
        subprocess.run([*command, *names, *files], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        absent("no openssl to make a certificate with")
    return paths


def test_https(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_engine(tls=[str(path) for path in certificate]) as engine:
        assert engine.url.startswith("https://")
        before = held()
        (answer,) = ask(Target(engine.url, MODEL), [PROMPT])
        assert answer.fault == "refused"
        assert "certificate" in (answer.detail or "").lower()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        answers = ask(Target(engine.url, MODEL), [PROMPT] * 3)
        assert [answer.fault for answer in answers] == [None] * 3
        assert held() == before
