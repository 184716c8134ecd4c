"""A model's chat template, run so that it ends, stays small and says the same each time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateError, nodes, pass_context, pass_environment
from jinja2.filters import do_indent, make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from kvsched.foundation.errors import InputError
from kvsched.trace.fields import Row, RowError
from kvsched.trace.source import os_fault

MOST_TEXT = 64 << 20
"""Characters of one prompt, and of any text on the way to it."""
MOST_STEPS = 1_000_000
"""Turns of loops and calls of macros for one prompt."""
MOST_NUMBER = 2**63
MOST_WIDTH = 1_000_000
"""Of a number given to a method or a filter that pads, and of a range."""
MOST_INDENT = 16
_RANDOM = ("random",)
_PADDING = ("center", "format", "wordwrap")
"""Filters that no template of a model uses, and that make text of any length."""

Render = Callable[[list[Row], Any], str]
"""From messages and tools to the prompt's text; raises RowError."""


class _TooMuchError(Exception):
    """The template asks for more than a prompt can need."""


class _Counter(NodeTransformer):
    """Has every loop's turn and macro's call counted, and every joining of texts measured."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  # the visitor's naming
        return self._stepping(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._stepping(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._stepping(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "joined text")

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # The filter of a block has nothing inside: it gets the block's text.
        sized = nodes.Filter(node.filter, "sized text", [], [], None, None, lineno=node.lineno)
        node.filter = sized
        return node

    def _stepping(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        step = _filter(nodes.Const(0, lineno=node.lineno), "counted step")
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node  # type: ignore[no-any-return]


def _filter(inside: nodes.Expr, name: str) -> nodes.Filter:
    # A template cannot write a name with a blank in it.
    return nodes.Filter(inside, name, [], [], None, None, lineno=inside.lineno)


def _in_context(function: Callable[[Any], Any]) -> Callable[[Context, Any], Any]:
    """A filter that Jinja does not work out beforehand, as it does with constants."""

    @pass_context
    def found(_: Context, value: Any) -> Any:
        return function(value)

    return found


def _sized(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > MOST_TEXT:
        raise _TooMuchError(f"a text of more than {MOST_TEXT:,} characters")
    if isinstance(value, int) and abs(value) >= MOST_NUMBER:
        raise _TooMuchError("a number of more than 64 bits")
    return value


def _not_wide(values: Any) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MOST_WIDTH:
            raise _TooMuchError(f"a width or range of more than {MOST_WIDTH:,}")


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with bounds on time and size."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        self.steps = 0
        for name in (*_RANDOM, *_PADDING):
            del self.filters[name]
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _refuse
        self.globals["range"] = _range
        self.filters["tojson"] = _to_json
        self.filters["counted step"] = _in_context(self._step)
        self.filters["sized text"] = _sized
        self.filters["replace"] = _replaced
        self.filters["join"] = pass_environment(_separated)
        self.filters["indent"] = _indented
        self.filters["joined text"] = _in_context(_joined)

    def _step(self, value: Any) -> Any:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise _TooMuchError(f"more than {MOST_STEPS:,} turns of its loops")
        return value

    def _generate(self, source: nodes.Template, *rest: Any, **named: Any) -> str:
        return super()._generate(_Counter().visit(source), *rest, **named)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Work out ``left operator right`` if its result is of a size that a prompt can need."""
        if operator == "**":
            raise _TooMuchError("a power")
        if operator == "%" and isinstance(left, str):
            raise _TooMuchError("a format of its own")
        if operator == "*":
            _not_repeated(left, right)
            _not_repeated(right, left)
        return _sized(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, *values: Any, **named: Any) -> Any:
        """Call ``function`` if no number given to it is out of measure."""
        _not_wide((*values, *named.values()))
        text = getattr(function, "__self__", None)
        name = getattr(function, "__name__", "")
        if name in ("format", "format_map"):
            raise _TooMuchError("a format of its own")
        if isinstance(text, str) and name == "replace":
            return _replaced(text, *values)
        if isinstance(text, str) and name == "join" and len(values) == 1:
            return _separated(self, values[0], text)
        return _sized(super().call(context, function, *values, **named))


def _not_repeated(text: Any, times: Any) -> None:
    some = isinstance(text, str | list | tuple) and isinstance(times, int)
    if some and len(text) * times > MOST_TEXT:
        raise _TooMuchError(f"a text of more than {MOST_TEXT:,} characters")


def _replaced(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    whole, old, new = str(text), str(old), str(new)
    times = whole.count(old) if count is None or count < 0 else min(count, whole.count(old))
    _not_repeated(new, times)
    return str(_sized(whole.replace(old, new, times)))


def _separated(
    environment: Environment, values: Any, d: str = "", attribute: str | int | None = None
) -> str:
    found = values
    if attribute is not None:
        found = map(make_attrgetter(environment, attribute), values)
    texts = [str(each) for each in found]
    if sum(map(len, texts)) + len(texts) * len(d) > MOST_TEXT:
        raise _TooMuchError(f"a text of more than {MOST_TEXT:,} characters")
    return str(d).join(texts)


def _indented(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if (width if isinstance(width, int) else len(width)) > MOST_INDENT:
        raise _TooMuchError(f"an indent of more than {MOST_INDENT}")
    return str(_sized(do_indent(text, width, first, blank)))


def _joined(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    if sum(map(len, texts)) > MOST_TEXT:
        raise _TooMuchError(f"a text of more than {MOST_TEXT:,} characters")
    return "".join(texts)


def _refuse(words: str) -> None:
    raise TemplateError(words)


def _range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > MOST_WIDTH:
        raise _TooMuchError(f"a width or range of more than {MOST_WIDTH:,}")
    return found


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= MOST_INDENT):
        raise _TooMuchError(f"JSON indented by more than {MOST_INDENT}")
    return json.dumps(value, ensure_ascii=False, indent=indent)


def load_template(path: Path) -> Render:
    """Return what makes a prompt by a chat template: Jinja text, or JSON that has one.

    It runs in Jinja's sandbox, with what templates expect: ``messages``, ``tools``,
    ``add_generation_prompt``, ``raise_exception``, ``tojson``, and the special tokens of a
    tokenizer_config.json. It gets no clock (``strftime_now``) and no chance (``random``): the same
    log gives the same text. Filters that pad and those that format are not there either. Beyond
    `MOST_STEPS` and `MOST_TEXT`, and where it takes powers or formats, it is refused; what one
    macro gathers is measured only when it is done. Raises InputError, also where a bound is met
    while rendering.
    """
    source, special = _template_source(path)
    environment = _Environment()
    try:
        template = environment.from_string(source)
    except (Exception, _TooMuchError) as error:  # constants are worked out here, by any filter
        raise InputError(str(path), f"not a chat template: {_one_line(error)}") from error

    def render(messages: list[Row], tools: Any) -> str:
        environment.steps = 0
        pieces = []
        length = 0
        try:
            for piece in template.generate(
                messages=messages, tools=tools, add_generation_prompt=True, **special
            ):
                length += len(piece)
                if length > MOST_TEXT:
                    raise _TooMuchError(f"a text of more than {MOST_TEXT:,} characters")
                pieces.append(piece)
        except _TooMuchError as error:
            raise InputError(str(path), f"the chat template asks too much: {error}") from error
        except Exception as error:  # a template may do anything to its input
            raise RowError(f"the chat template refuses it: {_one_line(error)}") from error
        return "".join(pieces)

    return render


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _template_source(path: Path) -> tuple[str, dict[str, str]]:
    """The template's text and the special tokens beside it. Raises InputError."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise InputError(str(path), os_fault(error)) from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), "not valid UTF-8") from error
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return text, {}
    if not isinstance(config, dict) or "chat_template" not in config:
        raise InputError(str(path), 'JSON without a "chat_template"')
    template = config["chat_template"]
    if isinstance(template, list):
        listed = (each for each in template if isinstance(each, dict))
        default = (each.get("template") for each in listed if each.get("name") == "default")
        template = next(default, None)
    if not isinstance(template, str):
        raise InputError(str(path), '"chat_template" must be a string, or a list with a "default"')
    special = {}
    for name, token in config.items():
        value = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(value, str):
            special[name] = value
    return template, special
