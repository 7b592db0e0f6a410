"""Which templates carry fields early that differ in every request, and so keep their prompts from sharing KV blocks.

No text is kept. Of the newest prompt of each template there are hashes under a key of this process: one for each chunk
(a line, or a sentence of a long line). The next prompt of the template is held against them when it arrives; where the
two first differ, the kind of field that stands there is judged at once, and only its kind and position are counted.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from fleetctl.gateway.prompts.messages import messages_of, role_of, tool_texts
from fleetctl.gateway.prompts.token_ratio import TokenRatio
from fleetctl.gateway.prompts.volatile_fields import VolatileKind, first_field, without_fields
from fleetctl.gateway.routing.routing_facts import content_text

MAX_CHUNKS = 2048
MAX_MASKED_CHUNKS = 48  # of these it is told whether only fields differ; later ones count as words
MAX_MASKED_CHARS = 1000
LONG_LINE_CHARS = 240
MIN_SHARED_CHARS = 16  # a role or a brace that stands in every prompt is no prefix that was lost
SHINGLES = 16  # of a template's sketch
SKETCH_CHARS = 1600
SAME_TEMPLATE = 0.5
MAX_SPOTS = 24
SPOT_TOKENS = 16

REMEDIES: Mapping[VolatileKind, str] = {
    VolatileKind.TIMESTAMP: "put the time behind the stable text, or leave it out",
    VolatileKind.DATE: "put the date behind the stable text",
    VolatileKind.UUID: "put the id behind the stable text, or send it as metadata",
    VolatileKind.ID: "put the id behind the stable text, or send it as metadata",
    VolatileKind.NUMBER: "put the number behind the stable text",
    VolatileKind.TOOL_ORDER: "send tools in one order (canonical rule tool_order)",
    VolatileKind.TEXT: "put what is the same in every request before what differs",
}

_DIGIT = re.compile("[0-9]")
_SENTENCE = re.compile(r"(?<=[.!?;,]) ")


class Chunks(NamedTuple):
    """A prompt in lines and sentences. The first `num_tools` are schemas of tools."""

    texts: list[str]
    num_tools: int


class HashedPrompt(NamedTuple):
    """What is kept of a prompt. `masked`: by a chunk's number, its hash without fields, where it has any."""

    chunks: tuple[int, ...]
    masked: Mapping[int, int]
    num_tools: int


class Spot(NamedTuple):
    """Where prompts of a template first differ. `position_tokens` is rounded down to 16."""

    position_tokens: int
    kind: VolatileKind


class Loss(NamedTuple):
    """What one prompt cannot share with the one before it: the tokens behind `spot` that are the same in both."""

    spot: Spot
    tokens: int


@dataclass(slots=True)
class Template:
    """What is known of one template. `requests` are those that were looked at."""

    name: str
    tenant: str
    model: str
    sketch: frozenset[int]
    requests: int = 1
    compared: int = 0  # with the request before, of the same worker
    newest: HashedPrompt | None = None
    spots: Counter[Spot] = field(default_factory=Counter)
    lost_tokens: Counter[Spot] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """The template's row in the report. The spot is the one that costs most."""
        worst = max(self.lost_tokens, key=lambda spot: self.lost_tokens[spot], default=None)
        compared = self.compared
        lost = self.lost_tokens.total() / compared if compared else 0.0
        return {
            "template": self.name,
            "tenant": self.tenant,
            "model": self.model,
            "requests": self.requests,
            "lost_tokens_per_request": round(lost, 1),
            "first_difference_tokens": worst.position_tokens if worst else None,
            "kind": worst.kind.value if worst else None,
            "share": round(self.spots[worst] / compared, 3) if worst and compared else None,
            "remedy": REMEDIES[worst.kind] if worst else None,
        }


class PrefixLint:
    """The templates seen lately. `note_prompt` looks at one request; `report` is the worst first."""

    def __init__(self, *, max_templates: int) -> None:
        self._max_templates = max_templates
        self._templates: OrderedDict[str, Template] = OrderedDict()

    def note_prompt(self, tenant: str, body: Mapping[str, Any], ratio: TokenRatio) -> Loss | None:
        """Hold one request against the newest one of its template. None: it begins as that one, or is the first."""
        chunks = prompt_chunks(body)
        if not chunks.texts:
            return None
        model = body.get("model")
        template = self._template_of(tenant, model if isinstance(model, str) else "", _sketch(chunks.texts))
        hashed, lost = _hashed(chunks), None
        if template.newest is not None:
            template.requests += 1
            template.compared += 1
            lost = _note_difference(template, template.newest, chunks, hashed, ratio)
        template.newest = hashed
        return lost

    def told(self) -> list[dict[str, Any]]:
        """All templates as another worker of this gateway may join them with its own. Hashes, no text."""
        return [
            {
                "template": one.name,
                "tenant": one.tenant,
                "model": one.model,
                "sketch": list(one.sketch),
                "requests": one.requests,
                "compared": one.compared,
                "spots": [[*spot, count, one.lost_tokens[spot]] for spot, count in one.spots.items()],
            }
            for one in self._templates.values()
        ]

    def report(self) -> list[dict[str, Any]]:
        """The report of this worker alone."""
        return joined_report([self.told()])

    def _template_of(self, tenant: str, model: str, sketch: frozenset[int]) -> Template:
        """The template that the prompt is of: its words are mostly those of an earlier prompt."""
        best = max(
            (one for one in self._templates.values() if one.tenant == tenant and one.model == model),
            key=lambda one: len(one.sketch & sketch),
            default=None,
        )
        if best is not None and len(best.sketch & sketch) >= SAME_TEMPLATE * min(len(best.sketch), len(sketch)):
            self._templates.move_to_end(best.name)
            return best
        text = "\0".join((tenant, model, *map(str, sorted(sketch))))
        name = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        made = self._templates[name] = Template(name, tenant, model, sketch)
        if len(self._templates) > self._max_templates:
            self._templates.popitem(last=False)
        return made


def joined_report(parts: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each template of all workers, those that lose most of their prefix first. `parts`: as `told`.

    Workers name a template by the first prompt that they saw of it, so that templates are joined as prompts are: by
    what their sketches share. Workers of one supervisor hash alike.
    """
    joined: list[Template] = []
    by_shingle: dict[tuple[str, str, int], list[int]] = {}
    for told in (one for part in parts for one in part):
        tenant, model, sketch = told["tenant"], told["model"], frozenset(told["sketch"])
        shared = Counter(at for hashed in sketch for at in by_shingle.get((tenant, model, hashed), ()))
        best, num_shared = max(shared.items(), key=lambda pair: pair[1], default=(-1, 0))
        if best >= 0 and num_shared >= SAME_TEMPLATE * min(len(joined[best].sketch), len(sketch)):
            template = joined[best]
            template.name = min(template.name, told["template"])  # the same whoever joins them
        else:
            template = Template(told["template"], tenant, model, sketch, requests=0)
            for hashed in sketch:
                by_shingle.setdefault((tenant, model, hashed), []).append(len(joined))
            joined.append(template)
        template.requests += told["requests"]
        template.compared += told["compared"]
        for position, kind, count, lost in told["spots"]:
            spot = Spot(position, VolatileKind(kind))
            template.spots[spot] += count
            template.lost_tokens[spot] += lost
    rows = [template.as_json() for template in joined]
    return sorted(rows, key=lambda row: -row["lost_tokens_per_request"] * row["requests"])


def prompt_chunks(body: Mapping[str, Any]) -> Chunks:
    """The prompt in the order in which templates write it, tools first, in lines and sentences."""
    texts = tool_texts(body)
    num_tools = len(texts)
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        _add_text(texts, prompt)
    for message in messages_of(body) or ():
        texts.append(role_of(message))
        _add_text(texts, content_text(message.get("content")))
    del texts[MAX_CHUNKS:]
    return Chunks(texts, min(num_tools, MAX_CHUNKS))


def _add_text(texts: list[str], text: str) -> None:
    for line in text.split("\n", MAX_CHUNKS):  # what lies behind is cut off by the caller
        if len(line) <= LONG_LINE_CHARS:
            texts.append(line)
        else:
            texts.extend(_SENTENCE.split(line, MAX_CHUNKS))


def _hashed(chunks: Chunks) -> HashedPrompt:
    # `hash` of a string is keyed anew in each process: nobody can look a text up by it.
    first, last = chunks.num_tools, chunks.num_tools + MAX_MASKED_CHUNKS
    with_digits = [
        i
        for i, text in enumerate(chunks.texts[first:last], first)
        if len(text) <= MAX_MASKED_CHARS and _DIGIT.search(text)
    ]
    masked = {i: hash(without_fields(chunks.texts[i])) for i in with_digits}  # each field has a digit
    return HashedPrompt(tuple(map(hash, chunks.texts)), masked, chunks.num_tools)


def _sketch(texts: Sequence[str]) -> frozenset[int]:
    """The smallest hashes of the triples of words at the beginning: alike for prompts of one template."""
    head: list[str] = []
    size = 0
    for text in texts:
        head.append(text[:SKETCH_CHARS])
        size += len(text)
        if size >= SKETCH_CHARS:
            break
    words = [word for word in "\n".join(head)[:SKETCH_CHARS].split() if word.isalpha()]
    triples: set[tuple[str, ...]] = set(zip(words, words[1:], words[2:], strict=False)) or {tuple(words)}
    return frozenset(sorted(map(hash, triples))[:SHINGLES])


def _note_difference(
    template: Template, before: HashedPrompt, chunks: Chunks, hashed: HashedPrompt, ratio: TokenRatio
) -> Loss | None:
    at = next((i for i, (old, new) in enumerate(zip(before.chunks, hashed.chunks, strict=False)) if old != new), None)
    if at is None:
        return None  # one is the beginning of the other: a conversation that went on
    known = set(before.chunks[at:])
    texts = chunks.texts
    lost_chars = sum(
        len(texts[i])
        for i, chunk in enumerate(hashed.chunks[at + 1 :], at + 1)
        if chunk in known and len(texts[i]) >= MIN_SHARED_CHARS
    )
    chars = sum(map(len, texts[:at])) + at
    kind = VolatileKind.TEXT
    if at < min(before.num_tools, hashed.num_tools) and hashed.chunks[at] in known:
        kind = VolatileKind.TOOL_ORDER
        lost_chars += len(texts[at])
    elif at in hashed.masked and before.masked.get(at) == hashed.masked[at]:
        found = first_field(texts[at])
        if found is not None:
            kind, chars = found.kind, chars + found.start
    tokens = ratio.tokens(chars)
    spot = Spot(tokens - tokens % SPOT_TOKENS, kind)
    if spot not in template.spots and len(template.spots) >= MAX_SPOTS:
        rarest = min(template.spots, key=lambda one: template.lost_tokens[one])
        del template.spots[rarest], template.lost_tokens[rarest]
    lost = Loss(spot, ratio.tokens(lost_chars))
    template.spots[spot] += 1
    template.lost_tokens[spot] += lost.tokens
    return lost
