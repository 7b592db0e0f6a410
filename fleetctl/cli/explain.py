"""`explain`: the kinds that can be listed, and what each field of their JSON means, read from the API's own types."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel

from fleetctl.cli.completion import complete_field
from fleetctl.cli.kinds import MODELS, VIEWS, Kind, kind_of
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, print_table, stdout
from fleetctl.kit.errors import BadInputError

_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "not known"}


@dataclass(frozen=True, slots=True)
class FieldDoc:
    """One field of an answer. `below` is what it holds, where that has fields of its own."""

    name: str
    kind: str
    meaning: str
    below: type[BaseModel] | None


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("explain")
    def explain(
        path: Annotated[
            str,
            typer.Argument(
                metavar="[KIND[.FIELD]]",
                help="A kind, or a field of it; none: all kinds.",
                autocompletion=complete_field,
                show_default=False,
            ),
        ] = "",
        output: OutputOption = Output.table,
    ) -> None:
        """Say what can be listed, and what each field of it means."""
        if not path:
            _print_kinds(output)
            return
        kind, *names = path.split(".")
        found = kind_of(kind)
        model: type[BaseModel] | None = MODELS[found]
        about = first_line(model)
        field: FieldDoc | None = None
        for place, name in enumerate(names):
            fields = {one.name: one for one in docs_of(model)} if model is not None else {}
            if name not in fields:
                above = ".".join([kind, *names[:place]])
                known = f"one of {', '.join(fields)}" if fields else f"fleetctl explain {above}"
                raise BadInputError(f"{above} has no field {name[:50]!r}", remedy=known)
            field = fields[name]
            model, about = field.below, field.meaning
        _print_field(path, found if not names else None, field, about, model, output)


def _print_kinds(output: Output) -> None:
    if output in DATA:
        print_data([{"kind": kind.value, "meaning": first_line(MODELS[kind])} for kind in Kind], output)
    else:
        print_table(("kind", "what one is"), [(kind.value, first_line(MODELS[kind])) for kind in Kind], empty="")


def _print_field(
    path: str, kind: Kind | None, field: FieldDoc | None, about: str, model: type[BaseModel] | None, output: Output
) -> None:
    fields = list(docs_of(model)) if model is not None else []
    if output in DATA:
        told = [{"field": one.name, "type": one.kind, "meaning": one.meaning} for one in fields]
        print_data({"path": path, "type": field.kind if field else "mapping", "meaning": about, "fields": told}, output)
        return
    console = stdout()
    console.print(f"{path}" + (f" ({field.kind})" if field else "") + (f": {about}" if about else ""), markup=False)
    if fields:
        console.print()
        print_table(("field", "type", "meaning"), [(one.name, one.kind, one.meaning) for one in fields], empty="")
    if kind is not None:
        columns = ", ".join(column.title.lower() for column in VIEWS[kind].columns)
        console.print(f"\ncolumns of fleetctl get {kind} (--sort-by): {columns}", markup=False)


def first_line(model: type[BaseModel] | None) -> str:
    """What the model says of itself."""
    return inspect.getdoc(model).partition("\n")[0] if model is not None and model.__doc__ else ""  # type: ignore[union-attr]


def docs_of(model: type[BaseModel]) -> Iterator[FieldDoc]:
    """The fields that JSON has, in their order."""
    meanings: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if issubclass(one, BaseModel) and one is not BaseModel:
            meanings |= comments_of(one)
    for name, field in model.model_fields.items():
        words, below = type_words(field.annotation)
        meaning = field.description or meanings.get(name, "") or (first_line(below) if below is not None else "")
        yield FieldDoc(name, words, meaning, below)


def comments_of(model: type[BaseModel]) -> Mapping[str, str]:
    """What stands behind a field in the source, or in quotes below it."""
    try:
        source = textwrap.dedent(inspect.getsource(model))
    except (OSError, TypeError):
        return {}
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        quoted = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
        said = " ".join(quoted.split()) if isinstance(quoted, str) else comments.get(node.end_lineno or 0, "")
        found[node.target.id] = said
    return found


def type_words(annotation: Any) -> tuple[str, type[BaseModel] | None]:
    """The type for people, and the model within it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(arguments[0])
    if origin in (Union, types.UnionType):
        parts = [type_words(one) for one in arguments]
        return " or ".join(dict.fromkeys(words for words, _ in parts)), next(
            (below for _, below in parts if below), None
        )
    if origin is Literal:
        return "|".join(str(one) for one in arguments), None
    if origin in (list, tuple):
        words, below = type_words(arguments[0]) if arguments else ("anything", None)
        return f"list of {words}", below
    if origin is dict:
        words, below = type_words(arguments[1])
        return f"mapping to {words}", below
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping", annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(one.value) for one in annotation), None
    return _WORDS.get(annotation, "anything"), None
