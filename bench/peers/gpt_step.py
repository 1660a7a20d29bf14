#!/usr/bin/env python3
"""One training step of a GPT-2 shaped model in plain PyTorch, or of a Qwen3-MoE in transformers, timed:
a peer for our own programs.

    x_0     = W_e[tokens] + W_p[positions]
    x      += W_o attention(norm(x) W_qkv)             causal softmax(q k^T / sqrt(D)) v
    x      += W_2 gelu(norm(x) W_1)                    tanh form, F = 4 H
    logits  = norm(x_L) W_e^T                          tied head

A step draws a batch of synthetic tokens, runs forward and backward, clips by the global norm and
applies AdamW. Prints one line of JSON with the median milliseconds a step.
Legend: B micro-batch, S sequence, H hidden, A heads, D head dim, V vocabulary.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402

PRESETS = {
    "char": dict(layers=4, heads=4, hidden=128, vocabulary=65, batch=12, sequence=64,
                 bias=False, lr=1e-3, betas=(0.9, 0.99)),
    "gpt2-124m": dict(layers=12, heads=12, hidden=768, vocabulary=50257, batch=4, sequence=256,
                      bias=True, lr=6e-4, betas=(0.9, 0.95), positions=1024),
    "gpt2-1558m": dict(layers=48, heads=25, hidden=1600, vocabulary=50257, batch=4, sequence=256,
                       bias=True, lr=1.5e-4, betas=(0.9, 0.95), positions=1024),
    "qwen3-moe-165m": dict(vocabulary=8192, batch=4, sequence=256, lr=6e-4, betas=(0.9, 0.95),
                           positions=4096, transformers=dict(
                               hidden_size=512, intermediate_size=1536, moe_intermediate_size=384,
                               num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
                               head_dim=64, num_experts=32, num_experts_per_tok=4,
                               norm_topk_prob=True, tie_word_embeddings=False)),
}
COMPILED = {"compile": "default", "max-autotune": "max-autotune"}
WEIGHT_DECAY = 0.1
CLIP = 1.0


class Norm(nn.Module):
    """LayerNorm with an optional bias."""

    def __init__(self, hidden, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.bias = nn.Parameter(torch.zeros(hidden)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Block(nn.Module):
    def __init__(self, hidden, heads, bias):
        super().__init__()
        self.heads = heads
        self.attention_norm = Norm(hidden, bias)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.attention_out = nn.Linear(hidden, hidden, bias=bias)
        self.mlp_norm = Norm(hidden, bias)
        self.mlp_up = nn.Linear(hidden, 4 * hidden, bias=bias)
        self.mlp_down = nn.Linear(4 * hidden, hidden, bias=bias)

    def forward(self, x):
        b, s, h = x.shape
        qkv = self.qkv(self.attention_norm(x))
        # (B, S, 3 H) -> three of (B, A, S, D)
        q, k, v = qkv.view(b, s, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(b, s, h))
        return x + self.mlp_down(F.gelu(self.mlp_up(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, heads, hidden, vocabulary, positions, bias):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, bias) for _ in range(layers))
        self.final_norm = Norm(hidden, bias)
        # GPT-2: N(0, 0.02), the two products that end in the residual stream scaled by their count.
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                into_residual = name.endswith(("attention_out.weight", "mlp_down.weight"))
                deviation = 0.02 / math.sqrt(2 * layers) if into_residual else 0.02
                nn.init.normal_(parameter, std=deviation)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, targets):
        """tokens, targets (B, S); returns the mean cross-entropy in nats."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.final_norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class Mixture(nn.Module):
    """Qwen3-MoE as transformers has it."""

    def __init__(self, vocabulary, positions, numbers):
        super().__init__()
        import transformers
        config = transformers.Qwen3MoeConfig(vocab_size=vocabulary, use_cache=False,
                                             max_position_embeddings=positions, **numbers)
        self.model = transformers.Qwen3MoeForCausalLM(config)

    def forward(self, tokens, targets):
        logits = self.model(input_ids=tokens).logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def make_optimizer(model, lr, betas, fused):
    """AdamW with decay on matrices and embeddings only, as GPT-2 and nanoGPT do."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=1e-8, fused=fused)


def precision_of(on_gpu, autocast):
    """What products are computed in: on a GPU those of fp32 elements are TF32's."""
    if autocast:
        return "bf16-autocast"
    return "tf32" if on_gpu else "fp32"


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def parse():
    p = argparse.ArgumentParser(description="Times training steps of a GPT-2 shaped model.")
    p.add_argument("--preset", choices=PRESETS, default="char")
    p.add_argument("--mode", choices=("eager", *COMPILED), default="eager",
                   help="compile: torch.compile in its default mode; max-autotune: in that one")
    p.add_argument("--autocast", choices=("none", "bf16"), default="none")
    p.add_argument("--fused", choices=("on", "off"), default="on", help="fused AdamW (default on)")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                   help="cuda: with a vocabulary padded to a multiple of 64, and TF32 where fp32 is "
                        "multiplied")
    p.add_argument("--threads", type=positive, default=2)
    p.add_argument("--steps", type=positive, default=None,
                   help="timed steps (default 200 for char, else 5)")
    p.add_argument("--warmup", type=positive, default=None,
                   help="untimed steps before (default 20 for char, else 2)")
    p.add_argument("--batch", type=positive, default=None, help="B instead of the preset's")
    p.add_argument("--sequence", type=positive, default=None, help="S instead of the preset's")
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def main():
    arguments = parse()
    preset = PRESETS[arguments.preset]
    small = arguments.preset == "char"
    steps = arguments.steps or (200 if small else 5)
    warmup = arguments.warmup or (20 if small else 2)
    batch = arguments.batch or preset["batch"]
    sequence = arguments.sequence or preset["sequence"]
    positions = preset.get("positions", preset["sequence"])
    if sequence > positions:
        sys.exit(f"gpt_step.py: --sequence {sequence} exceeds the preset's {positions} positions")

    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    torch.manual_seed(arguments.seed)
    on_gpu = arguments.device == "cuda"
    if on_gpu:
        torch.set_float32_matmul_precision("high")
        preset = dict(preset, vocabulary=-(-preset["vocabulary"] // 64) * 64)
    if "transformers" in preset:
        model = Mixture(preset["vocabulary"], positions, preset["transformers"])
    else:
        model = Gpt(preset["layers"], preset["heads"], preset["hidden"], preset["vocabulary"],
                    positions, preset["bias"])
    model.to(arguments.device)
    parameters = list(model.parameters())
    optimizer = make_optimizer(model, preset["lr"], preset["betas"], arguments.fused == "on")
    compiled = COMPILED.get(arguments.mode)
    loss_of = torch.compile(model, mode=compiled) if compiled else model
    autocast = arguments.autocast == "bf16"
    text = torch.randint(preset["vocabulary"], (1 << 20,), device=arguments.device)
    window = torch.arange(sequence + 1, device=arguments.device)

    def step():
        starts = torch.randint(len(text) - sequence, (batch, 1), device=arguments.device)
        rows = text[starts + window]
        with torch.autocast(arguments.device, dtype=torch.bfloat16, enabled=autocast):
            loss = loss_of(rows[:, :-1], rows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for _ in range(warmup):
        loss = step()
    times = []
    if on_gpu:
        torch.cuda.synchronize()
    for _ in range(steps):
        start = time.perf_counter()
        loss = step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)

    median = statistics.median(times)
    last = loss.item()
    if not math.isfinite(last):
        sys.exit(f"gpt_step.py: the loss of the last step is {last}")
    print(json.dumps({
        "program": "torch-gpt-step",
        "preset": arguments.preset,
        "mode": arguments.mode,
        "precision": precision_of(on_gpu, autocast),
        "fused_adamw": arguments.fused == "on",
        "batch": batch,
        "sequence": sequence,
        "parameters": sum(p.numel() for p in parameters),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "threads": torch.get_num_threads(),
        "steps": steps,
        "warmup": warmup,
        "median_ms": round(median, 3),
        "min_ms": round(min(times), 3),
        "max_ms": round(max(times), 3),
        "tokens_per_s": round(batch * sequence / median * 1e3, 1),
        "loss": last,
        "peak_rss_bytes": machine.peak_rss_bytes(),
        "cpu": machine.cpu_model(),
        "torch": torch.__version__,
        "omp": {key: value for key, value in os.environ.items()
                if key.startswith(("OMP_", "KMP_", "GOMP_"))},
    }), flush=True)


if __name__ == "__main__":
    main()
