#!/usr/bin/env python3
"""Makes a small tokenizer of a text, as the folders of Qwen's chat models have one.

    small_tokenizer.py FOLDER FILE... [--vocabulary N]

FILE is a text, or with a name in .jsonl JSON lines, of which all strings are read. FOLDER gets

    tokenizer.json          256 bytes, the pairs of tokens that FILE has most often, and the special
                            tokens; a byte has the id of its value
    tokenizer_config.json   which of them end a text and a turn, and the chat template (ChatML)
    generation_config.json  what ends an answer, for transformers and vLLM

--vocabulary is the most tokens there may be, by default 384. A text of few words has fewer.
"""

import argparse
import collections
import json
import re
from pathlib import Path

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THOUGHTS = ["<think>", "</think>"]
# How Qwen's tokenizers cut a text before they join its bytes: words with a blank before them, single
# digits, signs, blanks.
EXPRESSION = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
              r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
          "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|im_start|>assistant\n' }}{% endif %}")


def letters_of_bytes():
    """The characters that stand for bytes in tokenizer.json: those that print for themselves."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printed]
    return {**{b: chr(b) for b in printed}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def strings_of(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings_of(part)


def text_of(path):
    text = Path(path).read_text(encoding="utf-8")
    if not path.endswith(".jsonl"):
        return text
    return "\n".join(s for line in text.split("\n") if line.strip()
                     for s in strings_of(json.loads(line)))


def merges_of(text, most):
    """Pairs of tokens, the most frequent first; of equal ones the first in the alphabet."""
    letters = letters_of_bytes()
    words = collections.Counter(re.findall(r" ?[^\W\d_]+", text))
    parts = {w: [letters[b] for b in w.encode()] for w in words}
    pairs = collections.Counter()

    def count(word, sign):
        for pair in zip(parts[word], parts[word][1:]):
            pairs[pair] += sign * words[word]

    for word in words:
        count(word, 1)
    merges = []
    while len(merges) < most and any(n > 0 for n in pairs.values()):
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word, tokens in parts.items():
            if best not in zip(tokens, tokens[1:]):
                continue
            count(word, -1)
            joined = []
            for token in tokens:
                # The last one, with this one, is the pair.
                if joined and (joined[-1], token) == best:
                    joined[-1] += token
                else:
                    joined.append(token)
            parts[word] = joined
            count(word, 1)
    return merges


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2].strip())
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--vocabulary", type=int, default=384)
    args = parser.parse_args()
    least = 256 + len(SPECIAL) + len(THOUGHTS)
    if args.vocabulary < least:
        parser.error(f"--vocabulary must be {least} or more: bytes and special tokens")

    merges = merges_of("\n".join(map(text_of, args.files)), args.vocabulary - least)
    tokens = [letters_of_bytes()[b] for b in range(256)] + [a + b for a, b in merges]
    added = [{"id": len(tokens) + i, "content": t, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": t in SPECIAL}
             for i, t in enumerate(SPECIAL + THOUGHTS)]
    bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                   "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": EXPRESSION}, "behavior": "Isolated",
             "invert": False}, bytes_alone]},
        "post_processor": bytes_alone, "decoder": bytes_alone,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": [list(pair) for pair in merges]}}
    config = {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False,
              "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
              "unk_token": None, "clean_up_tokenization_spaces": False,
              "additional_special_tokens": SPECIAL[1:], "chat_template": CHATML}
    ids = {a["content"]: a["id"] for a in added}
    generation = {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
                  "pad_token_id": ids["<|endoftext|>"]}
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, content in [("tokenizer.json", tokenizer), ("tokenizer_config.json", config),
                          ("generation_config.json", generation)]:
        (args.folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n",
                                        encoding="utf-8")
    print(f"{args.folder}: {len(tokens) + len(added)} tokens, {len(merges)} of them joined")


main()
