#!/usr/bin/env python3
"""The keys of a build are one table: CMake's list, help, docs, flags, and what megacpp_write_run takes and writes.

    build_keys.py ROOT LISTS TOOL COMPILER...     checks all of these in ROOT
    build_keys.py ROOT LISTS --write              writes CMake's list and the table of docs anew, as the target
                                                  write_build_keys does
    build_keys.py ROOT --added LIBRARIES COMPILER...    adds a key to a copy of ROOT, as one row and a member, and checks
                                                  that it is in all places

LISTS is the program of build_key_lists.cpp, TOOL is megacpp_write_run, COMPILER a compiler with the options that
read megacpp's headers, and LIBRARIES those of fmt and PCRE2, in one word.
"""

import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CMAKE = "cmake/megacpp_build_keys.cmake"
DOCS = "docs/using-megacpp.md"
TABLE = re.compile(r"(?<=<!-- the table of build keys, by tests/structure/build_keys.py -->\n)(?:\|.*\n)*")
CONFIG = """{"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 32, "vocab_size": 16,
"initializer_range": 0.02, "layer_norm_epsilon": 1e-05}
"""
POSITIVE = "must be a positive integer below 1000000000, not "

# The words of a preset, behind MODEL gpt2_124m, and lines that its run has.
WRITES = {
    "": ["static constexpr auto model = mc::preset::gpt2_124m;", "mc::layout layout{};",
         "batch{.micro = 4, .sequence = 1024};", "using precision = mc::bf16_mixed;", "using device = mc::cpu;",
         "recompute = mc::recompute::none;", "numerics = mc::numerics::fast;"],
    "TP 2 SEQUENCE_PARALLEL MICRO_BATCH 1 SEQUENCE 128":
        ["layout{.tp = 2, .sequence_parallel = true};", "batch{.micro = 1, .sequence = 128};"],
    "sequence=128 sp=1 tp=2": ["layout{.tp = 2, .sequence_parallel = true};", ".sequence = 128}"],
    "sp=0 packed=0 count-loss=0 zero=0": ["layout{.zero = 0};", "batch{.micro = 4, .sequence = 1024};"],
    "PP 2 tp=2 STAGE_LAYERS 3 09 CP 3": ["layout{.tp = 2, .pp = 2, .cp = 3, .cut = {.layers = {3, 9}}};"],
    "pp=2 virtual-stages=2 stage-layers=1,2,3,0": [".virtual_stages = 2, .cut = {.layers = {1, 2, 3, 0}}};"],
    "FIRST_STAGE_LAYERS 3 COUNT_LOSS SCHEDULE gpipe": ["{.cut = {.first = 3, .loss = true}, .schedule = &mc::gpipe};"],
    "SCHEDULE 1f1b PACKED MICRO_BATCHES 8": [".schedule = nullptr}", ".packed = true, .micro_batches = 8}"],
    "DEVICE cuda PRECISION fp64 RECOMPUTE full NUMERICS batch_invariant":
        ["#include <megacpp/exec/cuda/device.hpp>", "using device = mc::cuda;", "using precision = mc::fp64;",
         "mc::recompute::full;", "mc::numerics::batch_invariant;"],
    "lora=16 lora-alpha=32 lora-targets=q_proj,self_attn.v_proj rslora=1":
        ['mc::lora adapter{.rank = 16, .alpha = 32, .rslora = true, .targets = {"q_proj", "self_attn.v_proj"}};'],
    "LORA 4 LORA_TARGETS q_proj down_proj TP 2": ['mc::lora adapter{.rank = 4, .targets = {"q_proj", "down_proj"}};', "{.tp = 2}"],
    "LORA 4": ["mc::lora adapter{.rank = 4};"],
    "lora=4 lora-alpha=0.5 lora-dropout=0.05 base=nf4":
        ["mc::lora adapter{.rank = 4, .alpha = 0.5, .dropout = 0.05, .base = mc::base_storage::nf4};"],
    "lora=4 lora-ranks=c_attn:8,mlp.c_fc:2 LORA_ALPHAS c_proj:0.5":
        ['mc::lora adapter{.rank = 4, .ranks = {{{"c_attn", 8}, {"mlp.c_fc", 2}}}, .alphas = {{{"c_proj", 0.5}}}};'],
    "lora=4 modules-to-save=lm_head,wte": ['mc::lora adapter{.rank = 4, .saved = {"lm_head", "wte"}};'],
    "lora=4 lora-exclude=attn.c_proj lora-layers=0,2-5,11":
        ['.excluded = {"attn.c_proj"}, .layers = {0, 2, 3, 4, 5, 11}};'],
    "LORA 4 LORA_LAYERS 0": ["mc::lora adapter{.rank = 4, .layers = {0}};"],
    "adapter=saves": ['.saved = {"wte"}'],
    "adapter=chosen": ['.targets = {"c_attn", "c_proj"}, .excluded = {"attn.c_proj"}, .layers = {1}'],
    "adapter=patterns": ['.ranks = {{{"c_attn", 8}}}, .alphas = {{{"attn.c_proj", 0.5}}}'],
    "adapter=peft base=plain":
        ['mc::lora adapter{.rank = 2, .alpha = 3.5, .rslora = true, .targets = {"c_attn", "experts.down_proj"}, '
         ".dropout = 0.1, .base = mc::base_storage::plain};"],
    "INCLUDE here.hpp <not/here.hpp BODIES a.hpp b.hpp": ['#include "@/here.hpp"', '#include "<not/here.hpp"'],
}
# What a preset may not say, and the one sentence about it.
REFUSES = {
    "MODEL gpt2_124m MICROBATCH 4": (2, "unknown argument 'MICROBATCH'; there are MODEL, HF_CONFIG, INCLUDE, TP, "),
    "MODEL gpt2_124m 4": (2, "LORA_DROPOUT, BASE, BODIES, each with a value, and SEQUENCE_PARALLEL, COUNT_EMBEDDING, COUNT_LOSS, "),
    "MODEL gpt2_124m micro=2": (2, "unknown key micro; there are tp=, pp=, "),
    "MODEL gpt2_124m TP=2": (2, "unknown key TP; "),
    "MODEL gpt2_124m dp=2": (2, "dp is not compiled in: it is the number of ranks at start over tp x pp x cp"),
    "MODEL gpt2_124m tp=two": (2, "tp " + POSITIVE + "'two'"),
    "MODEL gpt2_124m TP 0": (2, "TP " + POSITIVE + "'0'"),
    "MODEL gpt2_124m tp=9999999999": (2, "tp " + POSITIVE + "'9999999999'"),
    "MODEL gpt2_124m lora-alpha=32": (2, "lora-alpha is of an adapter, and there is none: give its rank by LORA"),
    "MODEL gpt2_124m lora=4 lora-alpha=1e3": (2, "lora-alpha must be a number of at least 0, such as 32 or 0.05, not '1e3'"),
    "MODEL gpt2_124m lora=4 lora-ranks=c_attn": (2, "lora-ranks must be ends of layers' names with numbers, as q_proj:8,o_proj:2, not 'c_attn'"),
    "MODEL gpt2_124m lora-ranks=c_attn:8": (2, "lora-ranks is of an adapter, and there is none"),
    "MODEL gpt2_124m adapter=expression-of-ranks": (5, 'has "(c_attn|c_fc)", which is no end of a layer\'s name'),
    "MODEL gpt2_124m lora-layers=0": (2, "lora-layers is of an adapter, and there is none"),
    "MODEL gpt2_124m lora=4 lora-layers=5-2": (2, "lora-layers must be numbers of blocks from 0 to 255, and ranges, as 0,2-5"),
    "MODEL gpt2_124m lora=4 lora-layers=256": (2, "lora-layers must be numbers of blocks from 0 to 255"),
    "MODEL gpt2_124m adapter=chosen lora-layers=1": (2, "lora-layers and adapter both give the numbers of the adapter"),
    "MODEL gpt2_124m adapter=first": (5, '"target_modules" is an expression or has numbers of blocks, and no config.json'),
    "MODEL gpt2_124m adapter=whole": (5, '"target_modules" is an expression or has numbers of blocks, and no config.json'),
    "MODEL gpt2_124m adapter=experts-apart": (5, "PEFT has target_parameters in all blocks"),
    "HF_CONFIG config.json adapter=uneven":
        (5, "means mlp.c_fc in 1 of the 2 blocks that it means layers of, and an adapter here has the same layers"),
    "HF_CONFIG config.json adapter=no-experts": (5, "names mlp.experts.down_proj, which is no linear layer of the model's blocks"),
    "MODEL gpt2_124m base=nf4": (2, "base is of an adapter, and there is none"),
    "MODEL gpt2_124m lora=4 base=int8": (2, "base must be plain or nf4, not 'int8'"),
    "MODEL gpt2_124m adapter=peft lora=4": (2, "lora and adapter both give the numbers of the adapter; give one"),
    "MODEL gpt2_124m adapter=saves modules-to-save=wpe": (2, "modules-to-save and adapter both give the numbers of the adapter"),
    "MODEL gpt2_124m adapter=none": (5, "none/adapter_config.json does not exist"),
    "MODEL gpt2_124m adapter=dora": (5, "the adapter has use_dora true, which changes what it computes"),
    "MODEL gpt2_124m adapter=expression": (5, '"target_modules" is an expression or has numbers of blocks, and no config.json'),
    "HF_CONFIG config.json adapter=nothing": (5, '"target_modules" means no layer of the model'),
    "MODEL gpt2_124m lora=4 lora-targets=q_proj,,x": (2, "lora-targets must be ends of layers' names, as q_proj,v_proj, or "),
    "MODEL gpt2_124m tp=": (2, "tp " + POSITIVE + "''"),
    "MODEL gpt2_124m MICRO_BATCH": (2, "MICRO_BATCH has no value"),
    "MODEL gpt2_124m MICRO_BATCH SEQUENCE 4": (2, "MICRO_BATCH has no value"),
    "MODEL gpt2_124m BODIES": (2, "BODIES has no value"),
    "MODEL gpt2_124m TP 2 TP 2": (2, "TP is given twice"),
    "MODEL gpt2_124m TP 2 tp=2": (2, "tp is given twice"),
    "MODEL gpt2_124m NUMERICS batch-invariant": (2, "NUMERICS must be fast or batch_invariant, not 'batch-invariant'"),
    "MODEL gpt2_124m schedule=2f1b": (2, "schedule must be 1f1b or gpipe, not '2f1b'"),
    "MODEL gpt2_124m zero=2": (2, "zero must be 0 or 1, not '2'"),
    "MODEL gpt2_124m device=gpu": (2, "device must be cpu or cuda, not 'gpu'"),
    "MODEL gpt2_124m sp=2": (2, "sp must be 0 or 1, not '2'"),
    "MODEL gpt2_124m stage-layers=1,,1": (2, "stage-layers must be numbers of layers below 1000, as 3,4,4,1, not '1,,1'"),
    "MODEL gpt2_124m stage-layers=1,": (2, "not '1,'"),
    "MODEL gpt2_124m STAGE_LAYERS 1 1000": (2, "not '1,1000'"),
    "MODEL gpt2_124m PP 3 STAGE_LAYERS 1 2": (2, "STAGE_LAYERS lists 2 stages, and PP x VIRTUAL_STAGES are 3"),
    "MODEL gpt2_124m HF_CONFIG config.json": (2, "MODEL and HF_CONFIG both name the model; give one"),
    "TP 2": (2, "no key names the model: give MODEL a model of namespace mc::preset, for example gpt2_124m, or HF_"),
    "MODEL 3b": (2, "MODEL must be a model of namespace mc::preset, for example gpt2_124m, not '3b'"),
    "HF_CONFIG none.json": (5, "none.json does not exist"),
    "HF_CONFIG wrong.json": (5, 'field "n_layer"'),
    "@none": (2, "cannot read none: No such file"),
}


def run(command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, **more)


def lists(program, what):
    done = run([program, what])
    if done.returncode:
        raise SystemExit(f"{program} {what}: {done.stderr}")
    return done.stdout


def written(root, program):
    """The files that are made of the table, as they should be: {path: text}."""
    docs = (root / DOCS).read_text(encoding="utf-8")
    if not TABLE.search(docs):
        raise SystemExit(f"{DOCS} has no place for the table of build keys")
    table = lists(program, "docs")
    return {CMAKE: lists(program, "cmake"), DOCS: TABLE.sub(lambda _: table, docs)}


def list_problems(root, program):
    for path, text in written(root, program).items():
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text:
            yield f"{path} is not what the table of build keys says: build the target write_build_keys"
    helped = run(["bash", root / "examples/build_preset.sh", "--help"]).stdout
    for line in lists(program, "cmake").splitlines():
        if re.match(r"#   [a-z-]+=", line) and line[2:] not in helped:
            yield f"examples/build_preset.sh --help lacks: {line[2:]}"


def page_problems(root):
    """Keys in columns of tables that are headed by megacpp_add_preset are keys of CMake's list."""
    keys = set(re.findall(r"^  ([A-Z_]+)$", (root / CMAKE).read_text(encoding="utf-8"), re.MULTILINE))
    for page in sorted((root / "docs").glob("*.md")):
        column = None
        for line in page.read_text(encoding="utf-8").splitlines():
            cells = line.strip("|").split("|") if line.startswith("|") else []
            heads = [at for at, cell in enumerate(cells) if "`megacpp_add_preset`" in cell]
            column = heads[0] if heads else column if cells else None
            for word in re.findall(r"`([A-Z_]+)\b", cells[column]) if column is not None and not heads else ():
                if word not in keys:
                    yield f"{page.name} has the key {word} in a table, which is none: {line}"


def tool_problems(tool):
    """What megacpp_write_run writes and refuses."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "here.hpp").touch()
        (folder / "config.json").write_text(CONFIG, encoding="utf-8")
        (folder / "wrong.json").write_text(CONFIG.replace('"n_layer": 2', '"n_layer": "2"'), encoding="utf-8")
        peft = {"peft_type": "LORA", "r": 2, "lora_alpha": 3.5, "use_rslora": True, "lora_dropout": 0.1,
                "target_modules": ["c_attn"], "target_parameters": ["mlp.experts.down_proj"]}
        for name, changed in {"peft": {}, "dora": {"use_dora": True}, "expression": {"target_modules": r".*\.(c_attn|c_fc)", "target_parameters": None},
                              "first": {"target_modules": r".*h\.0\.attn\.c_attn", "target_parameters": None},
                              "whole": {"target_modules": ["h.1.attn.c_attn", "h.1.mlp.c_fc"], "target_parameters": None},
                              "ends": {"target_modules": ["0.attn.c_attn"], "target_parameters": None},
                              "all": {"target_modules": "all-linear", "target_parameters": None},
                              "uneven": {"target_modules": r".*attn\.c_attn|.*\.1\.mlp\.c_fc", "target_parameters": None},
                              "chosen": {"target_modules": ["c_attn", "c_proj"], "exclude_modules": ["attn.c_proj"],
                                         "layers_to_transform": 1, "target_parameters": None},
                              "of-pattern": {"target_modules": ["c_attn"], "layers_to_transform": [0, 5],
                                             "layers_pattern": "h", "target_parameters": None},
                              "no-experts": {"target_modules": r".*\.c_attn"},
                              "experts-apart": {"layers_to_transform": [0]},
                              "saves": {"modules_to_save": ["wte"]},
                              "patterns": {"rank_pattern": {"c_attn": 8}, "alpha_pattern": {"attn\\.c_proj": 0.5}},
                              "expression-of-ranks": {"rank_pattern": {"(c_attn|c_fc)": 8}},
                              "nothing": {"target_modules": "q_proj", "target_parameters": None}}.items():
            (folder / name).mkdir()
            (folder / name / "adapter_config.json").write_text(json.dumps(peft | changed), encoding="utf-8")
        out = folder / "run.hpp"

        def call(words):
            return run([tool, out, "my_run", folder, *words], cwd=folder)

        for words, has in WRITES.items():
            done = call(["MODEL", "gpt2_124m", *words.split()])
            text = out.read_text(encoding="utf-8") if out.is_file() else ""
            lacks = [line for line in has if line.replace("@", str(folder)) not in text]
            if done.returncode or done.stderr or "struct my_run {" not in text or lacks:
                yield f"{words}: {done.stderr} lacks {lacks} in\n{text}"
        (folder / "words").write_text("HF_CONFIG\nconfig.json\ntp=2\n", encoding="utf-8")
        done = call(["@words"])
        text = out.read_text(encoding="utf-8")
        if done.returncode or "auto model = mc::preset::my_run_from_config;" not in text or ".hidden = 8," not in text:
            yield f"HF_CONFIG: {done.stderr} {text}"
        for name, has in {"expression": '.targets = {"attn.c_attn", "mlp.c_fc"}, .drop',
                          "first": '.targets = {"attn.c_attn"}, .layers = {0}',
                          "ends": '.targets = {"attn.c_attn"}, .layers = {0}',
                          "all": '.targets = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}, .drop',
                          "whole": '.targets = {"attn.c_attn", "mlp.c_fc"}, .layers = {1}',
                          "chosen": '.targets = {"attn.c_attn", "mlp.c_proj"}, .layers = {1}',
                          "of-pattern": '.targets = {"attn.c_attn"}, .layers = {0}'}.items():
            done = call(["HF_CONFIG", "config.json", f"adapter={name}"])
            text = out.read_text(encoding="utf-8")
            if done.returncode or has not in text:
                yield f"{name}: {done.stderr} {text}"
        before = out.read_bytes()
        for words, (code, says) in REFUSES.items():
            done = call(words.split())
            if done.returncode != code or done.stdout or done.stderr.count("\n") != 1 or \
                    not done.stderr.startswith(f"megacpp_write_run: exit code {code}: ") or says not in done.stderr:
                yield f"{words}: exit code {done.returncode}, and not \"{says}\" but {done.stderr}"
        if out.read_bytes() != before:
            yield "a refused word changes the run"
        done = run([tool, folder, "my_run", folder, "MODEL", "gpt2_124m"])
        if done.returncode != 6 or "cannot write" not in done.stderr:
            yield f"a folder is written: {done.returncode}, {done.stderr}"
        # A run that cannot be written whole, as on a full disk, leaves the one before.
        done = run([tool, out, "my_run", folder, "MODEL", "gpt2_124m"], restore_signals=False,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)))
        if done.returncode != 6 or "cannot write" not in done.stderr or out.read_bytes() != before or \
                (folder / "run.hpp.new").exists():
            yield f"a run is cut off: {done.returncode}, {done.stderr}"
        # A word with = is a path, where a key needs one.
        (folder / "tp=2").mkdir()
        (folder / "tp=2/config.json").write_text(CONFIG, encoding="utf-8")
        done = call(["HF_CONFIG", "tp=2/config.json", "pp=2"])
        if done.returncode or "layout{.pp = 2};" not in out.read_text(encoding="utf-8"):
            yield f"a path is taken for a key: {done.stderr}"


def all_keys(cmake):
    """Words that give every key of CMake's list a value; the device is one whose headers every machine has."""
    words = []
    for key, value in re.findall(r"^#   ([A-Z_]+) ?(.*?)(?:  |$)", cmake, re.MULTILINE):
        if key not in ("HF_CONFIG", "ADAPTER", "INCLUDE", "BODIES"):
            given = {"N": "1", "X": "0.5", "N N ...": "1", "N N-N ...": "0-1", "name": "gpt2_124m", "name name ...": "all-linear", "name:X name:X ...": "q_proj:8"}.get(value.strip(), value.split("|")[-1].strip())
            given = "cpu" if key == "DEVICE" else given
            words += [key] + [given] * bool(given)
    return words


def order_problems(tool, program, compiler):
    """A run with all keys compiles: its members stand in the order of C++, with values that they take."""
    with tempfile.TemporaryDirectory() as folder:
        out, words = Path(folder) / "run.hpp", all_keys(lists(program, "cmake"))
        done = run([tool, out, "my_run", folder, *words])
        if done.returncode:
            yield f"all keys at once: {done.stderr}"
            return
        unit = Path(folder) / "unit.cpp"
        unit.write_text('#include "run.hpp"\nstatic_assert(my_run::batch.packed && my_run::layout.cut.listed());\n',
                        encoding="utf-8")
        done = run([*compiler, "-fsyntax-only", unit])
        if done.returncode:
            yield f"a run with all keys does not compile: {done.stderr[:2000]}\n{out.read_text(encoding='utf-8')}"


ROW = """    build_key{.member = "batch.drafts",
              .cmake = "DRAFTS",
              .script = "drafts",
              .flag = "draft-tokens",
              .sentence = "drafts of a token, or 0 for none",
              .kind = key_kind::whole,
              .initial = "0",
              .value = [](const setup& s) -> std::int64_t { return s.batch.drafts; }},
"""


def added_problems(root, libraries, compiler):
    """A key is one row and its member, and is then in all places."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        for path in ("include", "src", "cmake", "examples", "docs", "tests/structure"):
            shutil.copytree(root / path, copy / path, ignore=shutil.ignore_patterns("build"))

        def insert(path, before, text):
            whole = (copy / path).read_text(encoding="utf-8")
            places = [match.start() for match in re.finditer(before, whole)]
            if len(places) != 1:
                raise SystemExit(f"{path} has {len(places)} places for the key, '{before}'")
            (copy / path).write_text(whole[:places[0]] + text + whole[places[0]:], encoding="utf-8")

        insert("include/megacpp/options/build_keys.hpp", r' +build_key\{\s*\.member = "precision"', ROW)
        insert("include/megacpp/recipe/batching.hpp", r" +written_at at = here\(\);", "  int drafts = 0;\n")
        program, tool, out = copy / "lists", copy / "tool", copy / "run.hpp"
        builds = [subprocess.Popen([str(w) for w in [compiler[0], f"-I{copy}/include", *compiler[1:], "-O0", "-o", to, copy / source, *libraries.split()]])
                  for to, source in ((program, "tests/structure/build_key_lists.cpp"), (tool, "src/write_run.cpp"))]
        if any([build.wait() for build in builds]):
            yield "the copy does not compile"
            return
        if not list(list_problems(copy, program)):
            yield "nothing tells that the lists lack the key"
        write(copy, program)
        yield from list_problems(copy, program)
        places = {
            "help": (run(["bash", copy / "examples/build_preset.sh", "--help"]).stdout,
                     r"\n  drafts=N +drafts of a token, or 0 for none; by default 0\n"),
            "CMake's list": ((copy / CMAKE).read_text(encoding="utf-8"), r"\n  DRAFTS\n"),
            "docs": ((copy / DOCS).read_text(encoding="utf-8"),
                     r"\n\| `DRAFTS N` \| `drafts=` \| drafts of a token, or 0 for none \| 0 \| `--draft-tokens` \|\n"),
            "flags": (lists(program, "flags"), r"--draft-tokens: drafts of a token, or 0 for none: build it with DRAFTS 0 of megacpp_add_"),
        }
        for words, value in (("DRAFTS 8", 8), ("drafts=8", 8), ("drafts=0", 0)):
            done = run([tool, out, "my_run", copy, "MODEL", "gpt2_124m", *words.split()])
            places[words] = (done.stderr + out.read_text(encoding="utf-8"), rf"\.drafts = {value}\}}")
        places["a refusal"] = (run([tool, out, "my_run", copy, "MODEL", "gpt2_124m", "drafts=x"]).stderr,
                               "drafts must be an integer from 0 to 999999999, not 'x'")
        places["unknown keys"] = (run([tool, out, "my_run", copy, "x=1"]).stderr, "drafts=, ")
        for place, (text, pattern) in places.items():
            if not re.search(pattern, text):
                yield f"{place}: no {pattern} in\n{text}"
        yield from order_problems(tool, program, [compiler[0], f"-I{copy}/include", *compiler[1:]])


def write(root, program):
    for path, text in written(root, program).items():
        (root / path).write_text(text, encoding="utf-8")


def main(root, *words):
    root = Path(root).resolve()
    if words[1:] == ("--write",):
        write(root, words[0])
        return 0
    if words[0] == "--added":
        problems = list(added_problems(root, words[1], words[2:]))
    else:
        program, tool, *compiler = words
        problems = [*list_problems(root, program), *page_problems(root), *tool_problems(tool),
                    *order_problems(tool, program, compiler)]
    print("\n".join(problems + [f"build keys: {len(WRITES)} runs, {len(REFUSES)} refusals, {len(problems)} problems"]))
    return bool(problems)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
