"""A page: Markdown that a person reads and automation runs. What does it say, and is it sound?

    ---
    name: drain-node            front matter: see `front_matter`
    ---
    ## When to use              prose
    ## 1. Drain the node        a step: prose and one block ```fleetctl with one command a line
                                with a block of kind "when" before it, an expression: left out when that is 0
    ## Undo
    ### 1. Let it serve again   undoes step 1; written in the order a person does it, last step first

A page without steps is read, not run: it says what a person does where no command mends it.

Everything is checked when the page is loaded: verbs, options, types of inputs, and that each step that changes the
fleet says how it is undone, or in prose why it can't be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from runbooks.command import parse_command
from runbooks.errors import BadCommandError, BadInputError, BadPageError
from runbooks.front_matter import FrontMatter, InputSpec, Place, read_front_matter
from runbooks.sub_page import SubPage, is_sub_page, parse_sub_page
from runbooks.template import fill, fill_command, places, unquoted_places
from runbooks.value import ValueType, did_you_mean
from runbooks.verb import Verify

MAX_PAGE_BYTES = 256 * 1024
LANGUAGE = "fleetctl"
CONDITION = "when"
LIBRARY = Path(__file__).parent / "library"


@dataclass(frozen=True, slots=True)
class PageStep:
    """One command of a page. Commands of one section share `number` and `title`.

    `command` is a template without the leading `fleetctl`. It is empty in an undo item of prose only, which says why
    there is nothing to run. `when` is a PromQL template: the step is done when its value is not 0; empty: always.
    """

    number: int
    title: str
    command: str
    line: int
    when: str = ""

    @property
    def is_sub_page(self) -> bool:
        """Whether it runs another page."""
        return is_sub_page(self.command)


@dataclass(frozen=True, slots=True)
class Page:
    """A checked page. Titles, commands and the expectation are templates over `inputs`."""

    name: str
    title: str
    risk: str
    causes: tuple[str, ...]
    inputs: Mapping[str, InputSpec]
    steps: tuple[PageStep, ...]
    verify: Verify | None
    undo: tuple[PageStep, ...]
    markdown: str

    @property
    def is_by_hand(self) -> bool:
        """Whether it has no step: a person reads it."""
        return not self.steps

    @property
    def sub_pages(self) -> tuple[tuple[str, int], ...]:
        """Names of the pages that its steps run, each with the line where."""
        return tuple((self.sub_page(step).name, step.line) for step in self.steps if step.is_sub_page)

    def sub_page(self, step: PageStep) -> SubPage:
        """What a step that runs a page runs, with examples for this page's inputs."""
        examples = {name: spec.example for name, spec in self.inputs.items()}
        return parse_sub_page(fill_command(step.command, examples))

    @property
    def expressions(self) -> tuple[tuple[str, str, int], ...]:
        """Every PromQL template on the page with examples filled in: where it stands, its text, the line; 0: head."""
        examples = {name: spec.example for name, spec in self.inputs.items()}
        found = [("verify.expect", fill(self.verify.expect, examples), 0)] if self.verify is not None else []
        found += [(f"inputs.{name}.seen", fill(one.seen, examples), 0) for name, one in self.inputs.items() if one.seen]
        for step in self.steps:
            if step.when:
                found.append(("when", fill(step.when, examples), step.line))
            if step.command and not step.is_sub_page:
                until = parse_command(fill_command(step.command, examples)).args.get("until")
                found += [("--until", until, step.line)] if until else []
        return tuple(found)


def builtin_page_files() -> list[Path]:
    """The pages that ship with the package, sorted by name."""
    return _page_files(LIBRARY)


def load_library(directory: Path | None = None) -> dict[str, Page]:
    """All pages (`*.md` but README.md) of a directory by name; None is the built-in library. Raises BadPageError."""
    folder = directory or LIBRARY
    if not folder.is_dir():
        raise BadPageError(str(folder), 0, "no such directory", remedy="name a directory of runbook pages")
    pages = (load_page(path) for path in _page_files(folder))
    return {page.name: page for page in pages}


def _page_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.md")) if path.name != "README.md"]


def load_page(path: Path) -> Page:
    """One page from its file, which must be named after it. Raises BadPageError."""
    start = Place(str(path), 1)
    try:
        if path.stat().st_size > MAX_PAGE_BYTES:
            raise start.error(f"the page is larger than {MAX_PAGE_BYTES // 1024} KiB", "split it")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise start.error(f"can't be read: {error}", "check the file and its encoding (UTF-8)") from None
    page = parse_page(text, str(path))
    if page.name != path.stem:
        raise start.error(f"the page is named {page.name!r}", f"name the file {page.name}.md or change `name`")
    return page


def parse_page(text: str, file: str) -> Page:
    """The page in `text`; `file` is what errors call it. Raises BadPageError."""
    lines = text.split("\n")
    if not lines or lines[0].rstrip() != "---":
        raise Place(file, 1).error("no front matter", "start the page with a --- line and its YAML")
    end = next((i for i, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise Place(file, 1).error("the front matter has no end", "close it with a --- line")
    head = read_front_matter(file, "\n".join(lines[1:end]), first_line=2)
    body = _Body(file, end + 1)
    body.read("\n".join(lines[end + 1 :]))
    steps, undo = tuple(body.steps), tuple(body.undo)
    _check_commands(file, head, steps + undo)
    _check_undo(file, steps, undo, body.undo_line)
    _check_rest(file, head, steps + undo)
    return Page(head.name, head.title, head.risk, head.causes, head.inputs, steps, head.verify, undo, text)


_NUMBERED = re.compile(r"(\d{1,2})\.\s+(\S.*)")


@dataclass
class _Section:
    kind: str  # "prose", "step" or "undo"
    number: int
    title: str
    line: int
    num_blocks: int = 0
    when: str = ""
    has_prose: bool = False


@dataclass
class _Body:
    """Walks the Markdown tokens once and collects steps and undo items."""

    file: str
    offset: int  # file lines before the body
    steps: list[PageStep] = field(default_factory=list)
    undo: list[PageStep] = field(default_factory=list)
    undo_line: int | None = None

    def read(self, markdown: str) -> None:
        section = _Section("prose", 0, "", 1)
        num_steps = 0
        tokens = MarkdownIt("commonmark").parse(markdown)
        for token, following in zip(tokens, [*tokens[1:], None], strict=True):
            if token.type == "heading_open" and token.level == 0 and following is not None:
                opened = self._open(token, following.content.strip(), num_steps)
                if opened is not None:
                    self._close(section)
                    section = opened
                    num_steps += section.kind == "step"
            elif token.type == "fence" and token.info.split()[:1] == [LANGUAGE]:
                self._fence(token, section)
            elif token.type == "fence" and token.info.split()[:1] == [CONDITION]:
                self._condition(token, section)
            elif token.type == "paragraph_open":
                section.has_prose = True
        self._close(section)

    def _open(self, token: Token, text: str, num_steps: int) -> _Section | None:
        """The section that a heading begins; None for a smaller heading inside one."""
        line = self._line(token)
        place = Place(self.file, line)
        numbered = _NUMBERED.fullmatch(text)
        if token.tag == "h2" and numbered:
            if self.undo_line is not None:
                raise place.error("a step after ## Undo", "put ## Undo last")
            if int(numbered[1]) != num_steps + 1:
                raise place.error(f"step {numbered[1]} follows step {num_steps}", f"number it {num_steps + 1}")
            return _Section("step", int(numbered[1]), numbered[2], line)
        if token.tag == "h2" and text.lower() == "undo":
            if self.undo_line is not None:
                raise place.error("a second ## Undo", "keep one")
            self.undo_line = line
            return _Section("prose", 0, text, line)
        if token.tag == "h3" and self.undo_line is not None:
            if not numbered:
                raise place.error(f"undo item {text!r} names no step", f"write `### 1. {text}` if it undoes step 1")
            return _Section("undo", int(numbered[1]), numbered[2], line)
        if token.tag in ("h1", "h2"):
            return _Section("prose", 0, text, line)
        return None

    def _close(self, section: _Section) -> None:
        place = Place(self.file, section.line)
        if section.kind == "step" and section.num_blocks != 1:
            raise place.error(
                f"step {section.number} has {section.num_blocks} ```fleetctl blocks", "give each step exactly one"
            )
        if section.kind == "undo" and section.num_blocks == 0:
            if not section.has_prose:
                raise place.error(f"undo of step {section.number} is empty", "give commands, or say why there are none")
            self.undo.append(PageStep(section.number, section.title, "", section.line))

    def _fence(self, token: Token, section: _Section) -> None:
        place = Place(self.file, self._line(token))
        if section.kind == "prose" or token.level:
            raise place.error(
                "a ```fleetctl block outside of a step", "put it under `## 1. Title` or `### 1. Title` of ## Undo"
            )
        section.num_blocks += 1
        if section.num_blocks > 1:
            raise place.error(f"a second ```fleetctl block in {section.title!r}", "put all commands into one")
        into = self.steps if section.kind == "step" else self.undo
        commands = list(self._commands(token))
        if not commands:
            raise place.error("the ```fleetctl block has no command", "write one command a line")
        into.extend(PageStep(section.number, section.title, text, line, section.when) for line, text in commands)

    def _condition(self, token: Token, section: _Section) -> None:
        place = Place(self.file, self._line(token))
        if section.kind != "step" or token.level or section.num_blocks:
            raise place.error("a ```when block that no step follows", "put it before the ```fleetctl block of a step")
        if section.when:
            raise place.error(f"a second ```when block in {section.title!r}", "join the two with `and`")
        section.when = " ".join(token.content.split())
        if not section.when:
            raise place.error("the ```when block is empty", "write an expression, or remove it")

    def _commands(self, token: Token) -> Iterator[tuple[int, str]]:
        for i, raw in enumerate(token.content.splitlines()):
            text, line = raw.strip(), self._line(token) + 1 + i
            if not text or text.startswith("#"):
                continue
            if text.split()[0] != LANGUAGE:
                raise Place(self.file, line).error(f"{text.split()[0]!r} is not run here", "start with `fleetctl`")
            yield line, text.removeprefix(LANGUAGE).strip()

    def _line(self, token: Token) -> int:
        assert token.map is not None
        return self.offset + token.map[0] + 1


def _check_commands(file: str, head: FrontMatter, steps: tuple[PageStep, ...]) -> None:
    examples = {name: spec.example for name, spec in head.inputs.items()}
    for step in steps:
        place = Place(file, step.line)
        _check_places(place, step.title, head)
        if not step.command:
            continue
        _check_places(place, step.command, head)
        try:
            # with an example of each type: `--deadline {{node}}` is wrong whatever the value
            filled = fill_command(step.command, examples)
            if step.is_sub_page:
                parse_sub_page(filled)
            else:
                parse_command(filled)
        except (BadCommandError, BadInputError) as error:
            raise place.error(error.message, error.remedy) from None


def _check_undo(file: str, steps: tuple[PageStep, ...], undo: tuple[PageStep, ...], undo_line: int | None) -> None:
    numbers = {step.number for step in steps}
    last: int | None = None
    for item in undo:
        place = Place(file, item.line)
        if item.number not in numbers:
            raise place.error(f"undo of step {item.number}, which does not exist", "number it after its step")
        if last is not None and item.number > last:
            raise place.error(f"undo of step {item.number} after that of step {last}", "undo the last step first")
        if item.is_sub_page:
            raise place.error("an undo that runs a page", "write the commands themselves")
        if any(step.number == item.number and step.is_sub_page for step in steps):
            raise place.error(f"step {item.number} runs a page, which has an undo of its own", "remove this item")
        last = item.number
    undone = {item.number for item in undo}
    for step in steps:
        if step.number not in undone and not step.is_sub_page and parse_command(_example(step)).verb.mutates:
            raise Place(file, undo_line or step.line).error(
                f"step {step.number} changes the fleet and has no undo",
                f"add `### {step.number}. Title` under ## Undo, with commands or why there are none",
            )


def _check_rest(file: str, head: FrontMatter, steps: tuple[PageStep, ...]) -> None:
    used = set(_check_places(head.lines.at(("title",)), head.title, head))
    if head.verify and not steps:
        raise head.lines.at(("verify",)).error("a page without steps has nothing to verify", "remove it, or add a step")
    for step in steps:
        used.update(places(step.command), places(step.title))
        place = Place(file, step.line)
        used.update(_check_places(place, step.when, head))
        _check_quotes(place, "```when", step.when, head)
    if head.verify:
        place = head.lines.at(("verify", "expect"))
        used.update(_check_places(place, head.verify.expect, head))
        used.update(_check_places(head.lines.at(("verify", "says")), head.verify.says, head))
        _check_quotes(place, "verify.expect", head.verify.expect, head)
    for name, spec in head.inputs.items():
        place = head.lines.at(("inputs", name, "seen"))
        used.update(_check_places(place, spec.seen, head))
        _check_quotes(place, f"inputs.{name}.seen", spec.seen, head)
        if name in places(spec.seen):
            raise place.error(f"inputs.{name}.seen uses the input itself", "name the inputs that it depends on")
    for name in head.inputs:
        if name not in used:
            raise head.lines.at(("inputs", name)).error(
                f"input {name!r} is never used", "use it in a step or remove it"
            )


def _check_quotes(place: Place, where: str, expression: str, head: FrontMatter) -> None:
    for name in unquoted_places(expression):
        if head.inputs[name].type is not ValueType.NUMBER and head.inputs[name].type is not ValueType.DURATION:
            raise place.error(f"{where} uses {{{{{name}}}}} outside of double quotes", 'write it as label="{{input}}"')


def _check_places(place: Place, template: str, head: FrontMatter) -> list[str]:
    try:
        names = places(template)
    except BadInputError as error:
        raise place.error(error.message, error.remedy) from None
    for name in names:
        if name not in head.inputs:
            raise place.error(f"undefined input {{{{{name}}}}}", did_you_mean(name, head.inputs))
    return names


def _example(step: PageStep) -> str:
    """The command with a value that every type of input takes; its verb does not depend on inputs."""
    return fill_command(step.command, dict.fromkeys(places(step.command), "1"))
