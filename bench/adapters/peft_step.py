#!/usr/bin/env python3
"""LoRA by PEFT on transformers' Qwen3: the peer of bench/adapters/against_peft.py, which calls it.

    peft_step.py make WORK CONFIG STEPS     WORK/base, trained as a whole on WORK/base.u16, and WORK/begin,
                                            an adapter as PEFT begins with it
    peft_step.py train WORK NUMBERS         trains it on WORK/samples.json and prints one line of JSON

CONFIG and NUMBERS are JSON objects.
"""

import array
import json
import statistics
import sys
import time
from pathlib import Path

import peft
import torch
import torch.nn.functional as F
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402

WORK = Path(sys.argv[2])
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def loss_of(model, rows):
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))


def make(config, steps):
    torch.manual_seed(1)
    batch, sequence, rank, alpha = (config.pop(k) for k in ("batch", "sequence", "rank", "alpha"))
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen3Config(**config), dtype=torch.float32)
    tokens = torch.tensor(array.array("H", (WORK / "base.u16").read_bytes()), dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    for step in range(steps):
        starts = torch.randint(len(tokens) - sequence, (batch, 1))
        loss = loss_of(model, tokens[starts + torch.arange(sequence + 1)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(WORK / "base")
    numbers = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=LINEAR, task_type="CAUSAL_LM")
    peft.get_peft_model(model, numbers).save_pretrained(WORK / "begin")
    print(f"a base after {steps} steps: loss {loss.item():.4f}")


def train(n):
    torch.set_num_threads(n["threads"])
    torch.set_num_interop_threads(1)
    base = transformers.AutoModelForCausalLM.from_pretrained(WORK / "base", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, WORK / "begin", is_trainable=True).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=n["lr"], betas=(0.9, n["beta2"]), eps=1e-8,
                                  weight_decay=n["weight_decay"], fused=True)
    rows = torch.tensor(json.loads((WORK / "samples.json").read_text()))
    losses, times = [], []
    for step in range(n["steps"]):
        start = time.perf_counter()
        loss = loss_of(model, rows[step * n["batch"]:(step + 1) * n["batch"]])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, n["clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append((time.perf_counter() - start) * 1e3)
    median = statistics.median(times[n["warmup"]:])
    print(json.dumps({
        "median_ms": median, "tokens_per_s": n["batch"] * (rows.shape[1] - 1) / median * 1e3, "losses": losses,
        "trained": sum(p.numel() for p in parameters), "attention": base.config._attn_implementation,
        "peak_rss_bytes": machine.peak_rss_bytes(), "torch": torch.__version__, "peft": peft.__version__,
        "transformers": transformers.__version__}))


if sys.argv[1] == "make":
    make(json.loads(sys.argv[3]), int(sys.argv[4]))
else:
    train(json.loads(sys.argv[3]))
