"""Logs of chat requests: where a row's parts stand, how text becomes blocks."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
import tokenizers

from kvsched.foundation.errors import InputError, UsageError
from kvsched.trace.chat_template import load_template
from kvsched.trace.check import structural_fault
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace

WORDS = ["<unk>", "<s>", "<user>", "<system>", "<end>", "a", "b", "c", "d", "e", "f"]
TEMPLATE = (
    "{{ bos_token }} {% for message in messages %}\n"
    "{%- if message.role not in ['user', 'system'] %}"
    "{{ raise_exception('who is ' ~ message.role) }}{% endif %}\n"
    "<{{ message.role }}> {{ message.content }} <end> {% endfor %}\n"
)


def row(*messages: str, **changes: Any) -> dict[str, Any]:
    roles = ["system", "user"] * len(messages)
    said = [{"role": r, "content": m} for r, m in zip(roles, messages, strict=False)]
    return {"messages": said, **changes}


def write(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(path: Path, **options: Any) -> Trace:
    trace = load_trace(path, **options)
    assert structural_fault(trace) is None
    assert trace.origin.format == "openai"
    return trace


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of whole words that, as published ones may, cuts and pads."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=WORDS[0])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    made.enable_truncation(max_length=3)
    made.enable_padding(length=64)
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}}))
    return path


def test_bytes_by_hand(tmp_path: Path) -> None:
    """`system`, a line break, `abcd`, a line break: 12 bytes, at 2 a token in blocks of 4."""
    path = write(tmp_path, row("abcd"), row("abcde"), row("abcd", "x"))
    trace = load(path, bytes_per_token=2, block_size=4)
    assert trace.input_tokens.tolist() == [6, 7, 10]
    assert trace.tokens.tolist() == [4, 2, 3, 4, 2]
    assert trace.chains.tolist() == [0, 1, 0, 2, 0, 3, 4]
    first = hashlib.blake2b(bytes(8) + b"system\na", digest_size=8).digest()
    second = hashlib.blake2b(first + b"bcd\n", digest_size=8).digest()
    assert trace.key[:2].tolist() == [
        int.from_bytes(key, "little", signed=True) for key in (first, second)
    ]
    assert trace.origin.settings["text_blocks"] == "bytes"
    assert trace.origin.settings["bytes_per_token"] == 2


def test_a_key_names_the_whole_prefix(tmp_path: Path) -> None:
    path = write(tmp_path, row("x" * 64), row("y" + "x" * 63), row("x" * 64))
    trace = load(path, bytes_per_token=1)
    first, second, third = (trace.chains[a:b] for a, b in itertools.pairwise(trace.starts))
    assert first.tolist() == third.tolist()
    assert not set(first.tolist()) & set(second.tolist())
    # The blocks' own text is the same from the second on: only the chain tells them apart.
    assert not set(trace.key[first[1:4]].tolist()) & set(trace.key[second[1:4]].tolist())


def test_a_conversation_extends_the_one_before(tmp_path: Path) -> None:
    path = write(tmp_path, row("a" * 100, "b" * 100), row("a" * 100, "b" * 100, "c" * 50))
    trace = load(path, bytes_per_token=4)
    shared = len("system\n\nuser\n\n") + 200
    assert len(set(trace.chains[: trace.starts[1]]) & set(trace.chains[trace.starts[1] :])) == (
        shared // 64
    )


def test_tokens_by_hand(tmp_path: Path, tokenizer: Path, template: Path) -> None:
    path = write(tmp_path, row("a b"), row("a c"), row("a b", "c d"))
    trace = load(path, tokenizer=tokenizer, chat_template=template, block_size=2)
    # <s> <system> | a b | <end>, the same with c, and the first with <user> c d <end> after it
    assert trace.input_tokens.tolist() == [5, 5, 9]
    assert trace.chains.tolist() == [0, 1, 2, 0, 3, 4, 0, 1, 5, 6, 7]
    first = hashlib.blake2b(bytes(8) + bytes([1, 0, 0, 0, 3, 0, 0, 0]), digest_size=8).digest()
    assert int(trace.key[0]) == int.from_bytes(first, "little", signed=True)
    settings = trace.origin.settings
    assert settings["text_blocks"] == "tokenizer"
    assert settings["tokenizer_sha256"] == hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    assert settings["chat_template_sha256"] == hashlib.sha256(template.read_bytes()).hexdigest()
    assert str(tmp_path) not in json.dumps(settings) + "".join(trace.origin.notes)


def test_a_template_of_plain_jinja(tmp_path: Path, tokenizer: Path) -> None:
    plain = tmp_path / "chat.jinja"
    plain.write_text("{% for m in messages %}{{ m.content }} {% endfor %}{{ tools | tojson }}")
    path = write(tmp_path, row("a b", "c", tools=None))
    trace = load(path, tokenizer=tokenizer, chat_template=plain, block_size=16)
    assert trace.input_tokens.tolist() == [4]  # a b c null


def test_a_tokenizer_without_a_template(tmp_path: Path, tokenizer: Path) -> None:
    trace = load(write(tmp_path, row("a b")), tokenizer=tokenizer)
    assert trace.input_tokens.tolist() == [3]
    assert any("without a chat template" in note for note in trace.origin.notes)


def test_a_template_may_refuse(tmp_path: Path, tokenizer: Path, template: Path) -> None:
    odd = {"messages": [{"role": "tool", "content": "a"}]}
    path = write(tmp_path, row("a"), odd)
    asked = {"tokenizer": tokenizer, "chat_template": template}
    with pytest.raises(InputError, match="row 2: the chat template refuses it: who is tool"):
        load(path, **asked)
    assert len(load(path, skip_bad_rows=True, **asked)) == 1


def test_a_template_runs_in_a_sandbox(tmp_path: Path, tokenizer: Path) -> None:
    spy = tmp_path / "spy.jinja"
    spy.write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InputError, match=r"the chat template refuses it: .*unsafe"):
        load(write(tmp_path, row("a")), tokenizer=tokenizer, chat_template=spy)


LOOP = "{% for i in range(999) %}"
UNBOUND = {
    "{{ 10**10**9 }}": "a power",
    "{{ 'x' * 10000000000 }}": "a text of more than",
    "{{ range(10000000000) | length }}": "a width or range",
    "{{ [1] | tojson(indent=1000000000) }}": "JSON indented",
    LOOP * 3 + "{% endfor %}" * 3: "turns of its loops",
    "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}"
    + LOOP * 3
    + "{% endfor %}" * 3: "turns of its loops",
    "{% set n = namespace(x='x') %}" + LOOP + "{% set n.x = n.x ~ n.x %}{% endfor %}": "a text of",
    "{% set n = namespace(x='x') %}" + LOOP + "{% set n.x = n.x + n.x %}{% endfor %}": "a text of",
    "{% set n = namespace(x=2) %}" + LOOP + "{% set n.x = n.x * n.x %}{% endfor %}": "64 bits",
    "{% set n = namespace(x='x') %}"
    + LOOP
    + "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}": "a text of",
    "{% set n = namespace(x='x') %}"
    + LOOP
    + "{% set n.x = n.x | replace('x', 'xx') %}{% endfor %}": "a text of",
    "{% set n = namespace(x='x') %}"
    + LOOP
    + "{% set n.x = n.x.replace('x', 'xx') %}{% endfor %}": "a text of",
    "{% set n = namespace(x='x') %}"
    + LOOP
    + "{% set n.x = [n.x, n.x] | join(' ') %}{% endfor %}": "a text of",
    "{% set n = namespace(x='x') %}"
    + LOOP
    + "{% set n.x = ' '.join([n.x, n.x]) %}{% endfor %}": "a text of",
    "{% for m in messages %}{{ m.content | indent(1000000000) }}{% endfor %}": "an indent",
    "{{ 'x'.ljust(1000000000) }}": "a width or range",
    "{{ '%1000000000d' % 1 }}": "a format",
    "{{ '{:1000000000}'.format(1) }}": "a format",
    "{{ '{x:1000000000}'.format_map({'x': 1}) }}": "a format",
    "{% set x = 'x' * 1000000 %}" + LOOP + "{{ x }}{% endfor %}": "a text of more than",
}


@pytest.mark.parametrize("source", UNBOUND)
def test_a_template_without_measure(tmp_path: Path, tokenizer: Path, source: str) -> None:
    odd = tmp_path / "odd.jinja"
    odd.write_text(source)
    with pytest.raises(InputError, match=UNBOUND[source]) as caught:
        load(write(tmp_path, row("a")), tokenizer=tokenizer, chat_template=odd, skip_bad_rows=True)
    assert str(caught.value).startswith(f"{odd}: ")
    assert "\n" not in str(caught.value)


def test_loops_of_every_kind_are_as_they_were(tmp_path: Path, tokenizer: Path) -> None:
    """The counting changes no text: against the same template without it."""
    source = (
        "{% macro say(m) %}{{ m.role ~ ' ' ~ (1 + 2) }} {% endmacro %}"
        "{% for m in messages if m.role != 'x' %}{{ loop.index }} {{ loop.last }} {{ say(m) }}"
        "{% else %}none{% endfor %}"
        "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}{{ loop(x) }}"
        "{% else %}{{ x }}{% endif %}{% endfor %}{{ tools | tojson(indent=2) }}"
        "{% set b %} {{ messages | join('+', attribute='role') }}{% endset %}"
        "{% set c | upper %}c{{ 'a-b' | replace('-', '') }}{% endset %}{{ b | trim }}{{ c }}"
        "{{ ', '.join(['a', 'b']) }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'q\\nr' | indent(2) }}"
    )
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # noqa: S701  # no page
    plain.filters["tojson"] = lambda value, indent: json.dumps(value, indent=indent)
    path = tmp_path / "t.jinja"
    path.write_text(source)
    render = load_template(path)
    for messages in ([], row("a", "b")["messages"]):
        assert render(messages, {"a": 1}) == plain.from_string(source).render(
            messages=messages, tools={"a": 1}
        )


def test_faults_of_the_files_named(tmp_path: Path, tokenizer: Path) -> None:
    path = write(tmp_path, row("a"))
    broken = tmp_path / "broken.json"
    for content, words in {
        '{"a": 1}': 'JSON without a "chat_template"',
        '{"chat_template": 3}': '"chat_template" must be a string',
        '{"chat_template": [{"name": ["a"], "template": "x"}]}': 'a list with a "default"',
        "{{ 'x' | random }}": "not a chat template: No filter named 'random'",
        "{% if %}": "not a chat template",
    }.items():
        broken.write_text(content)
        with pytest.raises(InputError, match=words) as caught:
            load(path, tokenizer=tokenizer, chat_template=broken)
        assert str(caught.value).startswith(f"{broken}: ")
    broken.write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"broken.json: not valid UTF-8"):
        load(path, tokenizer=tokenizer, chat_template=broken)
    with pytest.raises(InputError, match=r"broken.json: not a tokenizer.json"):
        load(path, tokenizer=broken)
    with pytest.raises(InputError, match="none: no such file"):
        load(path, tokenizer=tmp_path / "none")


def test_text_needs_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, row("a"))
    with pytest.raises(UsageError, match=r"--tokenizer FILE .* or with --bytes-per-token N"):
        load(path)
    with pytest.raises(UsageError, match="--chat-template needs --tokenizer"):
        load(path, chat_template="x", bytes_per_token=4)
    with pytest.raises(UsageError, match="give one of --tokenizer and --bytes-per-token"):
        load(path, tokenizer="x", bytes_per_token=4)
    for ratio in (0, 0.2, 1025, float("nan")):
        with pytest.raises(UsageError, match=r"bytes a token are out of range: 0.25 to 1024"):
            load(path, bytes_per_token=ratio)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"needs the package tokenizers: pip install"):
        load(path, tokenizer="x")


def test_batch_files_and_labels(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"custom_id": "1", "body": row("a", model="m", user="u")},
        {"custom_id": "2", "body": row("a", session_id="s"), "user": 7},
        row("a", conversation_id="s", model="n"),
    )
    trace = load(path, bytes_per_token=4)
    assert trace.time_s.tolist() == [0.0, 1.0, 2.0]
    assert trace.origin.settings["first_timestamp_s"] is None
    assert "no row has a time: requests are one second apart, in the file's order" in (
        trace.origin.notes
    )
    assert trace.tenant is not None
    assert (trace.tenant.names, trace.tenant.codes.tolist()) == (("u", "7"), [0, 1, -1])
    assert trace.model is not None
    assert (trace.model.names, trace.model.codes.tolist()) == (("m", "n"), [0, -1, 1])
    assert trace.session is not None
    assert (trace.session.names, trace.session.codes.tolist()) == (("s",), [-1, 0, 0])


def test_outputs_and_what_usage_says(tmp_path: Path) -> None:
    answer = {"body": {"created": 1700000000, "usage": {"completion_tokens": 9}}}
    path = write(
        tmp_path,
        row("a" * 32, usage={"prompt_tokens": 5, "completion_tokens": 3}, created=1700000002),
        {"body": row("a"), "response": answer},
        row("a", created=1700000005),
    )
    trace = load(path, bytes_per_token=4)
    assert trace.output_tokens.tolist() == [9, 3, 0]
    assert trace.time_s.tolist() == [0.0, 2.0, 5.0]
    # 40 bytes: 10 tokens counted where the log says 5, so 8 bytes a token
    assert (
        "usage says 5 prompt tokens in 1 request, counted here are 10 "
        "(--bytes-per-token 8 would agree)"
    ) in trace.origin.notes
    assert "1 request does not say its output, which counts as 0 tokens" in trace.origin.notes
    agreed = load(path, bytes_per_token=8)
    assert not any("usage" in note for note in agreed.origin.notes)


def test_dates(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        row("a", timestamp="2024-05-01T12:00:00Z"),
        row("a", timestamp="2024-05-01T14:00:01.5+02:00"),
        row("a", timestamp="2024-05-01 12:00:03"),
    )
    trace = load(path, bytes_per_token=4)
    assert trace.time_s.tolist() == [0.0, 1.5, 3.0]
    assert trace.origin.settings["first_timestamp_s"] == 1714564800.0
    assert "times are dates; those without a zone are read as UTC" in trace.origin.notes
    with pytest.raises(UsageError, match="--time-unit means nothing here: the times are dates"):
        load(path, bytes_per_token=4, time_unit="ms")
    with pytest.raises(UsageError, match="--time-unit means nothing here: no row has a time"):
        load(write(tmp_path, row("a")), bytes_per_token=4, time_unit="ms")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"timestamp": 1}, {}, 'no "timestamp" or "created", which rows before have'),
        ({}, {"created": 1}, "a time, which rows before have not"),
        (
            {"timestamp": 1},
            {"timestamp": "2024-05-01"},
            "the time is a date, in rows before numbers",
        ),
        ({"timestamp": "2024-05-01"}, {"created": 1}, "the time is a number, in rows before dates"),
    ],
)
def test_times_are_of_one_kind(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], words: str
) -> None:
    path = write(tmp_path, row("a", **first), row("a", **second), row("a", **first))
    with pytest.raises(InputError, match=f"row 2: {words}"):
        load(path, bytes_per_token=4)
    assert len(load(path, bytes_per_token=4, skip_bad_rows=True)) == 2


def test_everything_in_a_message_counts(tmp_path: Path) -> None:
    """Tools, calls and parts change the blocks; an image is a digest, the same each time."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}
    parts = [{"type": "text", "text": "look"}, image]
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}
    rows = [
        {"messages": [{"role": "user", "content": parts}]},
        {"messages": [{"role": "user", "content": parts}]},
        {"messages": [{"role": "user", "content": [*parts, "more"]}]},
        {"messages": [call]},
        {"messages": [{**call, "tool_calls": [{"id": "y"}]}]},
        {"messages": [call], "tools": [{"type": "function"}]},
    ]
    trace = load(write(tmp_path, *rows), bytes_per_token=1, block_size=1024)
    assert trace.chains.tolist() == [0, 0, 1, 2, 3, 4]
    assert int(trace.input_tokens[0]) == len("user\nlook<0123456789abcdef>\n")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"content": "a"}, r'"messages"\[0\] has no "role"'),
        ({"role": 3, "content": "a"}, r'"messages"\[0\] has no "role"'),
        ({"role": "user", "content": 3}, '"content" must be a string or a list, not a number'),
        ({"role": "user", "content": "\ud800"}, "not valid Unicode"),
    ],
)
def test_bad_messages(tmp_path: Path, message: dict[str, Any], words: str) -> None:
    path = write(tmp_path, row("a"), {"messages": [message]})
    with pytest.raises(InputError, match=f"row 2: .*{words}"):
        load(path, bytes_per_token=4)


def test_more_rows_than_one_batch(tmp_path: Path, tokenizer: Path) -> None:
    path = write(
        tmp_path, *(row(" ".join(WORDS[5 + (i + j) % 6] for j in range(8))) for i in range(600))
    )
    trace = load(path, tokenizer=tokenizer, block_size=4)
    assert len(trace) == 600
    assert trace.input_tokens.tolist() == [9] * 600
    assert trace.nodes == 6 * 3
