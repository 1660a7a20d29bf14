#!/usr/bin/env python3
"""Chat templates: chat_peer.cpp writes conversations as Jinja does, byte for byte.

    chat_peer.py PEER SHARED TRL WORK

PEER is the program, SHARED the folder with data/tokenizers, TRL a wheel of trl, which holds
published templates, WORK an empty folder. Conversations are drawn at random, with tools, calls in
several steps, thoughts, odd blanks and JSON in every spelling; both read the same lines. What
transformers makes of them, text and prompts, is what is compared, and the ids of the text by the
tokenizers library; learned is what stands between the header of an assistant's turn and the end of
it, where no token reaches from the header into the words.
"""

import importlib.util
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path

from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

CONVERSATIONS = 500  # of each main template
FEW = 60             # of each variant
SCRIPTED = 16        # of each, by examples/render_conversations.py
DATE = "01 Feb 2026"

WORDS = ["the", "weather", "in", "Köln", "naïve", "日本語", "한국어", "العربية", "हिन्दी", "👩‍👩‍👧‍👦",
         "e\u0301", "\u200b", "\ufeff", "\u00a0", "\u3000", "\u2028", "\u0085", "\x1c", "\x7f",
         "\t", " ", "  ", "\n", "\n\n", "\r\n", "\f", "'", '"', "\\", "\\n", "{", "}", "{{ x }}",
         "{% if %}", "<b>", "&amp;", "1e5", "3.14", "<think>", "</think>", "<think>\n\n</think>",
         "<tool_response>", "</tool_response>", "<tool_call>", "</tool_call>", "# Tools", "%s"]
NUMBERS = ["0", "-0", "-0.0", "1", "-7", "1.0", "1.50", "1e5", "1E5", "1e+5", "1e16", "1e15",
           "123456789012345678", "1234567890123456789012345678901234567890", "-98765432109876543210",
           "18446744073709551615", "18446744073709551616", "9223372036854775808",
           "-9223372036854775808", "1e-4", "1e-5", "0.0001", "0.00001", "1.5e-7", "5e-324",
           "2.5e300", "-1.7976931348623157e308", "0.1", "0.30000000000000004", "100000000000000000.0",
           "9007199254740993.0", "1e22", "1e23", "123456.789e3", "0.1e1", "12345678901234567890.5"]


def text(r, least=1):
    while True:
        drawn = [r.choice(WORDS) + r.choice(["", "", " "]) for _ in range(r.randint(1, 8))]
        if r.random() < 0.2:
            drawn.append("".join(chr(r.choice([r.randint(32, 0x2FF), r.randint(0x4E00, 0x9FFF),
                                               r.randint(0x1F300, 0x1F6FF)])) for _ in range(5)))
        if len("".join(drawn).strip()) >= least:
            return "".join(drawn)


def spelled_string(r, s):
    """A JSON string, some characters of it escaped in one of the ways that there are."""
    out = []
    for c in s:
        if c in '"\\' or ord(c) < 0x20 or r.random() < 0.1:
            units = c.encode("utf-16-be")
            hexed = "".join("\\u%0*x" % (4, int.from_bytes(units[i:i + 2], "big"))
                            for i in range(0, len(units), 2))
            short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "/": "\\/"}.get(c)
            out.append(short if short and r.random() < 0.5 else hexed)
        else:
            out.append(c)
    return '"' + "".join(out) + '"'


def spelled(r, value, depth=0):
    """Any value as JSON; a callable spells itself."""
    if callable(value):
        return value(r)
    blank = r.choice(["", "", " ", "  "])
    if isinstance(value, str):
        return spelled_string(r, value)
    if isinstance(value, dict):
        return "{" + ("," + blank).join(
            blank + spelled_string(r, k) + blank + ":" + blank + spelled(r, v)
            for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ("," + blank).join(spelled(r, v) for v in value) + blank + "]"
    return json.dumps(value)


def any_value(r, depth=0):
    kind = r.randint(0, 7 if depth < 3 else 4)
    if kind == 0:
        return text(r)
    if kind in (1, 2):
        return lambda _, n=r.choice(NUMBERS): n
    if kind == 3:
        return r.choice([True, False, None])
    if kind == 4:
        return lambda q: repr(q.uniform(-1, 1) * 10.0 ** q.randint(-30, 30))
    if kind in (5, 6):
        return any_object(r, depth + 1)
    return [any_value(r, depth + 1) for _ in range(r.randint(0, 3))]


def any_object(r, depth=0):
    return {text(r): any_value(r, depth) for _ in range(r.randint(0, 3))}


def call(r, style):
    arguments = any_object(r)
    if style != "llama3_1" and r.random() < 0.2:
        arguments = r.choice(['{"a": 1.0}', "{}", '{"b":"ü\\n"}'])
    called = {"name": r.choice(["search", "get_weather", "f"]), "arguments": arguments}
    if style != "llama3_1" and r.random() < 0.3:
        return called
    return {"id": "1", "type": "function", "function": called}


def answer(r, style, calls):
    message = {"role": "assistant", "content": text(r)}
    if calls:
        message["tool_calls"] = [call(r, style)
                                 for _ in range(1 if style == "llama3_1" else r.randint(1, 3))]
        if r.random() < 0.5:
            message["content"] = ""
    thought = r.random()
    if thought < 0.2:
        message["reasoning_content"] = r.choice(["", "\n", "\nwell\n", text(r)])
    elif thought < 0.4 and message["content"]:
        message["content"] = (r.choice(["<think>", "<think>\n", ""]) + text(r) +
                              r.choice(["</think>", "\n</think>\n\n"]) + message["content"])
    return message


def conversation(r, style):
    """One that the template can say: the plain ones have no tools."""
    tools = style not in ("chatml", "llama3") and r.random() < 0.5
    line, messages = {}, []
    if tools and r.random() < 0.8:
        line["tools"] = [{"type": "function", "function": {
            "name": "f", "description": text(r), "parameters": any_object(r)}}
            for _ in range(r.randint(0, 3))]
    if r.random() < 0.5:
        messages.append({"role": "system", "content": text(r)})
    for _ in range(r.randint(1, 3)):
        question = text(r)
        if style != "llama3_1" and r.random() < 0.1:
            question = "<tool_response>" + question + "</tool_response>"
        messages.append({"role": "user", "content": question})
        if r.random() < 0.1:
            messages.append({"role": "system", "content": text(r)})
        if tools:
            for _ in range(r.randint(0, 3)):
                messages.append(answer(r, style, True))
                for _ in range(r.randint(0, 2)):
                    messages.append({"role": "tool", "content": text(r)})
        messages.append(answer(r, style, False))
    if style not in ("llama3_1",) and len(messages) > 2 and r.random() < 0.1:
        messages.pop()
    if not any(m["role"] == "assistant" for m in messages):
        messages.append(answer(r, style, False))
    line["messages"] = messages
    return line


def templates(shared, wheel):
    """(name, style, text, conversations, header, end)"""
    config = json.loads((shared / "data/tokenizers/qwen3-tokenizer_config.json").read_text())
    with zipfile.ZipFile(wheel) as archive:
        of = lambda name: archive.read(f"trl/chat_templates/{name}.jinja").decode()
        qwen3, instruct, qwen25 = of("qwen3"), of("qwen3_instruct_2507"), of("qwen2_5")
        llama3, llama31, llama32 = of("llama3"), of("llama3_1"), of("llama3_2")
        training = {name: of(f"{name}_training") for name in ("qwen3", "qwen3_instruct_2507", "qwen2_5", "llama3")}
    # Thinking-2507 differs from Qwen3 in its prompt alone.
    tail = qwen3.rindex("    {{- '<|im_start|>assistant\\n' }}")
    thinking = (qwen3[:tail] + r"    {{- '<|im_start|>assistant\n<think>\n' }}" + "\n{%- endif %}")
    # Qwen2.5's kinds differ in what they say where there is no system's turn.
    said = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    math = r"Please reason step by step, and put your final answer within \\boxed{}."
    all_ = [("qwen3 first", "qwen3", config["chat_template"], CONVERSATIONS),
            ("qwen3", "qwen3", qwen3, CONVERSATIONS),
            ("qwen3 thinking", "qwen3", thinking, CONVERSATIONS),
            ("qwen3 instruct", "qwen3", instruct, CONVERSATIONS),
            ("qwen2.5", "qwen2_5", qwen25, CONVERSATIONS),
            ("qwen2.5 base", "qwen2_5", qwen25.replace(said, "You are a helpful assistant."), FEW),
            ("qwen2.5 math", "qwen2_5", qwen25.replace(said, math), FEW),
            ("llama 3.1", "llama3_1", llama31, CONVERSATIONS),
            ("llama 3.2", "llama3_1", llama32, FEW),
            ("llama 3", "llama3", llama3, CONVERSATIONS),
            ("llama 3 escaped", "llama3", llama3.replace("\n", "\\n"), FEW)]
    # Programs that mark what is learned; megacpp's rule is the same for all.
    all_ += [(f"{name} training", name.partition("_inst")[0], jinja, FEW) for name, jinja in training.items()]
    defaults = [None, "You are a helpful assistant", "You are a helpful assistant.",
                "You are a helpful AI assistant named SmolLM, trained by Hugging Face"]
    unset = ("{% if not add_generation_prompt is defined %}"
             "{% set add_generation_prompt = false %}{% endif %}")
    for newline in "\n", "\\n":
        for default in defaults:
            system = default and ("{% if loop.first and messages[0]['role'] != 'system' %}"
                                  f"{{{{ '<|im_start|>system{newline}{default}<|im_end|>{newline}'"
                                  " }}{% endif %}")
            chatml = ("{% for message in messages %}" + (system or "") +
                      "{{'<|im_start|>' + message['role'] + '" + newline +
                      "' + message['content'] + '<|im_end|>' + '" + newline + "'}}{% endfor %}"
                      "{% if add_generation_prompt %}{{ '<|im_start|>assistant" + newline +
                      "' }}{% endif %}")
            all_.append((f"chatml {default} {newline!r}", "chatml", chatml,
                         CONVERSATIONS if default is None else FEW))
            if default is None:
                all_.append((f"chatml unset {newline!r}", "chatml", unset + chatml, FEW))
    return all_


def turns_of(rendered, style):
    """Where assistants' turns are, of a text whose words have no special token."""
    llama = style.startswith("llama")
    header = ("<|start_header_id|>assistant<|end_header_id|>\n\n" if llama
              else "<|im_start|>assistant\n")
    end = "<|eot_id|>" if llama else "<|im_end|>"
    at, turns = 0, []
    while (begin := rendered.find(header, at)) >= 0:
        at = rendered.index(end, begin) + len(end)
        turns.append((begin, begin + len(header), at))
    return turns


def learned(encoded, turns):
    """1 for each token that is learned. A character may be several tokens."""
    mask = [0] * len(encoded.ids)
    for begin, words, end in turns:
        if any(a < words < b for a, b in encoded.offsets):
            continue
        for i, (a, b) in enumerate(encoded.offsets):
            mask[i] = mask[i] or int(words <= a and b <= end)
    return mask


def theirs(line, jinja, style, tokenizer):
    parsed = json.loads(line)
    render = lambda messages, **more: render_jinja_template(
        [messages], tools=parsed.get("tools"), chat_template=jinja, bos_token="<|begin_of_text|>",
        date_string=DATE, **more)[0][0]
    messages = parsed["messages"]
    asked = messages[:-1] if len(messages) > 1 else messages
    whole = render(messages, add_generation_prompt=False)
    turns, size = turns_of(whole, style), lambda i: len(whole[:i].encode())
    encoded = tokenizer.encode(whole, add_special_tokens=False)
    return {"text": whole, "turns": [[size(i) for i in turn] for turn in turns],
            "ids": encoded.ids, "mask": learned(encoded, turns),
            "prompt": render(asked, add_generation_prompt=True),
            "without_thinking": render(asked, add_generation_prompt=True, enable_thinking=False)}


def by_script(script, folder, vocabulary, lines, answers, whole):
    """How many lines examples/render_conversations.py writes, each as megacpp does. `whole`: also what
    is learned of them."""
    (folder / "tokenizer.json").write_bytes(vocabulary.read_bytes())
    writer = script.Writer(folder, {"date_string": DATE}, False)
    written = 0
    for line, answered in zip(lines, answers):
        messages, learned_turns, tools = script.conversation_of(json.loads(line))
        try:
            ids, mask = writer.line(messages, learned_turns, tools)
        except script.Refused:  # earlier turns are written otherwise
            continue
        answered = json.loads(answered)
        assert list(ids) == answered["ids"], f"{folder}: ids of {line}"
        assert not whole or list(mask) == answered["mask"], f"{folder}: mask of {line}\n{mask}\n{answered['mask']}"
        written += 1
    return written


def llama_vocabulary(path, to):
    """Qwen3's vocabulary with the special tokens of Llama 3 in the place of some of its own."""
    names = {"<|object_ref_start|>": "<|begin_of_text|>", "<|box_start|>": "<|start_header_id|>",
             "<|box_end|>": "<|end_header_id|>", "<|quad_start|>": "<|eot_id|>"}
    vocabulary = json.loads(path.read_text())
    for token in vocabulary["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    to.write_text(json.dumps(vocabulary))
    return to


def check_begin(peer, vocabulary, folder):
    """Texts of Llama begin by the bos_token, which a folder must say, and in one way."""
    config = folder / "tokenizer_config.json"
    whole = json.loads(config.read_text())
    other = folder / "special_tokens_map.json"

    def run(bos):
        config.write_text(json.dumps({k: v for k, v in (whole | {"bos_token": bos}).items() if v is not None}))
        return subprocess.run([peer, vocabulary, folder], capture_output=True, text=True)

    assert "no tokenizer_config.json with a \"bos_token\"" in run(None).stderr
    other.write_text(json.dumps({"bos_token": "<s>"}))
    assert "special_tokens_map.json: field \"bos_token\" is <s>, and that of" in run("<|begin_of_text|>").stderr
    same = run("<s>")
    assert same.returncode == 0, same.stderr
    first = json.loads((folder / "answers.jsonl").read_text(encoding="utf-8").split("\n")[0])
    assert first["text"].startswith("<s><|start_header_id|>"), first["text"]


def main(peer, shared, wheel, work):
    work, shared = Path(work), Path(shared)
    qwen = shared / "data/tokenizers/qwen3-tokenizer.json"
    llama = llama_vocabulary(qwen, work / "llama.json")
    specification = importlib.util.spec_from_file_location(
        "render_conversations", Path(__file__).parents[2] / "examples/render_conversations.py")
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    cases = []
    for number, (name, style, jinja, count) in enumerate(templates(shared, wheel)):
        folder = work / str(number)
        folder.mkdir()
        config = {"bos_token": {"__type": "AddedToken", "content": "<|begin_of_text|>"},
                  "tokenizer_class": "PreTrainedTokenizerFast"}
        if number % 2:  # both places in which a folder has its template
            (folder / "chat_template.jinja").write_text(jinja)
        else:
            config["chat_template"] = jinja
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        r = random.Random(f"{name} 1")
        lines = [spelled(r, conversation(r, style)) for _ in range(count)]
        (folder / "conversations.jsonl").write_text("\n".join(lines) + "\n", newline="\n")
        cases.append((name, style, jinja, folder, lines))
    compared = merged = by_it = 0
    for path, is_llama in (qwen, False), (llama, True):
        mine = [case for case in cases if case[1].startswith("llama") == is_llama]
        subprocess.run([peer, path] + [folder for *_, folder, _ in mine], check=True)
        tokenizer = Tokenizer.from_file(str(path))
        for name, style, jinja, folder, lines in mine:
            answers = (folder / "answers.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
            assert len(answers) == len(lines), f"{name}: {len(answers)} answers"
            for line, answered in zip(lines, answers):
                expected, ours = theirs(line, jinja, style, tokenizer), json.loads(answered)
                for key, value in expected.items():
                    assert ours[key] == value, (
                        f"{name}, {key} of {line}\nours   {ours[key]!r}\ntheirs {value!r}")
                merged += ours["merged_turns"]
            compared += len(lines)
            # Qwen3-Thinking asks with the begin of a thought, from which the script learns; and from programs for
            # training it takes what they mark.
            whole = "thinking" not in name and "training" not in name
            scripted = by_script(script, folder, path, lines[:SCRIPTED], answers, whole)
            by_it += scripted
            print(f"{name}: {len(lines)} conversations, {scripted} of {SCRIPTED} by the script, too")
        if is_llama:
            check_begin(peer, path, mine[0][3])
    # Qwen3 writes earlier turns without their thoughts, which the script leaves to --each-answer.
    assert by_it >= SCRIPTED * len(cases) / 2, f"only {by_it} conversations are written by the script"
    assert merged > 0, "no turn begins with what is one token with its header's end"
    print(f"{compared} conversations are the same; {merged} turns are one token with their header")


main(*sys.argv[1:])
