"""From a body's words about tokens to the core's terms: words to ids, thinking to its marks."""

from __future__ import annotations

from collections.abc import Sequence

from engine.api.errors import ApiError
from engine.api.schema_tokens import RepetitionDetection
from engine.protocol.step import RepetitionLimit, ThinkingBudget
from engine.text.tokenizer import Tokenizer

MAX_WORD_TOKENS = 64


def bad_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each word's tokens as it begins a text and as it follows a space. Raises ApiError."""
    found: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        for text in (word.lstrip(), f" {word.lstrip()}"):
            token_ids = tokenizer.encode(text, add_special_tokens=False)
            if not word.strip() or not token_ids or len(token_ids) > MAX_WORD_TOKENS:
                path = f"bad_words.{index}"
                message = f"{path}: a word must have 1 to {MAX_WORD_TOKENS} tokens of this model"
                raise ApiError(400, message, param=path, code="invalid_value")
            found[token_ids] = None
    return tuple(found)


def thinking(tokenizer: Tokenizer, num_tokens: int | None) -> ThinkingBudget | None:
    """None where there is no limit. Raises ApiError where the model has no marks between which it thinks."""
    if num_tokens is None or num_tokens < 0:
        return None
    marks = tokenizer.thinking_marks
    if marks is None:
        message = (
            "thinking_token_budget: this model has no tokens that mark its thinking, such as <think> and </think>; "
            "leave it out"
        )
        raise ApiError(400, message, param="thinking_token_budget", code="invalid_value")
    return ThinkingBudget(num_tokens, *marks)


def repetition(asked: RepetitionDetection | None) -> RepetitionLimit | None:
    """None where it is off."""
    if asked is None or not asked.max_pattern_size:
        return None
    return RepetitionLimit(max(1, asked.min_pattern_size), asked.max_pattern_size, asked.min_count)
