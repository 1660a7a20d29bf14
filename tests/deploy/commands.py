#!/usr/bin/env python3
"""The command lines of examples/deploy, as its manifests have them, run by small programs on CPUs: training on two
"nodes" that each start a rank, as PyTorchJob and TrainJob start them, then the comparison, the export, and the guide's
data and training, and trials of a search.

    commands.py WORK SMALL_MODEL SMALL_QLORA MEGACPP_DATA [unittest argument...]

Folders of containers are folders of WORK; numbers that would take long are smaller.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import recipes  # noqa: E402

ROOT = recipes.DEPLOY.parents[1]
WORK = PROGRAMS = DATA_TOOL = None
VALUES = {"MODEL": "small model", "DATA": "con\"versations", "EPOCHS": "2", "GLOBAL_BATCH_SIZE": "32", "LEARNING_RATE": "3e-3",
          "QLORA_LEARNING_RATE": "3e-3", "SAVE_INTERVAL": "10", "TRIAL_ITERS": "6",
          # the guide's numbers, of examples/small_model.json
          "TENSOR_PARALLEL": "1", "PIPELINE_PARALLEL": "1", "NUM_LAYERS": "2", "HIDDEN_SIZE": "128", "NUM_ATTENTION_HEADS": "4",
          "SEQ_LENGTH": "128", "MAX_POSITION_EMBEDDINGS": "256", "MICRO_BATCH_SIZE": "16", "GLOBAL_BATCH_SIZE_GPT": "32",
          "TRAIN_SAMPLES": "320", "LR_DECAY_SAMPLES": "300", "LR_WARMUP_SAMPLES": "64", "BENCHMARK_ITERS": "24"}


def run(words, check=0, **environment):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "MASTER_"))}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env={**own, **environment}, cwd=WORK, check=False,
                          timeout=300)
    if done.returncode != check:
        raise AssertionError(f"{words}: exit code {done.returncode}, not {check}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_data():
    """Conversations, a tokenizer and a base that has read a little, where the containers look for them."""
    shutil.rmtree(WORK, ignore_errors=True)
    data, model = WORK / "datasets" / VALUES["DATA"], WORK / "datasets" / VALUES["MODEL"]
    for folder in (data, WORK / "checkpoints", WORK / "fsx/gpt2", WORK / "made"):
        folder.mkdir(parents=True)
    run(["python3", ROOT / "examples/small_conversations.py", WORK / "made"])
    run(["python3", ROOT / "examples/small_tokenizer.py", WORK / "made/tokenizer", WORK / "made/conversations.jsonl", "--vocabulary", 512])
    run([PROGRAMS["full"], "train", "--data-type", "chat", "--data-path", "made/conversations.jsonl", "--split", "98,2,0", "--chat-loss", "all",
         "--tokenizer-model", "made/tokenizer", "--train-iters", 20, "--lr", "3e-3", "--save", "made/run", "--eval-iters", 0])
    run([PROGRAMS["full"], "export", "--load", "made/run", "--save", model])
    for name, count in (("train", 2000), ("held-out", 50)):
        source = WORK / "made" / ("conversations.jsonl" if name == "train" else "held-out.jsonl")
        (data / f"{name}.jsonl").write_text("".join(source.read_text().splitlines(keepends=True)[:count]))
    (data / "prompts.txt").write_text("".join((WORK / "made/questions.txt").read_text().splitlines(keepends=True)[:5]))
    tokenizer = json.loads((WORK / "made/tokenizer/tokenizer.json").read_text())
    vocabulary = {**tokenizer["model"]["vocab"], **{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
    (WORK / "fsx/gpt2/gpt2-vocab.json").write_text(json.dumps(vocabulary))
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    (WORK / "fsx/gpt2/gpt2-merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    with (WORK / "fsx/gpt2/oscar-1GB.jsonl").open("w") as texts:
        for line in (data / "train.jsonl").read_text().splitlines():
            texts.write(json.dumps({"text": " ".join(m["content"] for m in json.loads(line)["messages"])}) + "\n")


def document(name, kind):
    return next(one for n, one in recipes.documents(**VALUES) if (n, one["kind"]) == (name, kind))


def command(container, program, ranks=2):
    """The words and the variables of a container, for this machine."""
    words = []
    for word in [*container["command"], *container.get("args", [])]:
        if not isinstance(word, str):
            raise AssertionError(f"{word} is no text")
        word = re.sub(r"(?<![\w.])/(datasets|checkpoints|fsx)(?=/)", rf"{WORK}/\1", word)
        words.append({"/opt/megacpp/program": str(program)}.get(word, word).replace("/scripts/", f"{recipes.DEPLOY}/kubernetes/scripts/"))
    variables = {e["name"]: e["value"] for e in container.get("env", []) if "value" in e and e["name"] != "MEGACPP_SOCKET_IFNAME"}
    if "PET_NPROC_PER_NODE" in variables:
        variables["PET_NPROC_PER_NODE"] = str(ranks)
    return words, variables


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def on_two_nodes(words, variables):
    """Runs a command as the two pods of a job, each of which starts one rank; returns what the first one says."""
    port = str(free_port())
    pods = []
    for node in (0, 1):
        own = {**os.environ, **variables, "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(node), "PET_MASTER_ADDR": "127.0.0.1",
               "PET_MASTER_PORT": port}
        pods.append(subprocess.Popen(words, env=own, cwd=WORK, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = [pod.communicate(timeout=300)[0] for pod in pods]
    if any(pod.returncode for pod in pods):
        raise AssertionError(f"{words}: exit codes {[pod.returncode for pod in pods]}\n{said[0]}\n{said[1]}")
    return said[0]


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        make_data()

    def way(self, way, program):
        job = document(f"kubernetes/{way}-pytorchjob", "PyTorchJob")
        container, = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
        words, variables = command(container, program)
        first = on_two_nodes(words, variables)
        self.assertIn("2 ranks", first)
        self.assertNotIn("unknown", first)
        self.assertIn("nothing is left to train", on_two_nodes(words, variables))  # of the same line again
        compare = document(f"kubernetes/compare-{way}", "Job")
        for pod in recipes.pods(compare):
            for container in [*pod["initContainers"], *pod["containers"]]:
                run(*[command(container, program)[0]], **command(container, program)[1])
        folder = WORK / "checkpoints/compare" / way
        before, after = (json.loads((folder / when / "perplexity.json").read_text())["perplexity"] for when in ("before", "after"))
        self.assertLess(after, before)
        self.assertEqual(len((folder / "table.md").read_text().splitlines()), 2 + 3 + 5)
        exported, = [c for pod in recipes.pods(document(f"kubernetes/export-{way}", "Job")) for c in pod["containers"]]
        served = WORK / "checkpoints/served" / recipes.values()["SERVED_MODEL"]
        shutil.rmtree(served, ignore_errors=True)
        run(command(exported, program)[0])
        self.assertLessEqual({"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}, set(os.listdir(served)))
        loss = json.loads(run([PROGRAMS["full"], "eval", "--load", served, "--data-type", "chat", "--data-path",
                               WORK / "datasets" / VALUES["DATA"] / "held-out.jsonl", "--json"]))
        self.assertLess(abs(loss["perplexity"] / after - 1), 0.05)  # in bf16, and for QLoRA beside what NF4 had rounded

    def test_full(self):
        self.way("full", PROGRAMS["full"])

    def test_qlora(self):
        self.way("qlora", PROGRAMS["qlora"])

    def test_the_guide(self):
        prepared, = [c for pod in recipes.pods(document("hyperpod/prepdata", "Job")) for c in pod["containers"]]
        run(command(prepared, DATA_TOOL)[0])
        said = {}
        for name in ("pytorchjob", "benchmark"):
            job = document(f"hyperpod/{name}", "PyTorchJob")
            container, = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
            words, variables = command(container, PROGRAMS["full"])
            for flag in ("--bf16", "--recompute-activations"):  # the small program computes in fp32, and keeps all
                words.remove(flag)
            words[words.index("--init-method-std") + 1] = "0.02"
            said[name] = on_two_nodes(words, variables)
        self.assertIn("step 10/10 | loss:", said["pytorchjob"])
        self.assertIn("step 10/10 | saved to", said["pytorchjob"])
        self.assertNotIn("validation", said["benchmark"])
        self.assertGreater(json.loads(said["benchmark"].splitlines()[-1])["median_ms"], 0)
        # hyperpodrun starts the same program by the same flags.
        job = document("hyperpod/hyperpodpytorchjob", "HyperPodPyTorchJob")
        container, = [c for pod in recipes.pods(job) for c in pod["containers"]]
        train = document("hyperpod/pytorchjob", "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
        at = container["args"].index("/opt/megacpp/program")
        self.assertEqual(container["args"][at + 1:], train["args"])

    def test_trials(self):
        spec = document("tuning/experiment", "Experiment")["spec"]
        template, asked = spec["trialTemplate"], {"lr": "0.0031", "global-batch-size": "32"}
        text = json.dumps(template["trialSpec"])
        for parameter in template["trialParameters"]:
            text = text.replace("${trialParameters.%s}" % parameter["name"], asked[parameter["reference"]])
        container, = [c for pod in recipes.pods(json.loads(text)) for c in pod["containers"]]
        logs = WORK / "katib"
        logs.mkdir(exist_ok=True)
        # Katib puts all behind "sh -c", with blanks between, and has the shell tell of the end.
        line = " ".join([*container["args"], "&&", f"echo completed > {logs}/$$.pid"])
        line = line.replace("/opt/megacpp/program", str(PROGRAMS["qlora"])).replace("/var/log/katib", str(logs))
        variables = {e["name"]: re.sub("^/datasets/", f"{WORK}/datasets/", e["value"]) for e in container["env"]}
        said = run([*container["command"], line], **{**variables, "PET_NPROC_PER_NODE": "2"})
        self.assertEqual([path.read_text() for path in logs.glob("*.pid")], ["completed\n"])
        # Katib's collector: lines with a name in them, and its own expression for name=number.
        found = {}
        for told in Path(str(logs), "metrics.log").read_text().splitlines():
            for name, number in re.findall(r"([\w|-]+)\s*=\s*([+-]?\d*(?:\.\d+)?(?:[Ee][+-]?\d+)?)", told):
                found.setdefault(name, []).append(float(number))
        wanted = [spec["objective"]["objectiveMetricName"], *spec["objective"]["additionalMetricNames"]]
        self.assertLessEqual(set(wanted), set(found))
        self.assertEqual(len(found["loss"]), 6)
        self.assertEqual({s["name"] for s in spec["objective"]["metricStrategies"]}, set(wanted))
        # The same trial as an OptimizationJob starts it: Kubernetes puts variables into arguments.
        trainer = document("tuning/optimizationjob", "OptimizationJob")["spec"]["trainJobTemplate"]["spec"]["trainer"]
        given = {"KUBEFLOW_TRAINER_OPT_LEARNING_RATE": asked["lr"], "KUBEFLOW_TRAINER_OPT_GLOBAL_BATCH_SIZE": asked["global-batch-size"]}
        words = [re.sub(r"\$\((\w+)\)", lambda match: given[match.group(1)], word) for word in command(trainer, PROGRAMS["qlora"])[0]]
        other = run(words, PET_NNODES="1", PET_NPROC_PER_NODE="2")
        losses = [re.findall(r"validation loss: ([\d.]+)", text)[-1] for text in (said, other)]
        self.assertEqual(*losses)
        self.assertAlmostEqual(float(losses[0]), found["validation_loss"][-1], places=3)


if __name__ == "__main__":
    WORK = Path(sys.argv[1]).resolve()
    PROGRAMS = {"full": Path(sys.argv[2]).resolve(), "qlora": Path(sys.argv[3]).resolve()}
    DATA_TOOL = Path(sys.argv[4]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
