"""Text of labels and annotations: Go templates as alert rules use them.

Values (`$value`, `$labels.x`), pipelines, variables, if/with/range and the functions of Prometheus. Templates that are
defined by name are refused when the rule is loaded. Of Prometheus itself nothing is known: `$externalURL` is empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from alerts.errors import AlertsError
from alerts.evaluation.template_functions import (
    FUNCTIONS,
    BadTemplateError,
    QuerySample,
    TemplateData,
    TemplateFunction,
    Value,
    field_of,
    is_true,
    shown,
)
from alerts.promql import evaluate
from alerts.series.store import SeriesStore

MAX_TEMPLATE_CHARS = 16 * 1024
MAX_OUTPUT_CHARS = 64 * 1024
MAX_DEPTH = 50

_ACTION = re.compile(
    r'\{\{(?P<left>-(?=\s))?(?P<inner>(?:"(?:[^"\\\n]|\\.)*"|`[^`]*`|[^"`}]|\}(?!\}))*?)(?P<right>\s-)?\}\}', re.S
)
_COMMENT = re.compile(r"\{\{(?P<left>-\s+)?/\*.*?\*/(?P<right>\s+-)?\}\}", re.S)
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\\n]|\\.)*"|`[^`]*`)'
    r"|(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?))"
    r"|(?P<variable>\$\w*(?:\.\w+)*)|(?P<field>(?:\.\w+)+|\.)|(?P<word>[A-Za-z_]\w*)|(?P<mark>:=|[()|,=]))"
)
_REFUSED = frozenset({"define", "template", "block", "break", "continue"})
_CONSTANTS = {"true": True, "false": False, "nil": None}
_ROOT = {"$", "$labels", "$value", "$externalLabels", "$externalURL"}


@dataclass(slots=True)
class _Frame:
    """Where a template is while it is rendered: the dot, the variables, and what was written."""

    data: TemplateData
    dot: Value
    variables: dict[str, Value]
    written: list[str] = field(default_factory=list)
    num_chars: int = 0

    def write(self, text: str) -> None:
        self.num_chars += len(text)
        if self.num_chars > MAX_OUTPUT_CHARS:
            raise BadTemplateError(f"gives more than {MAX_OUTPUT_CHARS} characters")
        self.written.append(text)


_Expr = Callable[[_Frame], Value]
_Step = Callable[[_Frame], None]


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template of Go's text/template, with Prometheus' functions."""

    text: str
    steps: tuple[_Step, ...]

    def render(
        self,
        labels: Mapping[str, str],
        value: float,
        query: Callable[[str], Sequence[QuerySample]] | None = None,
        at: float = 0.0,
    ) -> str:
        """Raises BadTemplateError when a function cannot take the value it is given."""
        root = {"Labels": labels, "Value": value, "ExternalLabels": {}, "ExternalURL": ""}
        known = {"$": root, "$labels": labels, "$value": value, "$externalLabels": {}, "$externalURL": ""}
        frame = _Frame(TemplateData(labels, value, query, at), root, known)
        try:
            for step in self.steps:
                step(frame)
        except BadTemplateError:
            raise
        except (AlertsError, ArithmeticError, LookupError, TypeError, ValueError, re.error) as error:
            # A value that a function cannot take: NaN as a whole number, a duration that is none.
            raise BadTemplateError(" ".join(str(error).split())) from None
        return "".join(frame.written)


def parse_template(text: str) -> Template:
    """Raises BadTemplateError with a one-line reason."""
    if len(text) > MAX_TEMPLATE_CHARS:
        raise BadTemplateError(f"longer than {MAX_TEMPLATE_CHARS} characters")
    parser = _Parser(_pieces(text))
    steps, end = parser.block(0)
    if end:
        raise BadTemplateError(f"{end} without if, with or range in {{{{ {end} }}}}")
    return Template(text, steps)


def _pieces(text: str) -> list[tuple[str, str]]:
    """("text", literal) and ("action", what stands between the braces), in turn; spaces trimmed where `-` says so."""
    pieces: list[tuple[str, str]] = []
    at = 0
    trim_next = False
    while True:
        start = text.find("{{", at)
        action = _COMMENT.match(text, start) or _ACTION.match(text, start) if start >= 0 else None
        literal = text[at : start if start >= 0 else None]
        if trim_next:
            literal = literal.lstrip()
        if action is not None and action.group("left"):
            literal = literal.rstrip()
        if start >= 0 and action is None:
            raise BadTemplateError("{{ without }}")
        pieces.append(("text", literal))
        if action is None:
            return pieces
        if action.re is _ACTION:
            pieces.append(("action", action.group("inner").strip()))
        trim_next, at = action.group("right") is not None, action.end()


class _Parser:
    def __init__(self, pieces: list[tuple[str, str]]) -> None:
        self._pieces = pieces
        self._at = 0
        self._known: list[set[str]] = [set(_ROOT)]

    def block(self, depth: int) -> tuple[tuple[_Step, ...], str]:
        """What stands up to the next `end` or `else ...`, and that action; "" at the end of the text."""
        if depth > MAX_DEPTH:
            raise BadTemplateError(f"nested deeper than {MAX_DEPTH}")
        steps: list[_Step] = []
        while self._at < len(self._pieces):
            kind, text = self._pieces[self._at]
            self._at += 1
            if kind == "text":
                if text:
                    steps.append(_writing(text))
                continue
            word, _, rest = text.partition(" ") if " " in text else (text, "", "")
            if word in ("end", "else"):
                return tuple(steps), text
            if word in _REFUSED:
                raise BadTemplateError(f"{word} is not supported in {{{{ {text} }}}}")
            if word in ("if", "with", "range"):
                steps.append(self._branch(word, rest, text, depth))
            else:
                steps.append(_Expression(text, self._known).statement())
        return tuple(steps), ""

    def _branch(self, word: str, head: str, text: str, depth: int) -> _Step:
        self._known.append(set())
        names, value = _Expression(head, self._known, shown_as=text).declared(many=word == "range")
        self._known[-1] |= set(names)
        inner, end = self.block(depth + 1)
        self._known.pop()
        otherwise: tuple[_Step, ...] = ()
        if end.startswith("else"):
            rest = end.removeprefix("else").strip()
            if rest:  # `else if ...` is an if in the else, and shares its end
                chained, _, condition = rest.partition(" ")
                if chained not in ("if", "with"):
                    raise BadTemplateError(f"cannot read {{{{ {end} }}}}")
                otherwise, end = (self._branch(chained, condition, rest, depth + 1),), "end"
            else:
                otherwise, end = self.block(depth + 1)
        if end != "end":
            raise BadTemplateError(f"{word} without end in {{{{ {text} }}}}")
        return {"if": _if, "with": _with, "range": _range}[word](names, value, inner, otherwise)


def _writing(text: str) -> _Step:
    return lambda frame: frame.write(text)


def _run(steps: tuple[_Step, ...], frame: _Frame, dot: Value, **variables: Value) -> None:
    """Variables that are declared inside are gone afterwards; those from outside may be changed."""
    before_dot, before = frame.dot, dict(frame.variables)
    frame.dot = dot
    frame.variables.update({f"${name}": value for name, value in variables.items()})
    for step in steps:
        step(frame)
    frame.dot = before_dot
    frame.variables = {name: frame.variables[name] if name[1:] not in variables else before[name] for name in before}


def _if(names: list[str], value: _Expr, inner: tuple[_Step, ...], otherwise: tuple[_Step, ...]) -> _Step:
    def step(frame: _Frame) -> None:
        found = value(frame)
        _run(inner if is_true(found) else otherwise, frame, frame.dot, **{name[1:]: found for name in names})

    return step


def _with(names: list[str], value: _Expr, inner: tuple[_Step, ...], otherwise: tuple[_Step, ...]) -> _Step:
    def step(frame: _Frame) -> None:
        found = value(frame)
        own = {name[1:]: found for name in names}
        _run(inner, frame, found, **own) if is_true(found) else _run(otherwise, frame, frame.dot, **own)

    return step


def _range(names: list[str], value: _Expr, inner: tuple[_Step, ...], otherwise: tuple[_Step, ...]) -> _Step:
    def step(frame: _Frame) -> None:
        found = value(frame)
        if isinstance(found, Mapping):
            items: list[tuple[Value, Value]] = sorted(found.items())
        elif isinstance(found, list | tuple):
            items = list(enumerate(found))
        elif not is_true(found):
            items = []
        else:
            raise BadTemplateError(f"range can't iterate over {shown(found)[:60]}")
        for key, one in items:
            own = dict(zip([name[1:] for name in names], [one] if len(names) == 1 else [key, one], strict=False))
            _run(inner, frame, one, **own)
        if not items:
            _run(otherwise, frame, frame.dot)

    return step


class _Expression:
    """Reads one {{ action }}."""

    def __init__(self, text: str, known: list[set[str]], *, shown_as: str | None = None) -> None:
        self.text = text if shown_as is None else shown_as
        self._known = known
        self.tokens: list[tuple[str, str, bool]] = []  # kind, text, whether it stands right behind the one before
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None or token.lastgroup is None:
                raise self._error(f"cannot read {{{{ {self.text} }}}} at {text[at:].strip()[:20]!r}", whole=True)
            self.tokens.append((token.lastgroup, token.group(token.lastgroup), token.start(token.lastgroup) == at))
            at = token.end()
            if not text[at:].strip():
                break
        self.at = 0

    def _error(self, reason: str, *, whole: bool = False) -> BadTemplateError:
        return BadTemplateError(reason if whole else f"{reason} in {{{{ {self.text} }}}}")

    def statement(self) -> _Step:
        """A pipeline whose value is written, or a variable that is set."""
        if len(self.tokens) > 1 and self.tokens[0][0] == "variable" and self.tokens[1][1] in (":=", "="):
            name, sign = self.tokens[0][1], self.tokens[1][1]
            if sign == "=":
                self._check_variable(name)
            self.at = 2
            part = self._whole()
            if sign == ":=":
                self._known[-1].add(name)

            def assign(frame: _Frame) -> None:
                frame.variables[name] = part(frame)

            return assign
        part = self._whole()
        return lambda frame: frame.write(shown(part(frame)))

    def declared(self, *, many: bool) -> tuple[list[str], _Expr]:
        """The variables in front of `:=`, if any, and the pipeline. `many`: two may be declared."""
        names: list[str] = []
        marks = [text for _, text, _ in self.tokens[:4]]
        for count in (1, 2) if many else (1,):
            if marks[: 2 * count][1::2] == [","] * (count - 1) + [":="]:
                names = marks[: 2 * count : 2]
                self.at = 2 * count
        return names, self._whole()

    def _whole(self) -> _Expr:
        part = self._pipe()
        if self.at < len(self.tokens):
            raise self._error(f"unexpected {self.tokens[self.at][1]!r}")
        return part

    def _peek(self) -> tuple[str, str, bool]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "", False)

    def _pipe(self) -> _Expr:
        part = self._command(None)
        while self._peek()[:2] == ("mark", "|"):
            self.at += 1
            if self._peek()[0] != "word":
                raise self._error("a function must follow |")
            part = self._command(part)
        return part

    def _command(self, piped: _Expr | None) -> _Expr:
        kind, text, _ = self._peek()
        if kind != "word" or text in _CONSTANTS:
            return self._operand()
        self.at += 1
        args: list[_Expr] = []
        while self._peek()[0] != "end" and self._peek()[:2] not in (("mark", "|"), ("mark", ")")):
            args.append(self._operand())
        return self._call(text, [*args, piped] if piped is not None else args)

    def _call(self, name: str, args: list[_Expr]) -> _Expr:
        if name in _REFUSED:
            raise self._error(f"{name} is not supported")
        function: TemplateFunction | None = FUNCTIONS.get(name)
        if function is None:
            raise self._error(f"unknown function {name}")
        if len(args) not in function.counts if function.counts is not None else not args:
            raise self._error(f"{name} got {len(args)} arguments")
        call = function.call
        if function.needs_data:
            return lambda frame: call(frame.data, *(arg(frame) for arg in args))
        return lambda frame: call(*(arg(frame) for arg in args))

    def _operand(self) -> _Expr:
        kind, text, _ = self._peek()
        self.at += 1
        match kind:
            case "text":
                return _constant(_unquoted(text))
            case "number":
                return _constant(_number(text))
            case "variable":
                name, *fields = text.split(".")
                self._check_variable(name)
                return _fields(lambda frame: frame.variables[name], fields)
            case "field":
                return _fields(lambda frame: frame.dot, [one for one in text.split(".") if one])
            case "mark" if text == "(":
                part = self._pipe()
                if self._peek()[:2] != ("mark", ")"):
                    raise self._error("( without )")
                self.at += 1
                after, chain, is_joined = self._peek()
                if after == "field" and is_joined:
                    self.at += 1
                    return _fields(part, [one for one in chain.split(".") if one])
                return part
            case "word" if text in _CONSTANTS:
                return _constant(_CONSTANTS[text])
            case "word" if text in FUNCTIONS or text in _REFUSED:
                return self._call(text, [])
            case "word":
                raise self._error(f"unknown function {text}")
            case "end":
                raise self._error(f"{{{{ {self.text} }}}} is not complete", whole=True)
            case _:
                raise self._error(f"unexpected {text!r}")

    def _check_variable(self, name: str) -> None:
        if not any(name in names for names in self._known):
            raise self._error(f"undefined variable {name}")


def _constant(value: Value) -> _Expr:
    return lambda frame: value


def _fields(part: _Expr, names: list[str]) -> _Expr:
    if not names:
        return part

    def read(frame: _Frame) -> Value:
        value = part(frame)
        for name in names:
            value = field_of(value, name)
        return value

    return read


def _number(text: str) -> int | float:
    try:
        return int(text, 0)
    except ValueError:
        return float(text)


def _unquoted(text: str) -> str:
    if text[0] == "`":
        return text[1:-1]
    escapes = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
    return re.sub(r"\\(.)", lambda match: escapes.get(match.group(1), match.group()), text[1:-1])


def query_at(expression: str, store: SeriesStore, at: float) -> list[QuerySample]:
    """The series of an instant query at `at` (Unix seconds). Raises AlertsError."""
    return [QuerySample(one.labels, one.value) for one in evaluate(expression, store, at)]


__all__ = ["BadTemplateError", "QuerySample", "Template", "parse_template"]
