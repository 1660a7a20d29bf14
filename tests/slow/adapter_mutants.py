#!/usr/bin/env python3
"""Mutants of adapters: the pass that adds factors, the factors' files, and the body that decodes NF4.

    adapter_mutants.py write ROOT FOLDER
    adapter_mutants.py run PROGRAM...
    adapter_mutants.py list

A mutant is one expression of a header that is replaced by another one. `write` writes copies of the
headers in which all mutants stand side by side, chosen by the environment variable MEGACPP_MUTANT, and
chosen.hpp, which every source includes first. Tests are compiled once with these copies. `run` runs the
cases of these programs, mutants_laws_adapters and so on, the quick ones first, until one fails, which
kills the mutant; without a mutant all must pass. What survives is a finding.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

CHOSEN = """#pragma once
#include <cstdlib>
#include <type_traits>
inline const int megacpp_mutant = [] {
  const char* const text = std::getenv("MEGACPP_MUTANT");
  return text == nullptr ? 0 : std::atoi(text);
}();
constexpr bool megacpp_is_mutant(int k) { return !std::is_constant_evaluated() && megacpp_mutant == k; }
"""

LAWS, BLOCKS, FILES = "laws_adapters", "unit_emulated_nf4", "parity_adapters"
ADAPT, LORA = "pass/adapt.hpp", "recipe/lora.hpp"
BODY, TENSORS = "kernel/rows/nf4.hpp", "hf/adapter_tensors.hpp"

# The name of a mutant, its header, the expression there, what stands for it, and the test that kills it.
MUTANTS = [
    ("the scale is left out", ADAPT, "mc::scale(product(n, x, first), with_.scale_of(layer), n.line)",
     "product(n, x, first)", LAWS),
    ("alpha / r in place of alpha / sqrt(r)", LORA, "(rslora ? square_root(r) : r)",
     "static_cast<double>(r)", LAWS),
    ("the gradient of A is not summed over ranks", ADAPT,
     "first = to(first, static_cast<axis>(i), replicate, n.line)", "first", LAWS),
    ("the gradient of B is not summed over ranks", ADAPT,
     "second = to(second, static_cast<axis>(i), replicate, n.line)", "second", LAWS),
    ("layers of one file have an A each", ADAPT,
     "narrow_[k].x == of_x && std::string_view(narrow_[k].layer) == layer", "false", LAWS),
    ("layers that read one x have one A", ADAPT,
     "std::string_view(narrow_[k].layer) == layer", "true", LAWS),
    ("A x is reduced before B, and B A x again", ADAPT, "return product(n, narrow, second)",
     "return product(n, to(narrow, axis::tp, replicate), second)", LAWS),
    ("A is whole where its input is sharded", ADAPT, "is_shard_of(of_input, a)", "false", LAWS),
    ("A is whole where experts are sharded", ADAPT,
     "leading > 0 && of_weight.is_shard(w.dims[0].d)", "false", LAWS),
    ("B is whole where W is sharded", ADAPT, "is_shard_of(w.at.at[i], b)", "false", LAWS),
    ("B lies as it is stored where ranks share heads", ADAPT,
     "as_weight(n.in[op::linear_in::w], second.id)", "second.id", LAWS),
    ("the router is adapted", ADAPT,
     "w < 0 || !is_target(g_.at(w), of_experts) || is_router(y)",
     "w < 0 || !is_target(g_.at(w), of_experts)", LAWS),
    ("the router is stored in NF4", ADAPT, "w < 0 || is_router(n.out[op::linear_out::y])", "w < 0",
     LAWS),
    ("the base is trained", ADAPT, "p.frozen || !with_.saves(published_name(g_.at(p.v)))", "p.frozen",
     LAWS),
    ("factors are frozen as the base is", ADAPT, "info.decay = info.added = true",
     "info.decay = info.added = info.frozen = true", LAWS),
    ("B A x is added twice", ADAPT, "located(added(old, g_.at(w)), old.line)",
     "located(mc::scale(added(old, g_.at(w)), 2), old.line)", LAWS),
    ("W x is lost", ADAPT, "(var{&b_, now_[y]} + located(added(old, g_.at(w)), old.line)).id",
     "added(old, g_.at(w)).id", LAWS),
    ("experts are left out of all-linear", LORA,
     'target == "all-linear" || (of_experts && target == "experts")', 'target == "all-linear" && !of_experts',
     LAWS),
    ("the head of generation is adapted", ADAPT, "if (part != adapted_as::layer) of_part.targets = {}",
     "if (false) of_part.targets = {}", LAWS),
    ("experts lie in the file of PEFT as (e, r)", TENSORS, "std::array{std::int64_t{1}, r * E, E}",
     "std::array{r, r * E, std::int64_t{1}}", FILES),
    ("B begins as A does", ADAPT, "second_factor_name, {.how = init::zeros}",
     "second_factor_name, {.how = init::uniform, .std = 1}", FILES),
    ("a block has the absmax of its neighbour", BODY, "absmax[row]", "absmax[row > 0 ? row - 1 : row]",
     BLOCKS),
    ("the offset of absmax is left out", BODY, "product + of_matrix[0]", "product", BLOCKS),
    ("nested blocks are counted from the shard's own first block", BODY, "row % own + first",
     "row % own", BLOCKS),
    ("nested blocks are counted as of a matrix of the shard's size", BODY, "(row / own) * all",
     "(row / own) * own", BLOCKS),
    ("all matrices have the first one's scales", BODY, "blocks.matrix(row) * scales_of_matrix",
     "std::int64_t{0}", BLOCKS),
    ("the low bits are the first element", BODY, "k % 2 == 0", "k % 2 != 0", BLOCKS),
]
# Statements, and initialisers, whose mutants are no expressions.
STATEMENTS = {"return product(n, narrow, second)", "if (part != adapted_as::layer) of_part.targets = {}",
              "second_factor_name, {.how = init::zeros}"}


def with_mutants(text, header):
    """A header's text with all its mutants; an expression must stand there exactly once."""
    places = []
    for number, (name, of, old, new, _) in enumerate(MUTANTS, 1):
        if of != header:
            continue
        if text.count(old) != 1:
            raise SystemExit(f"{header}: {name}: the expression stands there {text.count(old)} times: {old}")
        at = text.index(old)
        if old.startswith("return "):
            places.append((at, f"return megacpp_is_mutant({number}) ? {new[7:]} : ", len("return ")))
        elif old.startswith("if ("):
            places.append((at, f"if (!megacpp_is_mutant({number})) ", 0))
        elif old in STATEMENTS:
            places.append((at + len("second_factor_name, "),
                           f"megacpp_is_mutant({number}) ? parameter_info{new[new.index('{'):]} : parameter_info",
                           0))
        else:
            places.append((at, f"(megacpp_is_mutant({number}) ? ({new}) : (", 0))
            places.append((at + len(old), "))", 0))
    for at, inserted, skipped in sorted(places, key=lambda p: p[0], reverse=True):
        text = text[:at] + inserted + text[at + skipped:]
    return text


def cases_of(program):
    """The names of a program's test cases, in their order."""
    said = subprocess.run([program, "--list_content"], capture_output=True, text=True, check=True)
    return [line.strip().rstrip("*") for line in (said.stderr + said.stdout).splitlines() if line.strip()]


def fails(program, case, mutant):
    """Whether a test case fails under a mutant: by a check, a fault, or after a minute."""
    try:
        return subprocess.run([program, f"--run_test={case}"], capture_output=True, timeout=120,
                              env={**os.environ, "MEGACPP_MUTANT": str(mutant)}).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def write(root, folder):
    """Writes chosen.hpp and the headers with mutants."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chosen.hpp").write_text(CHOSEN, encoding="utf-8")
    for header in {of for _, of, *_ in MUTANTS}:
        copy = folder / "megacpp" / header
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = (root / "include/megacpp" / header).read_text(encoding="utf-8")
        copy.write_text(with_mutants(text, header), encoding="utf-8")


def run(programs):
    """Number of findings; prints what kills each mutant."""
    findings = tried = 0
    for program in programs:
        test = Path(program).name.removeprefix("mutants_")
        seconds = {}
        for case in cases_of(program):
            start = time.monotonic()
            if fails(program, case, 0):
                findings += 1
                print(f"{test}: {case} fails without a mutant")
            seconds[case] = time.monotonic() - start
        cases = sorted(seconds, key=seconds.get)
        for number, (name, *_, killed_by) in enumerate(MUTANTS, 1):
            if killed_by != test:
                continue
            tried += 1
            killer = next((case for case in cases if fails(program, case, number)), None)
            findings += killer is None
            print(f"{name}: {f'survives {test}' if killer is None else f'{test}, {killer}'}", flush=True)
    print(f"{tried} mutants of {len(MUTANTS)}, {findings} findings")
    return findings


def main():
    match sys.argv[1:]:
        case ["write", root, folder]:
            write(Path(root), Path(folder))
            return 0
        case ["run", *programs] if programs:
            return 1 if run(programs) else 0
        case ["list"]:
            print("\n".join(f"{header}: {name}" for name, header, *_ in MUTANTS))
            return 0
    print(__doc__)
    return 64


if __name__ == "__main__":
    sys.exit(main())
