#!/usr/bin/env python3
"""transformers loads the folders that transformers_peer.cpp wrote and computes the same logits,
gradients and losses of ten steps.

    transformers_peer.py DIR

Each model is then saved again by transformers, in its own spelling, in several files and, where it
has that form (from 5 on), with fused experts, for transformers_peer.cpp to read.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

BOUND = 2e-5  # of the largest logit
GRADIENT_BOUND, LOSS_BOUND = 1e-4, 1e-5  # relative
MAJOR = int(transformers.__version__.split(".")[0])
FLOAT32 = {"dtype" if MAJOR >= 5 else "torch_dtype": torch.float32}


# Yarn that 4.51 computes otherwise: it knows no "truncate".
NOT_IN_4 = ("qwen3-yarn-not-truncated",)


def check_training(model, tokens, trained):
    """The worst errors of a gradient, and of the loss of a step."""
    model.train()

    def loss():
        logits = model(tokens).logits.flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, trained["labels"].long().flatten())

    loss().backward()
    found = dict(model.named_parameters())
    expected = {k[len("gradient."):]: v for k, v in trained.items() if k.startswith("gradient.")}
    assert set(found) == set(expected), set(found) ^ set(expected)
    worst = 0
    for name, ours in expected.items():
        theirs = found[name].grad.double()
        worst = max(worst, ((ours - theirs).norm() / theirs.norm()).item())
    matrices = [p for p in found.values() if p.dim() >= 2]
    others = [p for p in found.values() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": others, "weight_decay": 0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    worst_loss = 0
    for ours in trained["losses"].tolist():
        optimizer.zero_grad()
        theirs = loss()
        theirs.backward()
        torch.nn.utils.clip_grad_norm_(found.values(), 1)
        optimizer.step()
        worst_loss = max(worst_loss, abs(ours / theirs.item() - 1))
    return worst, worst_loss


def check(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "ours", attn_implementation="eager", output_loading_info=True, **FLOAT32)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], f"{kind}: {info[kind]}"
    expected = load_file(folder / "expected.safetensors")
    with torch.no_grad():
        logits = model(expected["tokens"].long()).logits
    # Logits but for a number each row, which nothing depends on.
    log_p = torch.log_softmax(logits.double(), dim=-1)
    error = ((log_p - expected["log_p"]).abs().max() / logits.abs().max()).item()
    saved = folder / f"theirs-{MAJOR}"
    model.save_pretrained(saved, max_shard_size="20KB")
    if MAJOR >= 5 and folder.name.startswith("qwen3_moe"):
        model.save_pretrained(folder / "theirs-fused", save_original_format=False)
    ours = json.loads((folder / "ours/config.json").read_text())
    theirs = json.loads((saved / "config.json").read_text())
    print(f"{folder.name}: logits within {error:.1e} of the largest; only in theirs: "
          f"{sorted(set(theirs) - set(ours))}, only in ours: {sorted(set(ours) - set(theirs))}")
    if not (folder / "trained.safetensors").exists():
        return error <= BOUND
    gradient, loss = check_training(model, expected["tokens"].long(),
                                    load_file(folder / "trained.safetensors"))
    print(f"{folder.name}: gradients within {gradient:.1e}, losses of ten steps within {loss:.1e}")
    return error <= BOUND and gradient <= GRADIENT_BOUND and loss <= LOSS_BOUND


def main():
    torch.manual_seed(0)
    folders = sorted(p for p in Path(sys.argv[1]).iterdir()
                     if p.is_dir() and (MAJOR >= 5 or p.name not in NOT_IN_4))
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    return 0 if [check(f) for f in folders] == [True] * len(folders) and folders else 1


if __name__ == "__main__":
    sys.exit(main())
