#!/usr/bin/env python3
"""transformers loads the folders that transformers_peer.cpp wrote and computes the same logits.

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
MAJOR = int(transformers.__version__.split(".")[0])
FLOAT32 = {"dtype" if MAJOR >= 5 else "torch_dtype": torch.float32}


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
    return error <= BOUND


def main():
    torch.manual_seed(0)
    folders = sorted(p for p in Path(sys.argv[1]).iterdir() if p.is_dir())
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    return 0 if [check(f) for f in folders] == [True] * len(folders) and folders else 1


if __name__ == "__main__":
    sys.exit(main())
