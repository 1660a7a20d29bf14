#!/usr/bin/env python3
"""vLLM's own code reads the adapters of experts that `export --export-layout` wrote for it.

    vllm_lora.py UNPACKED VLLM_FOLDER PEFT_FOLDER

UNPACKED has the sources of a wheel of vLLM (pip download vllm==0.33.0 --no-deps, then unzip), of which
vllm/lora is run without a GPU: what it imports beside itself is replaced by empty modules. VLLM_FOLDER is
an adapter of Qwen3-MoE in the layout vllm, and PEFT_FOLDER the same one in the layout peft. Their
configurations are accepted, their names and shapes are found, and w1, w2 and w3 as vLLM packs them from
each add the same to the weights, which is what PEFT's equation says.
"""

import ast
import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import load_file

OWN = ("vllm.lora.lora_model", "vllm.lora.lora_weights", "vllm.lora.peft_helper", "vllm.lora.utils")
unpacked, of_vllm, of_peft = (Path(p) for p in sys.argv[1:])


class Empty(types.ModuleType):
    """A module in place of one that needs a GPU; each of its names is a class of its own."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "logger" or name.startswith("init_"):
            return lambda *_: types.SimpleNamespace(info_once=print, warning=print)
        made = False if name.isupper() else type(name, (), {})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] != "vllm":
            return None
        if name in OWN:
            file = unpacked / (name.replace(".", "/") + ".py")
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


def function_of(file, name, known):
    """One function of a source that cannot be imported."""
    tree = ast.parse((unpacked / file).read_text())
    (found,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    found.decorator_list = []
    code = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), found], [])
    exec(compile(ast.fix_missing_locations(code), file, "exec"), known)
    return known[name]


sys.meta_path.insert(0, Finder())
from vllm.lora.lora_model import LoRAModel  # noqa: E402
from vllm.lora.lora_weights import PackedLoRALayerWeights  # noqa: E402
from vllm.lora.peft_helper import PEFTHelper  # noqa: E402

stored = load_file(of_vllm / "adapter_model.safetensors")
EXPERTS = 1 + max(int(n.split(".experts.")[1].split(".")[0]) for n in stored if ".experts." in n)
BLOCKS = sorted({n.split(".experts.")[0].removeprefix("base_model.model.") + ".experts"
                 for n in stored if ".experts." in n})
mapping = function_of(
    "vllm/model_executor/layers/fused_moe/routed_experts.py", "build_expert_params_mapping",
    {"EplbState": types.SimpleNamespace(
        build_initial_global_physical_to_logical_map=lambda n, _: list(range(n)))})
# As process_packed_modules_mapping and WorkerLoRAManager._load_adapter have them of Qwen3-MoE.
PACKED = [name.rstrip(".") for _, name, _, _ in mapping("gate_proj", "down_proj", "up_proj", EXPERTS)]
EXPECTED = {"q_proj", "k_proj", "v_proj", "o_proj", "gate", "experts", *PACKED}


def read(folder):
    helper = PEFTHelper.from_local_dir(str(folder), None)
    helper.validate_legal(types.SimpleNamespace(max_lora_rank=16))
    return LoRAModel.from_local_checkpoint(str(folder), EXPECTED, helper, lora_model_id=1,
                                           device="cpu", dtype=torch.float64)


def added(lora):
    """B A scale of w1, w2 and w3 for each expert."""
    return [scale * b.double() @ a.double()
            for a, b, scale in zip(lora.lora_a, lora.lora_b, lora.scaling)]


def relative(x, y):
    return ((x - y).norm() / y.norm()).item()


one, flat = read(of_vllm), read(of_peft)
convert = function_of("vllm/lora/model_manager.py", "_convert_3d_to_2d_moe_lora", {"torch": torch})
manager = types.SimpleNamespace(
    _get_lora_layer_weights=lambda model, name: model.get_lora(name),
    _pop_lora_weights=lambda model, names: [model.loras.pop(n, None) for n in names],
    model=types.SimpleNamespace(config=types.SimpleNamespace(architectures=["Qwen3MoeForCausalLM"])))
experts = types.SimpleNamespace(local_num_experts=EXPERTS, global_num_experts=EXPERTS, ep_rank=0)
tensors, worst, against_peft = load_file(of_peft / "adapter_model.safetensors"), 0, 0
for block in BLOCKS:
    packed = PackedLoRALayerWeights.pack_moe(
        [one.get_lora(block.removesuffix("experts") + name) for name in PACKED], block)
    ours = added(packed)
    scale = flat.get_lora(block).scaling
    convert(manager, flat, experts, block)
    theirs = flat.get_lora(block)
    theirs.scaling = [scale] * 3
    worst = max([worst] + [relative(x, y) for x, y in zip(ours, added(theirs))])
    # dW[e, o, i] = scale sum_j B[o, j E + e] A[e r + j, i]
    for name, found in ((".base_layer", torch.cat([ours[0], ours[2]], dim=1)), ("", ours[1])):
        a, b = (tensors[f"base_model.model.{block}{name}.lora_{f}.weight"].double() for f in "AB")
        expected = scale * torch.einsum("oje,eji->eoi", b.reshape(len(b), -1, EXPERTS),
                                        a.reshape(EXPERTS, -1, a.shape[1]))
        against_peft = max(against_peft, relative(found, expected))
    print(f"{block}: w1, w2, w3 A {[tuple(a.shape) for a in packed.lora_a]}, "
          f"B {[tuple(b.shape) for b in packed.lora_b]}, scale {packed.scaling}")
others = sorted(set(one.loras) - {b.removesuffix("experts") + n for b in BLOCKS for n in PACKED})
assert others and all(torch.equal(getattr(one.loras[n], f), getattr(flat.loras[n], f))
                      for n in others for f in ("lora_a", "lora_b"))
print(f"other layers, alike in both: {', '.join(others)}")
print(f"{len(stored)} tensors of {EXPERTS} experts; what is added, by relative L2: {worst:.1e} from vLLM's "
      f"reading of the layout peft, {against_peft:.1e} from PEFT's equation")
sys.exit(0 if max(worst, against_peft) < 1e-12 and BLOCKS else 1)
