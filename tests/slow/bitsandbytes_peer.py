#!/usr/bin/env python3
"""bitsandbytes and bitsandbytes_peer.cpp quantise the same matrices to the same bits.

    bitsandbytes_peer.py PEER

Matrices are normal, heavy-tailed, or of numbers next to the thresholds of codes, in float or bf16, with up
to five nested blocks, ragged ends, odd counts and blocks of zeros. Given the offset of bitsandbytes, PEER
has its codes, its codes of absmax, its nested absmax and its dequantised values, all to the bit. Without it
PEER's offset is at most 4 ulp away; how many codes differ for that is printed, and bounded. PyTorch and
PEER round floats to FP8 alike.

Matrices go to bitsandbytes as one row. On processors with AVX-512 its dequantize_4bit takes the scales of
other blocks where rows are multiples of 16, but not of 64, elements long.
"""

import subprocess
import sys

import bitsandbytes
import bitsandbytes.functional as F
import torch

ELEMENTS = [1, 2, 21, 63, 64, 65, 640, 64 * 256, 64 * 256 + 1, 130 * 400, 301 * 219, 64 * 1000 + 48, 256 * 320]
MOVED = 0.005  # at most, of the codes of absmax, for an offset of one's own

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


def main():
    if len(sys.argv) != 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    check_matrices(sys.argv[1])
    check_fp8(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
