"""Planted bugs of instruction tuning: what is learnt of a conversation, and what is not."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutants.mutants import Mutant, bug
from tests.unit import test_answers, test_instruction

KILLERS: dict[str, Callable[[], None]] = {
    "answers by hand": test_answers.check_by_hand,
    "answers as text": test_answers.check_texts,
    "commands in messages": test_answers.check_commands,
    "no space at a cut": test_answers.check_sentencepiece,
    "history": test_answers.check_history,
    "transformers' answers": test_answers.check_transformers,
    "labels of answers": test_instruction.check_batch,
    "conversations apart": test_instruction.check_apart,
    "cut conversations": test_instruction.check_cut,
    "end of a turn": test_instruction.check_generation,
}
ANSWERS = "allformer.text.answers:Answers"
TAUGHT = "allformer.train.objectives.instruction:Instruction"

MUTANTS: list[Mutant] = [
    bug("the end of a turn is not learnt", "answers never stop", f"{ANSWERS}._one",
        "(len(asked), end if ends else len(text))",
        "(len(asked), len(asked) + len(chat[-1]['content']))",
        "answers as text", "answers by hand"),
    bug("the line break behind a turn is learnt", "says what nobody asks for", f"{ANSWERS}._one",
        "end = len(text.rstrip())", "end = len(text)", "answers by hand", "answers as text"),
    bug("the heading of an answer is learnt", "learns to speak for others too", f"{ANSWERS}._one",
        "self._text(chat[:-1], tools, add_generation_prompt=True)", "self._text(chat[:-1], tools)",
        "answers by hand", "answers as text"),
    bug("the last answer alone is learnt", "most of a long conversation is wasted",
        f"{ANSWERS}.write", "[span for _, (span,) in each]", "[each[-1].spans[0]]",
        "answers by hand", "answers as text"),
    bug("rewritten history is taken for the first text", "learns answers that never stood there",
        f"{ANSWERS}.write", "if all(whole", "if any(whole", "history"),
    bug("a token that joins question and answer is not learnt", "the first words are missing",
        f"{ANSWERS}._marked", "(ends > first)", "(begins >= first)", "transformers' answers"),
    bug("a token before an answer is learnt", "the question's last token too",
        f"{ANSWERS}._marked", "(ends > first)", "(ends >= first)", "answers by hand"),
    bug("what people type is a command", "a message ends a turn", f"{ANSWERS}._literal",
        "if self._commands is not None:", "if False:", "commands in messages"),
    bug("a space inside what people type", "it reads another text than was written",
        "allformer.text.answers:_parts", "_CUT + _LEAD", "_CUT", "no space at a cut"),
    bug("labels of answers not shifted", "says what it has just read", f"{TAUGHT}.collate",
        "ids.ids[at[count] + 1]", "ids.ids[at[count]]", "labels of answers"),
    bug("places of answers not shifted", "the first token of an answer is not learnt",
        f"{TAUGHT}.collate", "learnt.starts[row] + place + 1", "learnt.starts[row] + place",
        "labels of answers"),
    bug("one row for all conversations", "they see each other", f"{TAUGHT}.collate",
        "laid = lay_rows(ids.lengths - 1, frame)",
        "laid = lay_rows(ids.lengths - 1, frame); "
        "one = lay_rows(np.array([laid.real])); laid = laid._replace(layout=one.layout)",
        "conversations apart"),
    bug("a question cut before its answer is kept", "rows that teach nothing", f"{TAUGHT}._fitting",
        '_first_places(table["learnt"]) < longest', "longest > 0", "cut conversations"),
    bug("answers end where texts end", "a chat model does not stop", f"{TAUGHT}.generation",
        "else ends) if ends else tokens.eos_id", "else ends) if False else tokens.eos_id",
        "end of a turn"),
]  # fmt: skip
