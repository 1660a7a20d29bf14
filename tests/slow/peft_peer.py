#!/usr/bin/env python3
"""PEFT loads the adapters that our programs write, and our programs those that PEFT saves, with the
same losses and the same merged weights.

    peft_peer.py make WORK      writes the models and a text
    peft_peer.py check WORK     after WORK/NAME/program was built of each: all but what stands below
    peft_peer.py check-0.18 WORK    then, under PEFT 0.18: the layout of that time
"""

import json
import math
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

LOSS_BOUND, MERGED_BOUND = 1e-5, 1e-6  # relative
SEQUENCE, RANK, ALPHA = 16, 4, 6  # as peft.sh builds the programs
COMMON = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "bos_token_id": 0,
          "max_position_embeddings": 64, "eos_token_id": 0, "tie_word_embeddings": False}
MODELS = {
    "qwen3": transformers.Qwen3Config(**COMMON),
    "gpt2": transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, n_positions=64, vocab_size=256, bos_token_id=0,
        embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0, eos_token_id=0),
    # gate_up_proj is square, as 2 x 16 rows of 32 elements, so that shapes do not tell layouts apart.
    "experts": transformers.Qwen3MoeConfig(
        moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
        decoder_sparse_step=1, router_aux_loss_coef=0.0, **COMMON),
    # As qwen3, in a program with numbers of single layers and modules that are trained as a whole.
    "patterns": transformers.Qwen3Config(**COMMON),
}
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# What PEFT saves: the model, and how its configuration differs from that of the program.
SAVED = {
    "list": ("qwen3", {"target_modules": LINEAR}),
    "ends": ("qwen3", {"target_modules": ["self_attn.q_proj", "layers.1.mlp.up_proj", "o_proj"]}),
    "lower": ("qwen3", {"target_modules": ["v_proj", "mlp.down_proj"], "r": 2, "lora_alpha": 5,
                        "use_rslora": False, "layers_to_transform": [1]}),
    "half": ("qwen3", {"target_modules": LINEAR}),  # in F16
    "patterns": ("patterns", {
        "target_modules": LINEAR, "alpha_pattern": {"q_proj": 9, "down_proj": 1},
        "rank_pattern": {"q_proj": 2, r"layers\.0\.mlp\.up_proj": 1, r"layers\.1\.mlp\.up_proj": 3},
        "modules_to_save": ["lm_head", "input_layernorm"]}),
    "gpt2": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "gpt2-lower": ("gpt2", {"target_modules": ["attn.c_attn", "mlp.c_proj"], "r": 1,
                            "use_rslora": True, "fan_in_fan_out": True}),
    "experts": ("experts", {"target_modules": ["q_proj", "v_proj"], "target_parameters": EXPERTS}),
    "experts-lower": ("experts", {"target_modules": [], "target_parameters": EXPERTS[::-1], "r": 2}),
    "experts-down": ("experts", {"target_modules": ["v_proj"], "r": 3,
                                 "target_parameters": EXPERTS[1:]}),
    "experts-gate-up": ("experts", {"target_modules": ["q_proj"], "lora_alpha": 9,
                                    "target_parameters": EXPERTS[:1]}),
    # By the names of transformers 4, of which PEFT makes gate_up_proj of twice the rank and alpha.
    "experts-by-names": ("experts", {"target_modules": ["q_proj", "gate_proj", "up_proj"], "r": 2}),
}
work = Path(sys.argv[2])
failures = []


def judged(what, figure, bound):
    good = figure <= bound
    print(f"{what}: {figure:.1e}{'' if good else f', above {bound:g}'}", flush=True)
    if not good:
        failures.append(what)


def run(name, *args):
    command = [work / name / "program", *map(str, args), "--threads", "1"]
    if args[0] == "export":
        command = command[:-2]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def ours(name, *args):
    done = run(name, *args)
    if done.returncode != 0:
        sys.exit(f"{name} {args}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


def our_loss(name, *args):
    told = json.loads(ours(name, "eval", *args, "--data-path", work / "tokens", "--json"))
    assert told["tokens"] == 8 * SEQUENCE, told
    return told["loss"]


def their_loss(model):
    tokens = torch.tensor(list((work / "tokens").read_bytes()))
    windows = tokens.unfold(0, SEQUENCE + 1, SEQUENCE)
    with torch.no_grad():
        logits = model.eval()(windows[:, :-1]).logits.double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()


def base(name):
    return transformers.AutoModelForCausalLM.from_pretrained(
        work / name / "model", dtype=torch.float32, attn_implementation="eager")


def adapted(name, folder):
    """The model with the adapter of a folder, of which PEFT says that nothing is missing."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = peft.PeftModel.from_pretrained(base(name), folder)
    assert not [w for w in told if "missing" in str(w.message)], [str(w.message) for w in told]
    # Every tensor of the file is there, with its bits.
    stored = load_file(Path(folder) / "adapter_model.safetensors")
    loaded = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    assert stored.keys() == loaded.keys(), stored.keys() ^ loaded.keys()
    assert all(torch.equal(stored[k].float(), loaded[k]) for k in stored)
    return model


def relative(a, b):
    return abs(a / b - 1)


def make():
    torch.manual_seed(0)
    for name, config in MODELS.items():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for p in model.parameters():
            if p.dim() > 1:
                p.data.normal_(0, 0.15)
        model.save_pretrained(work / name / "model")
    text = " ".join(f"{n} green bottles, and if {n * n} should fall" for n in range(200)).encode()
    (work / "text").write_bytes(text[:4000])
    (work / "tokens").write_bytes(text[-8 * SEQUENCE - 1:])


def check_ours(name):
    """PEFT loads what train and export wrote."""
    there, out = work / name, work / name / "exported"
    ours(name, "train", "--load", there / "model", "--save", there / "run", "--data-path",
         work / "text", "--split", "100,0,0", "--eval-iters", 0, "--train-iters", 8, "--lr", 0.01)
    ours(name, "export", "--load", there / "run", "--save", out)
    loss = our_loss(name, "--load", there / "run")
    without = their_loss(base(name))
    assert relative(loss, without) > 1e-3, (loss, without)
    (state,) = (there / "run").glob("iter_*")
    for what, folder in (("train --save", state), ("export", out)):
        judged(f"{name}: PEFT's loss with what {what} wrote",
               relative(their_loss(adapted(name, folder)), loss), LOSS_BOUND)
    judged(f"{name}: our loss with what export wrote",
           relative(our_loss(name, "--load", there / "model", "--adapter", out), loss), 0)
    check_merged(f"{name}: merged, trained here", name, out, "--load", there / "run")


def check_merged(what, name, adapter, *flags):
    """export --merge writes what merge_and_unload computes."""
    merged = work / name / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    ours(name, "export", *flags, "--merge", "--save", merged)
    found = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).state_dict()
    expected = peft.PeftModel.from_pretrained(base(name), adapter).merge_and_unload().state_dict()
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    judged(what, max(((found[k].double() - v.double()).norm() / v.double().norm()).item()
                     for k, v in expected.items()), MERGED_BOUND)


def save_theirs(label):
    name, differs = SAVED[label]
    torch.manual_seed(len(label))
    c = {"r": RANK, "lora_alpha": ALPHA, "use_rslora": name == "qwen3", "task_type": "CAUSAL_LM"}
    model = peft.get_peft_model(base(name), peft.LoraConfig(**(c | differs)))
    for key, p in model.named_parameters():
        if "lora_B" in key:
            p.data.normal_(0, 0.3)
        if "modules_to_save" in key:
            p.data += torch.randn_like(p) * 0.1
        if label == "half" and "lora_" in key:
            p.data = p.data.half().float()
    model.save_pretrained(work / "theirs" / label)
    if label == "half":
        path = work / "theirs" / label / "adapter_model.safetensors"
        save_file({key: t.half() for key, t in load_file(path).items()}, path)
    return name, their_loss(model)


def check_theirs(label, *flags):
    name, loss = save_theirs(label)
    folder, model = work / "theirs" / label, work / name / "model"
    assert relative(loss, their_loss(base(name))) > 1e-4
    judged(f"{label}: our loss with what PEFT {peft.__version__} saved",
           relative(our_loss(name, "--load", model, "--adapter", folder, *flags), loss), LOSS_BOUND)
    check_merged(f"{label}: merged, saved by PEFT {peft.__version__}", name, folder,
                 "--load", model, "--adapter", folder, *flags)


def refused(what, code, words, name, *args):
    done = run(name, *args)
    lines = done.stderr.splitlines()
    good = done.returncode == code and len(lines) == 1 and words in done.stderr
    print(f"refused, {what}: {done.returncode} {done.stderr.strip()}", flush=True)
    if not good:
        failures.append(what)


def changed(what, config=None, tensors=None, of="list"):
    """A copy of a folder of PEFT with another configuration or other tensors."""
    folder = work / "changed" / what.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(work / "theirs" / of, folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | (config or {})))
    if tensors:
        path = folder / "adapter_model.safetensors"
        all_of_them = load_file(path)
        tensors(all_of_them)
        save_file(all_of_them, path)
    return folder


def twice(folder):
    """Gives the second tensor of a file the name of the first; both have one length."""
    path = folder / "adapter_model.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8:8 + size]
    first, second = (f"layers.{i}.mlp.up_proj.lora_A".encode() for i in (0, 1))
    assert header.count(first) == header.count(second) == 1
    path.write_bytes(data[:8] + header.replace(second, first) + data[8 + size:])
    return folder


def cut(folder, size):
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    return folder


def check_refusals():
    prefix = "base_model.model.model.layers.1.self_attn.q_proj."
    a, b = prefix + "lora_A.weight", prefix + "lora_B.weight"
    folders = [
        ("DoRA", 5, "use_dora", changed("dora", {"use_dora": True})),
        ("a tensor missing", 5, b, changed("missing", tensors=lambda t: t.pop(b))),
        ("a layer missing", 5, a, changed("layer", tensors=lambda t: (t.pop(a), t.pop(b)))),
        ("another shape", 5, a, changed(
            "shape", tensors=lambda t: t.update({a: t[a][:, :-1].contiguous()}))),
        ("a tensor too much", 5, "lm_head", changed("more", tensors=lambda t: t.update(
            {"base_model.model.lm_head.lora_A.weight": t[a].clone()}))),
        ("not finite", 5, b, changed("infinite", tensors=lambda t: t[b].fill_(math.inf))),
        ("a name twice", 5, "up_proj", twice(changed("twice"))),
        ("cut short", 5, "adapter_model.safetensors", cut(changed("cut"), 2000)),
        ("cut within its header", 5, "adapter_model.safetensors", cut(changed("header"), 100)),
        ("empty", 5, "adapter_model.safetensors", cut(changed("empty"), 0)),
        ("of another model", 5, "another model", work / "theirs" / "gpt2"),
        ("of a higher rank", 5, "has rank 8 for", changed("rank", {"r": 8})),
    ]
    model = work / "qwen3" / "model"
    for what, code, words, folder in folders:
        refused(what, code, words, "qwen3", "eval", "--load", model, "--adapter", folder,
                "--data-path", work / "tokens")
        refused(f"{what}, train", code, words, "qwen3", "train", "--load", model, "--adapter", folder,
                "--data-path", work / "text", "--train-iters", 1, "--save", work / "nothing")
        for more in ((), ("--merge",)):
            refused(f"{what}, export {' '.join(more)}", code, words, "qwen3", "export", "--load", model,
                    "--adapter", folder, "--save", work / "nothing", *more)
    alone = work / "theirs" / "list"
    refused("an adapter alone", 5, "--adapter", "qwen3", "eval", "--load", alone,
            "--data-path", work / "tokens")
    refused("an adapter alone, export", 5, "adapter", "qwen3", "export", "--load", alone,
            "--save", work / "nothing")
    refused("an adapter alone, train", 5, "adapter", "qwen3", "train", "--load", alone, "--data-path",
            work / "text", "--save", work / "nothing", "--train-iters", 1)
    versionless = changed("version", {"peft_version": None}, of="experts-gate-up")
    refused("one matrix for vLLM", 3, "vLLM takes all or none", "experts", "export", "--load",
            work / "experts" / "model", "--adapter", work / "theirs" / "experts-gate-up",
            "--export-layout", "vllm", "--save", work / "nothing")
    refused("a layout that nothing tells", 5, "--adapter-layout", "experts", "eval", "--load",
            work / "experts" / "model", "--adapter", versionless, "--data-path", work / "tokens")
    if list(work.glob("*nothing*")) or list(work.glob(".*nothing*")):
        failures.append("a refused command has written something")


def check():
    for name in MODELS:
        check_ours(name)
    for label in SAVED:
        check_theirs(label)
    check_refusals()
    check_layouts()
    check_mixed()


def check_mixed():
    """A batch with several adapters has the texts of each, and refuses prompts that name none."""
    there = work / "experts"
    of = {"ours": there / "exported", "theirs": work / "theirs" / "experts", "-": None}
    tokens = {"ours": "5 17 2 40", "theirs": "1 0 33", "-": "9 9 9"}

    def said(*flags):
        lines = ours("experts", "generate", "--load", there / "model", "--ids", "--greedy", "--max-new-tokens", 8,
                     "--logprobs", "--json", *flags).splitlines()
        return [json.loads(line) for line in lines]

    prompts = work / "prompts"
    prompts.write_text("".join(f"{name}\t{text}\n" for name, text in tokens.items()))
    held = [word for name, folder in of.items() if folder for word in ("--adapter", f"{name}={folder}")]
    for mixed, (name, folder) in zip(said(*held, "--prompts-file", prompts), of.items(), strict=True):
        (alone,) = said("--prompt", tokens[name], *(("--adapter", folder) if folder else ()))
        same = mixed["adapter"] == name and mixed["tokens"] == alone["tokens"]
        judged(f"experts: logprobs beside other adapters, {name}", max(
            abs(a - b) for a, b in zip(mixed["logprobs"], alone["logprobs"], strict=True)), 1e-5 if same else -1)
    start = ("experts", "generate", "--load", there / "model", "--ids", *held)
    refused("a prompt that names no adapter", 2, "--prompt: the prompt names no adapter; write one of -, ours, theirs",
            *start, "--prompt", "5")
    refused("a prompt of an unknown adapter", 2, "there is no adapter other", *start, "--prompt", "other\t5")
    prompts.write_text("ours\t5\n5\n")
    refused("a line that names no adapter", 4, f"{prompts}, line 2: the prompt names no adapter", *start,
            "--prompts-file", prompts)
    refused("several adapters without names", 2, "without a name of its own", *start, "--adapter",
            of["ours"], "--prompt", "5")
    refused("names where there is one adapter", 2, "only generate has several --adapter, by names", "experts", "eval",
            "--load", there / "model", "--adapter", f"a={of['ours']}", "--data-path", work / "tokens")


def check_layouts():
    """What export writes in another layout is the same adapter, and exported again has the same bits."""
    there = work / "experts"
    loss = our_loss("experts", "--load", there / "run")
    bits = (there / "exported" / "adapter_model.safetensors").read_bytes()
    for layout in ("peft-0.18", "vllm"):
        out, again = there / f"exported-{layout}", there / f"again-{layout}"
        ours("experts", "export", "--load", there / "run", "--export-layout", layout, "--save", out)
        flags = ("--load", there / "model", "--adapter", out)
        judged(f"experts: our loss with what export --export-layout {layout} wrote",
               relative(our_loss("experts", *flags), loss), 0)
        judged(f"experts: our loss with --adapter-layout {layout}",
               relative(our_loss("experts", *flags, "--adapter-layout", layout), loss), 0)
        ours("experts", "export", *flags, "--save", again)
        if (again / "adapter_model.safetensors").read_bytes() != bits:
            failures.append(f"{layout} and back")


def check_0_18():
    """PEFT 0.18 loads what was exported for it, and we read what it saves."""
    folder = work / "experts" / "exported-peft-0.18"
    loss = our_loss("experts", "--load", work / "experts" / "run")
    judged(f"experts: PEFT {peft.__version__}'s loss with export --export-layout peft-0.18",
           relative(their_loss(adapted("experts", folder)), loss), LOSS_BOUND)
    try:
        adapted("experts", work / "experts" / "exported")
        failures.append("this version of PEFT reads the later layout, too")
    except RuntimeError as e:
        assert "size mismatch" in str(e), e
    for label in ("experts", "experts-lower", "experts-down", "experts-gate-up"):
        check_theirs(label, "--adapter-layout", "peft-0.18")


if __name__ == "__main__":
    print(f"PEFT {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}")
    {"make": make, "check": check, "check-0.18": check_0_18}[sys.argv[1]]()
    sys.exit("FAILED: " + "; ".join(failures) if failures else 0)
