#!/usr/bin/env python3
"""bitsandbytes and bitsandbytes_peer.cpp quantise the same matrices to the same bits, and transformers
loads what our programs write in NF4.

    bitsandbytes_peer.py PEER WORK

Matrices are normal, heavy-tailed, or of numbers next to the thresholds of codes, in float or bf16, with up
to five nested blocks, ragged ends, odd counts and blocks of zeros. Given the offset of bitsandbytes, PEER
has its codes, its codes of absmax, its nested absmax and its dequantised values, all to the bit. Without it
PEER's offset is at most 4 ulp away; how many codes differ for that is printed, and bounded. PyTorch and
PEER round floats to FP8 alike.

WORK has the folders that transformers_peer.cpp wrote in NF4. transformers takes every tensor of them, by
their own quantization_config; its codes mean what we decode, to the bit, and it computes our logits. Experts
are for transformers 4, from 4.57 on.

Matrices go to bitsandbytes as one row. On processors with AVX-512 its dequantize_4bit takes the scales of
other blocks where rows are multiples of 16, but not of 64, elements long.
"""

import subprocess
import sys
from pathlib import Path

import bitsandbytes
import bitsandbytes.functional as F
import torch
import transformers
from safetensors.torch import load_file

ELEMENTS = [1, 2, 21, 63, 64, 65, 640, 64 * 256, 64 * 256 + 1, 130 * 400, 301 * 219, 64 * 1000 + 48, 256 * 320]
MOVED = 0.005  # at most, of the codes of absmax, for an offset of one's own
LINEAR = ("_proj.weight", "c_attn.weight", "c_fc.weight")  # the ends of their names
BOUND = 2e-5  # of the largest logit

VALUES = F.get_4bit_type("nf4", device="cpu")


def run(peer, tensor, *arguments):
    data = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
    return subprocess.run([peer, *arguments], input=data, stdout=subprocess.PIPE, check=True).stdout


def tensors(data, *wanted):
    """The arrays that follow one another in data: (type, elements) of each."""
    out, at = [], 0
    for dtype, elements in wanted:
        out.append(torch.frombuffer(bytearray(data), dtype=dtype, count=elements, offset=at))
        at += elements * dtype.itemsize
    assert at == len(data), (at, len(data))
    return out


def quantised(peer, weights, search, *offset):
    n = weights.numel()
    blocks = -(-n // 64)
    names = ["map", "offset", "absmax", "nested", "absmax_codes", "codes", "values"]
    return dict(zip(names, tensors(
        run(peer, weights, search, *offset), (torch.float32, 256), (torch.float32, 1), (torch.float32, blocks),
        (torch.float32, -(-blocks // 256)), (torch.uint8, blocks), (torch.uint8, (n + 1) // 2), (weights.dtype, n))))


def same_bits(a, b):
    return torch.equal(a.flatten().contiguous().view(torch.uint8), b.flatten().contiguous().view(torch.uint8))


def ulps(a, b):
    return abs(a.view(torch.int32).item() - b.view(torch.int32).item())


def drawn(n, kind, dtype, generator):
    weights = torch.randn(n, generator=generator)
    if kind == "heavy":  # Student's t with 1.5 degrees of freedom, about
        weights /= torch.rand(n, generator=generator).clamp(min=1e-4).pow(1 / 1.5)
    if kind == "small":
        weights *= 0.02
    if kind == "edges":  # at or next to the thresholds of codes
        bounds = (VALUES[1:] + VALUES[:-1]) / 2
        absmax = (1 + torch.rand(-(-n // 64), generator=generator)).repeat_interleave(64)[:n]
        weights = bounds[torch.randint(15, (n,), generator=generator)] * absmax
        weights = torch.nextafter(weights, weights + torch.randint(-1, 2, (n,), generator=generator))
        weights[::64] = absmax[::64]
    if n > 1000:
        weights[64 * 3:64 * 5] = 0
    return weights.to(dtype)


def check_matrix(peer, weights, what):
    """The codes of absmax that differ for an offset of PEER's own."""
    codes, state = F.quantize_4bit(weights.reshape(1, -1), quant_type="nf4", compress_statistics=True)
    offset = state.offset.reshape(1).float()
    search = "grid-bf16" if weights.dtype == torch.bfloat16 else "grid"
    ours = quantised(peer, weights, search, offset.item().hex())
    assert same_bits(ours["map"], state.state2.code), f"{what}: another dynamic map"
    theirs = {"offset": offset, "nested": state.state2.absmax, "absmax_codes": state.absmax, "codes": codes,
              "values": F.dequantize_4bit(codes, state)}
    for name, tensor in theirs.items():
        assert same_bits(ours[name], tensor), \
            f"{what}: {name}: {(ours[name] != tensor.flatten()).sum().item()} of {tensor.numel()} differ"

    own = quantised(peer, weights, search)
    off = ulps(own["offset"], offset)
    assert off <= 4, f"{what}: the offset is {off} ulp off"
    assert same_bits(own["codes"], codes), f"{what}: codes of weights depend on the offset"
    moved = (own["absmax_codes"] != state.absmax).sum().item()
    if off == 0:
        assert moved == 0, what

    # The nearest value of the map, which PyTorch finds here; at a tie, the even code.
    if search == "grid":
        nearest = quantised(peer, weights, "nearest", offset.item().hex())["absmax_codes"]
        blocks = torch.nn.functional.pad(ours["absmax"] - offset, (0, -ours["absmax"].numel() % 256)).view(-1, 256)
        most = blocks.abs().max(dim=1, keepdim=True)[0]
        scaled = torch.where(most > 0, blocks * (1 / most), -1).flatten()[:nearest.numel()]
        bounds = (ours["map"][:-1] + ours["map"][1:]) * 0.5
        expected = torch.bucketize(scaled, bounds)
        tie = torch.isin(scaled, bounds) & (expected % 2 == 1)
        assert torch.equal(nearest.long(), expected + tie), f"{what}: codes of the nearest values"
    return moved, off


def check_matrices(peer):
    generator = torch.Generator().manual_seed(20)
    matrices = moved = blocks = worst = 0
    for n in ELEMENTS:
        for kind in ("normal", "small", "heavy", "edges"):
            for dtype in (torch.float32, torch.bfloat16):
                weights = drawn(n, kind, dtype, generator)
                m, off = check_matrix(peer, weights, f"{n} {kind} elements in {dtype}")
                matrices, moved, blocks, worst = matrices + 1, moved + m, blocks + -(-n // 64), max(worst, off)
    check_matrix(peer, torch.zeros(640), "zeros")
    check_matrix(peer, torch.zeros(63), "a few zeros")
    assert moved <= MOVED * blocks, f"{moved} of {blocks} codes of absmax differ for an offset of our own"
    print(f"bitsandbytes {bitsandbytes.__version__}: {matrices} matrices have its bits, given its offset; our own is up to "
          f"{worst} ulp off, for which {moved} of {blocks} codes of absmax differ")


def check_fp8(peer):
    """Every bf16, and floats at random, with their neighbours of FP8's midpoints."""
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(torch.float8_e4m3fn).float()
    back, = tensors(run(peer, codes, "e4m3-back"), (torch.float32, 256))
    assert torch.equal(back.isnan(), values.isnan()) and same_bits(back.nan_to_num(0), values.nan_to_num(0))
    finite = values[~values.isnan()].sort()[0]
    middles = (finite[1:] + finite[:-1]) / 2
    every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    generator = torch.Generator().manual_seed(21)
    inputs = torch.cat([every, middles, middles.nextafter(torch.tensor(1e9)), middles.nextafter(torch.tensor(-1e9)),
                        torch.randn(200000, generator=generator) * torch.rand(200000, generator=generator).pow(-2)])
    ours, = tensors(run(peer, inputs, "e4m3"), (torch.uint8, inputs.numel()))
    theirs = inputs.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    nan = inputs.isnan()
    assert bool(((ours[nan] & 0x7f) == 0x7f).all()) and torch.equal(ours[~nan], theirs[~nan])
    print(f"PyTorch {torch.__version__}: {inputs.numel()} floats round to the same numbers of FP8")


def check_folder(folder):
    """The largest error of a logit, of the largest one, and the number of matrices in NF4."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "ours", dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert model.config.quantization_config.bnb_4bit_use_double_quant, model.config.quantization_config
    ours, quantised = load_file(folder / "weights.safetensors"), set()
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            quantised.add(f"{name}.weight")
            weight, theirs = module.weight, ours[f"{name}.weight"]
            if module.source_cls is transformers.pytorch_utils.Conv1D:  # files have it as (in, out)
                theirs = theirs.T.contiguous()
            # As one row: see the head of this file.
            state = weight.quant_state
            shape, state.shape = state.shape, torch.Size((1, state.shape.numel()))
            values = F.dequantize_4bit(weight.data, state)
            state.shape = shape
            assert tuple(shape) == tuple(theirs.shape), (name, shape)
            assert values.dtype == torch.float32, values.dtype
            assert same_bits(values.double(), theirs), f"{folder.name}: {name}: other numbers"
    plain = dict(model.named_parameters())
    assert quantised == {name for name in ours if name.endswith(LINEAR)}, quantised
    for name in ours.keys() - quantised:
        assert same_bits(plain[name].double(), ours[name]), f"{folder.name}: {name} is another"
    expected = load_file(folder / "expected.safetensors")
    # There is no dropout. Outside of training bitsandbytes multiplies in bf16, on processors with AVX-512 for it.
    with torch.no_grad():
        logits = model.train()(expected["tokens"].long()).logits
    # Logits but for a number each row, which nothing depends on.
    log_p = torch.log_softmax(logits.double(), dim=-1)
    return ((log_p - expected["log_p"]).abs().max() / logits.abs().max()).item(), len(quantised)


def check_folders(work):
    folders = sorted(p for p in work.iterdir() if p.is_dir())
    assert folders
    for folder in folders:
        if folder.name == "experts" and int(transformers.__version__.split(".")[0]) >= 5:
            continue  # has experts as one matrix, which bitsandbytes does not quantise
        error, count = check_folder(folder)
        print(f"transformers {transformers.__version__}: {folder.name}: {count} matrices in NF4 mean the same to the "
              f"bit, logits within {error:.1e} of the largest")
        assert error <= BOUND, folder.name


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    check_matrices(sys.argv[1])
    check_fp8(sys.argv[1])
    check_folders(Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
