#!/usr/bin/env python3
"""Writes conversations as token ids by the program of a model's own chat template.

    render_conversations.py FOLDER [FILE...] [--chat-loss assistant|all] [--each-answer | --prompts]
                            [--set NAME=VALUE...] >LINES.jsonl

For templates that megacpp does not know itself. FOLDER is that of the model, with its tokenizer and
its chat template, which Python's transformers runs (pip install transformers jinja2; no PyTorch is needed).
FILE has one conversation a line in the forms of docs/chat.md, by default the standard input. What is
written are lines {"ids": [...], "mask": [...]}, which train, eval and prepare read:

    render_conversations.py downloaded chats.jsonl >lines.jsonl
    my-chat train --load downloaded --data-type chat --data-path lines.jsonl ...

Learned is what each turn of the assistant adds to the text that asks for it, up to its last special
token, or, where the template marks it by {% generation %}, what is marked. A turn whose words begin
within a token of its header is not learned, and counted.

--each-answer  a line for each answer, with what stands before it: for templates that write earlier
               turns otherwise than the last one
--prompts      for each conversation the ids of the text that asks for its next turn, for
               my-chat generate --ids --prompts-file
--set          what the template is told besides, such as enable_thinking=false
"""

import argparse
import json
import os
import sys

ROLES = {"human": "user", "gpt": "assistant", "observation": "tool", "function_call": "assistant"}
LEARNED = ("weight", "loss", "train", "training", "trainable")


class Refused(Exception):
    """A conversation that cannot be written, and why."""


def turn_of(message):
    """A message as transformers has it, and whether it is learned."""
    turn = {k: v for k, v in message.items() if v is not None and k not in LEARNED}
    if "role" not in turn and "from" in turn:
        said_by, value = turn.pop("from"), turn.pop("value", "")
        turn["role"] = ROLES.get(said_by, said_by)
        if said_by == "function_call":
            calls = json.loads(value)
            turn["tool_calls"] = calls if isinstance(calls, list) else [calls]
        else:
            turn["content"] = value
    if "role" not in turn:
        raise Refused('a message has no "role"')
    turn["tool_calls"] = [c if "function" in c else {"type": "function", "function": c}
                          for c in turn.get("tool_calls") or []]
    if not turn["tool_calls"]:
        del turn["tool_calls"]
    turn.setdefault("content", "")
    said = {bool(message[k]) for k in LEARNED if message.get(k) is not None}
    for k in LEARNED:
        if message.get(k) not in (None, 0, 1):
            raise Refused(f'its "{k}" is neither 0 nor 1')
    if len(said) > 1:
        raise Refused(f"a turn of the {turn['role']} says that it is learned, and that it is not")
    return turn, turn["role"] == "assistant" and said != {False}


def conversation_of(line):
    """(messages, which are learned, tools)"""
    read = lambda name: [turn_of(m) for m in line.get(name) or []]
    if line.get("prompt") is not None and isinstance(line["prompt"], str):
        turns = [({"role": "user", "content": line["prompt"]}, False)]
        if line.get("completion") is not None:
            turns.append(({"role": "assistant", "content": line["completion"]}, True))
    elif line.get("prompt") is not None:
        turns = [(turn, False) for turn, _ in read("prompt")] + read("completion")
    else:
        turns = read("messages") or read("conversations")
    if not turns:
        raise Refused('there is no "messages", "conversations" or "prompt"')
    system = line.get("system") or line.get("system_prompt")
    if system:
        if turns[0][0]["role"] == "system":
            raise Refused('there is a "system" beside a turn of the system')
        turns.insert(0, ({"role": "system", "content": system}, False))
    tools = line.get("tools")
    if isinstance(tools, str):
        tools = json.loads(tools) if tools else None
    return [turn for turn, _ in turns], [learned for _, learned in turns], tools


class Writer:
    """Writes conversations by one folder."""

    def __init__(self, folder, told, all_learned):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        try:
            import transformers
        except ImportError:
            sys.exit("render_conversations.py: there is no transformers in this Python; run python3 -m venv "
                     "VENV && VENV/bin/pip install transformers jinja2, and this script by VENV/bin/python")
        transformers.logging.set_verbosity_error()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        if not self.tokenizer.chat_template:
            sys.exit(f"render_conversations.py: {folder} has no chat template; give the folder of a chat model")
        self.told, self.all_learned, self.merged = told, all_learned, 0
        self.special = sorted({str(t) for t in self.tokenizer.added_tokens_encoder}, key=len, reverse=True)
        self.marks = "generation %}" in str(self.tokenizer.chat_template)

    def text(self, messages, tools, ask=False):
        return self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False,
                                                  add_generation_prompt=ask, **self.told)

    def end_of(self, text, begin):
        """Behind the last special token of text[begin:], or, where there is none, its end."""
        ends = [at + len(token) for token in self.special if (at := text.rfind(token, begin)) >= 0]
        return max(ends, default=len(text))

    def spans(self, text, messages, learned, tools):
        """Where the learned turns stand in the text of all."""
        found = []
        for i, one in enumerate(learned):
            if not one:
                continue
            asked, answered = self.text(messages[:i], tools, True), self.text(messages[:i + 1], tools)
            if not answered.startswith(asked):
                raise Refused(f"message {i + 1}: the template asks for it by another text than the one "
                              "that it writes then, so that what is learned is not clear; give the "
                              "template {% generation %} marks")
            end = self.end_of(answered, len(asked))
            if not text.startswith(answered[:end]):
                raise Refused(f"message {i + 1}: the template writes it otherwise behind later turns; "
                              "--each-answer writes a line for each answer instead")
            found.append((len(asked), end))
        return found

    def ids(self, text):
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return encoded["input_ids"], encoded["offset_mapping"]

    def line(self, messages, learned, tools):
        if self.marks and not self.all_learned:
            if not all(learned[i] or m["role"] != "assistant" for i, m in enumerate(messages)):
                raise Refused("a turn is not to be learned, but the template itself marks what is: remove "
                              "its {% generation %}")
            both = self.tokenizer.apply_chat_template(
                messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True, **self.told)
            return both["input_ids"], both["assistant_masks"]
        text = self.text(messages, tools)
        ids, offsets = self.ids(text)
        if self.all_learned:
            return ids, [1] * len(ids)
        mask = [0] * len(ids)
        for begin, end in self.spans(text, messages, learned, tools):
            if any(a < begin < b for a, b in offsets):
                self.merged += 1
                continue
            for i, (a, b) in enumerate(offsets):
                if begin <= a and b <= end:
                    mask[i] = 1
        return ids, mask

    def lines(self, messages, learned, tools, each):
        if not each:
            return [self.line(messages, learned, tools)]
        return [self.line(messages[:i + 1], [j == i for j in range(i + 1)], tools)
                for i, one in enumerate(learned) if one]


def value_of(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n", maxsplit=1)[0], epilog=__doc__.split("\n\n", maxsplit=2)[2],
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("folder", metavar="FOLDER", help="of the model: tokenizer and template")
    parser.add_argument("input", nargs="*", default=["-"], metavar="FILE", help="conversations, one a line")
    parser.add_argument("--chat-loss", choices=["assistant", "all"], default="assistant",
                        help="what is learned: what the assistant says, or every token")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--each-answer", action="store_true", help="a line for each answer")
    form.add_argument("--prompts", action="store_true", help="ids of texts that ask for the next turn")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="what the template is told")
    flags = parser.parse_args()
    told = {}
    for one in flags.set:
        name, _, value = one.partition("=")
        told[name] = value_of(value)
    writer = Writer(flags.folder, told, flags.chat_loss == "all")
    for path in flags.input:
        with (open(path, encoding="utf-8-sig") if path != "-" else
              open(0, encoding="utf-8-sig", closefd=False)) as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    messages, learned, tools = conversation_of(json.loads(line))
                    if flags.prompts:
                        print(*writer.ids(writer.text(messages, tools, True))[0])
                        continue
                    for ids, mask in writer.lines(messages, learned, tools, flags.each_answer):
                        print(json.dumps({"ids": list(ids), "mask": list(mask)}))
                except Exception as problem:  # pylint: disable=broad-except
                    # of JSON, of the template's own raise_exception, or of ours
                    sys.exit(f"render_conversations.py: {'the standard input' if path == '-' else path}: "
                             f"line {number}: {problem}")
    if writer.merged:
        print(f"{writer.merged} turns begin within a token of their header, and are not learned", file=sys.stderr)


if __name__ == "__main__":
    main()
