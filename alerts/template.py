"""Text of labels and annotations: the part of Go templates that alert rules use.

Values (`$value`, `$labels.x`, strings, numbers), pipelines, parentheses and Prometheus' formatting functions.
Control flow and queries are refused when the rule is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from alerts import go_text
from alerts.errors import AlertsError
from alerts.matcher import compile_go
from alerts.notation import parse_duration_s

MAX_TEMPLATE_CHARS = 16 * 1024

_ACTION = re.compile(r"\{\{(-\s)?(.*?)(\s-)?\}\}", re.S)
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|`[^`]*`)|(?P<number>[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?)'
    r"|(?P<value>\$value\b|\.Value\b)|(?P<label>(?:\$labels|\.Labels|\$externalLabels|\.ExternalLabels)\.\w+)"
    r"|(?P<external>\$externalURL\b|\.ExternalURL\b)|(?P<word>[A-Za-z]\w*)|(?P<mark>[()|]))"
)
_REFUSED = {
    *("if", "else", "end", "range", "with", "define", "template", "block"),
    *("query", "first", "value", "label", "sortByLabel", "graphLink", "tableLink", "externalURL"),
}
_PRINTF = re.compile(r"%(?:%|[-+ 0#]*\d*(?:\.\d+)?[a-zA-Z])")

Value = str | float


class BadTemplateError(AlertsError):
    pass


@dataclass(frozen=True, slots=True)
class Facts:
    """What a template can say."""

    labels: Mapping[str, str]
    value: float


_Part = Callable[[Facts], Value]


@dataclass(frozen=True, slots=True)
class Template:
    text: str
    parts: tuple[_Part, ...]

    def render(self, labels: Mapping[str, str], value: float) -> str:
        """Raises BadTemplateError when a function cannot take the value it is given."""
        facts = Facts(labels, value)
        return "".join(_shown(part(facts)) for part in self.parts)


def parse_template(text: str) -> Template:
    """Raises BadTemplateError with a one-line reason."""
    if len(text) > MAX_TEMPLATE_CHARS:
        raise BadTemplateError(f"longer than {MAX_TEMPLATE_CHARS} characters")
    parts: list[_Part] = []
    at = 0
    trim_next = False
    for action in _ACTION.finditer(text):
        literal = text[at : action.start()]
        if trim_next:
            literal = literal.lstrip()
        if action.group(1):
            literal = literal.rstrip()
        trim_next = action.group(3) is not None
        parts.append(_constant(literal))
        inner = action.group(2).strip()
        if not inner.startswith("/*"):
            parts.append(_Expression(inner).pipeline())
        at = action.end()
    rest = text[at:].lstrip() if trim_next else text[at:]
    if "{{" in rest:
        raise BadTemplateError("{{ without }}")
    parts.append(_constant(rest))
    return Template(text, tuple(parts))


class _Expression:
    """Reads one {{ action }}."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None or token.lastgroup is None:
                raise BadTemplateError(f"cannot read {{{{ {text} }}}} at {text[at:].strip()[:20]!r}")
            self.tokens.append((token.lastgroup, token.group(token.lastgroup)))
            at = token.end() + (len(text[token.end() :]) - len(text[token.end() :].lstrip()))
        self.at = 0

    def pipeline(self) -> _Part:
        part = self._pipe()
        if self.at < len(self.tokens):
            raise BadTemplateError(f"unexpected {self.tokens[self.at][1]!r} in {{{{ {self.text} }}}}")
        return part

    def _peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def _pipe(self) -> _Part:
        part = self._command(None)
        while self._peek() == ("mark", "|"):
            self.at += 1
            if self._peek()[0] != "word":
                raise BadTemplateError(f"a function must follow | in {{{{ {self.text} }}}}")
            part = self._command(part)
        return part

    def _command(self, piped: _Part | None) -> _Part:
        kind, text = self._peek()
        if kind != "word":
            return self._operand()
        self.at += 1
        if text in _REFUSED:
            raise BadTemplateError(f"{text} is not supported in {{{{ {self.text} }}}}")
        if text not in _FUNCTIONS:
            raise BadTemplateError(f"unknown function {text} in {{{{ {self.text} }}}}")
        function, counts = _FUNCTIONS[text]
        args: list[_Part] = []
        while self._peek()[0] != "end" and self._peek() not in (("mark", "|"), ("mark", ")")):
            args.append(self._operand())
        if piped is not None:
            args.append(piped)
        if len(args) not in counts:
            raise BadTemplateError(f"{text} got {len(args)} arguments in {{{{ {self.text} }}}}")
        return lambda facts: function(*(arg(facts) for arg in args))

    def _operand(self) -> _Part:
        kind, text = self._peek()
        self.at += 1
        match kind:
            case "text":
                return _constant(_unquoted(text))
            case "number":
                return _constant(float(text))
            case "value":
                return lambda facts: facts.value
            case "label":
                owner, _, name = text.rpartition(".")
                if "xternal" in owner:
                    return _constant("")
                return lambda facts: facts.labels.get(name, "")
            case "external":
                return _constant("")
            case "mark" if text == "(":
                part = self._pipe()
                if self._peek() != ("mark", ")"):
                    raise BadTemplateError(f"( without ) in {{{{ {self.text} }}}}")
                self.at += 1
                return part
            case "word":
                raise BadTemplateError(f"unexpected {text!r} in {{{{ {self.text} }}}}")
            case _:
                raise BadTemplateError(f"{{{{ {self.text} }}}} is not complete")


def _constant(value: Value) -> _Part:
    return lambda facts: value


def _unquoted(text: str) -> str:
    if text[0] == "`":
        return text[1:-1]
    escapes = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
    return re.sub(r"\\(.)", lambda match: escapes.get(match.group(1), match.group()), text[1:-1])


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else go_text.plain(value)


def _number(value: Value) -> float:
    if isinstance(value, float):
        return value
    try:
        return float(value)
    except ValueError:
        raise BadTemplateError(f"{value!r} is not a number") from None


def _formatting(write: Callable[[float], str]) -> Callable[..., Value]:
    return lambda value: write(_number(value))


def _printf(form: Value, *args: Value) -> str:
    """Go's Printf with the verbs that numbers and strings need."""
    left = list(args)

    def one(match: re.Match[str]) -> str:
        verb = match.group()
        if verb == "%%":
            return "%"
        if not left:
            return f"%!{verb[-1]}(MISSING)"
        value = left.pop(0)
        match verb[-1]:
            case "v" | "s":
                return f"{verb[:-1]}s" % _shown(value)
            case "q":
                return '"' + _shown(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
            case "d":
                return f"{verb[:-1]}d" % int(_number(value))
            case "e" | "f" | "g" | "E" | "F" | "G":
                return verb % _number(value)
            case other:
                raise BadTemplateError(f"printf verb %{other} is not supported")

    return _PRINTF.sub(one, _shown(form))


def _replace_all(pattern: Value, replacement: Value, text: Value) -> str:
    template = re.sub(r"\$\{?(\w+)\}?", r"\\g<\1>", _shown(replacement).replace("\\", "\\\\"))
    return compile_go(_shown(pattern)).sub(template, _shown(text))


_ONE = frozenset({1})
_FUNCTIONS: dict[str, tuple[Callable[..., Value], frozenset[int]]] = {
    "humanize": (_formatting(go_text.humanize), _ONE),
    "humanize1024": (_formatting(go_text.humanize1024), _ONE),
    "humanizeDuration": (_formatting(go_text.humanize_duration), _ONE),
    "humanizePercentage": (_formatting(go_text.humanize_percentage), _ONE),
    "humanizeTimestamp": (_formatting(go_text.humanize_timestamp), _ONE),
    "printf": (_printf, frozenset(range(1, 10))),
    "toUpper": (lambda value: _shown(value).upper(), _ONE),
    "toLower": (lambda value: _shown(value).lower(), _ONE),
    "title": (lambda value: _shown(value).title(), _ONE),
    "stripPort": (lambda value: re.sub(r":\d+$", "", _shown(value)), _ONE),
    "stripDomain": (lambda value: _shown(value).split(".", 1)[0], _ONE),
    "parseDuration": (lambda value: parse_duration_s(_shown(value)), _ONE),
    "reReplaceAll": (_replace_all, frozenset({3})),
}
