#!/usr/bin/env python3
"""megatron-core and megatron_peer.cpp write the same datasets and draw the same samples from them.

    megatron_peer.py PEER DIR

Its IndexedDatasetBuilder writes datasets of every type, which PEER reads and writes again: the bytes
must be equal, and its IndexedDataset must read ours. From ours its GPTDataset and BlendedDataset
draw samples, which must be those that PEER draws: tokens, labels where the loss counts, positions,
and who sees whom.
"""

import itertools
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import torch
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import get_blend_from_list

VOCABULARY, EOD, PAD = 50, 7, 3
TYPES = [numpy.uint8, numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint16]


class Tokenizer:
    """What its datasets ask of one."""
    vocab_size = VOCABULARY
    eod = EOD
    unique_identifiers = {"class": "Tokenizer"}

    def __init__(self, pad):
        if pad is not None:
            self.pad = pad


def write_theirs(folder):
    """Datasets of every type and of many sizes: their prefixes, and for PEER what to write."""
    random = numpy.random.default_rng(1)
    theirs, written = {}, []

    def build(name, dtype, documents, most, appended=()):
        builder = IndexedDatasetBuilder(f"{folder}/theirs-{name}.bin", dtype=dtype)
        for _ in range(documents):
            # None, one or several sequences, of a document; a sequence may be empty.
            lengths = [int(random.integers(0, most)) for _ in range(random.choice([0, 1, 1, 1, 3]))]
            tokens = random.integers(0, VOCABULARY, size=sum(lengths))
            builder.add_document(torch.from_numpy(tokens), lengths)
        for other in appended:
            builder.add_index(f"{folder}/theirs-{other}")
        builder.finalize(f"{folder}/theirs-{name}.idx")
        theirs[name] = dtype

    for dtype in TYPES:
        build(dtype.__name__, dtype, 40, 30)
        written.append((dtype.__name__, [f"theirs-{dtype.__name__}"]))
    for i in range(11):
        build(f"part{i}", numpy.uint16, 60 + 17 * i, 10 + 5 * i)
        written.append((f"part{i}", [f"theirs-part{i}"]))
    build("large", numpy.int32, 1500, 20)
    written.append(("large", ["theirs-large"]))
    # The same documents as theirs, the first part added and the others appended.
    build("merged", numpy.uint16, 0, 1, ["part0", "part1", "part4"])
    written.append(("merged", ["theirs-part0", "theirs-part1", "theirs-part4"]))
    return theirs, [{"from": [f"{folder}/{f}" for f in sources], "to": f"{folder}/ours-{name}",
                     "type": DType.code_from_dtype(theirs[name])} for name, sources in written]


def check_datasets(folder, theirs):
    for name in theirs:
        for suffix in ("idx", "bin"):
            a, b = (Path(f"{folder}/{who}-{name}.{suffix}").read_bytes() for who in ("ours", "theirs"))
            assert a == b, f"{name}.{suffix} differs"
        ours = IndexedDataset(f"{folder}/ours-{name}")
        its = IndexedDataset(f"{folder}/theirs-{name}")
        assert len(ours) == len(its) > 0
        assert all(numpy.array_equal(ours[i], its[i]) for i in range(len(ours)))
        assert numpy.array_equal(ours.document_indices, its.document_indices)
    print(f"{len(theirs)} datasets are the same to the byte")


def cases(folder):
    one = [f"{folder}/ours-part5"]
    blends = {
        "large": [f"{folder}/ours-large"],
        "one": one,
        "two": ["0.3", f"{folder}/ours-part5", "0.7", f"{folder}/ours-part8"],
        "three": ["1", f"{folder}/ours-part3", "2", f"{folder}/ours-part6", "3",
                  f"{folder}/ours-part9"],
        "unweighted": [f"{folder}/ours-part{i}" for i in (4, 6, 9)],
        "alone": ["5", f"{folder}/ours-part7"],
        "eleven": list(itertools.chain(*((str(1 / (i + 1.1)), f"{folder}/ours-part{i}")
                                         for i in range(11)))),
    }
    # Of a part without tokens megatron-core would count epochs without end.
    base = {"vocabulary": VOCABULARY, "eod": EOD, "pad": None, "split": "70,20,10", "part": 0,
            "sequence": 32, "drop_last": True, "reset_position_ids": False,
            "reset_attention_mask": False, "eod_mask_loss": False, "cached": False}

    def case(blend, seed, samples, **other):
        made = {**base, "words": blends[blend], "seed": seed, "samples": samples, **other}
        made["name"] = f"{len(all_cases)}-{blend}"
        all_cases.append(made)

    all_cases = []
    for blend, seed in itertools.product(list(blends)[1:], (1234, 7)):
        for samples in (40, 130, 290, 400):
            case(blend, seed, samples)
    for part in range(3):
        case("large", 2, 10, split="969, 30, 1", part=part)
    for resets in itertools.product((False, True), repeat=3):
        flags = dict(zip(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), resets))
        case("one", 5, 60, **flags)
        case("three", 5, 60, pad=PAD, cached=True, **flags)
    for blend in ("one", "unweighted"):
        for drop_last in (False, True):  # every sample of the validation part, once
            case(blend, 3, None, split="60,40", part=1, drop_last=drop_last)
            case(blend, 3, None, split="60,40", part=0, drop_last=True, cached=True)
        case(blend, 3, 25, split="1,1,1", part=2, sequence=9)
        case(blend, 3, 25, split="60,40", part=1, drop_last=False, pad=EOD)
    return all_cases


def their_samples(folder, c):
    for cache in Path(folder).glob("*/cache"):  # whose keys do not have all that matters
        shutil.rmtree(cache)
    config = GPTDatasetConfig(
        random_seed=c["seed"], sequence_length=c["sequence"], blend=get_blend_from_list(c["words"]),
        split=c["split"], tokenizer=Tokenizer(c["pad"]),
        reset_position_ids=c["reset_position_ids"], reset_attention_mask=c["reset_attention_mask"],
        eod_mask_loss=c["eod_mask_loss"], drop_last_partial_validation_sequence=c["drop_last"])
    sizes = [0, 0, 0]
    sizes[c["part"]] = c["samples"]
    if c["samples"] is None:
        sizes = [None] * 3
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[c["part"]]


def epochs_apart(dataset):
    """Of a GPTDataset: how many epochs, and whether the last is shuffled apart."""
    n = len(dataset.indices)
    last = dataset.document_index[-n:]
    epochs = len(dataset.document_index) // n
    return epochs, epochs > 1 and numpy.array_equal(numpy.sort(last), dataset.indices)


def check_samples(folder, c):
    theirs = their_samples(folder, c)
    numbers = numpy.fromfile(f"{folder}/{c['name']}.samples", dtype=numpy.int32)
    ours = numbers[1:].reshape(-1, 4, c["sequence"])
    assert len(theirs) == numbers[0] == len(ours) > 0, (len(theirs), numbers[0], c)
    parts = theirs.datasets if isinstance(theirs, BlendedDataset) else [theirs]
    for i, (tokens, labels, positions, documents) in enumerate(ours):
        for part in parts:  # the pads of the first sample would be masked in every later one
            part.masks_and_position_ids_are_cached = False
        its = {k: numpy.asarray(v) for k, v in theirs[i].items()}
        counts = its["loss_mask"] == 1
        sees = numpy.tril(documents[:, None] == documents[None, :])
        assert numpy.array_equal(tokens, its["tokens"]), (i, c)
        assert numpy.array_equal(labels, numpy.where(counts, its["labels"], -100)), (i, c)
        assert numpy.array_equal(positions, its["position_ids"]), (i, c)
        assert numpy.array_equal(sees, ~its["attention_mask"][0]), (i, c)
    return len(ours), [epochs_apart(d) for d in parts]


def main():
    peer, folder = sys.argv[1:]
    logging.disable(logging.WARNING)
    theirs, written = write_theirs(folder)
    all_cases = cases(folder)
    Path(folder, "cases.json").write_text(json.dumps({"written": written, "cases": all_cases}))
    subprocess.run([peer, folder], check=True)
    check_datasets(folder, theirs)
    samples, epochs = 0, []
    for c in all_cases:
        n, of_parts = check_samples(folder, c)
        samples += n
        epochs += of_parts
    apart = sum(a for _, a in epochs)
    several = sum(e > 1 for e, _ in epochs)
    print(f"{len(all_cases)} sets of {samples} samples are the same; of {len(epochs)} datasets "
          f"{several} have several epochs, of which {apart} have the last apart")
    return 0 if apart > 10 and several - apart > 10 else 1


if __name__ == "__main__":
    sys.exit(main())
