#!/usr/bin/env python3
"""The pipeline of examples/deploy/kfp: compiled by PyPI's kfp, and the command of each step run by small programs, in the
order and with the inputs that the compiled pipeline says. kfp's own code fills the placeholders in commands.

    pipelines.py WORK SMALL_MODEL MEGACPP_DATA [unittest argument...]

It needs the packages of tests/slow/pipelines.txt.
"""

import array
import functools
import http.server
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import threading
import unittest
from pathlib import Path

import yaml
from kfp import components
from kfp.local import placeholder_utils

sys.path.insert(0, str(Path(__file__).parent))
import recipes  # noqa: E402

ROOT = recipes.DEPLOY.parents[1]
WORK = PROGRAM = DATA_TOOL = None
VALUES = {"GPU_PER_NODE": "2", "PIPELINE_RUN": "small run", "PIPELINE_ITERS": "20", "GLOBAL_BATCH_SIZE_GPT": "32", "SAVE_INTERVAL": "10",
          "PIPELINE_LEARNING_RATE": "3e-3"}
STEPS = {"fetch", "fetch-2", "encode", "prepare", "verify", "train", "evaluate"}


def compiled(folder, **changed):
    """The pipeline and what Kubernetes is told of it, as pipeline.py writes them with values, and their bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pipeline.py").write_text(recipes.texts(".py", **changed)["kfp/pipeline"])
    done = subprocess.run([sys.executable, "-W", "ignore", "pipeline.py", "made.yaml"], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    text = (folder / "made.yaml").read_bytes()
    pipeline, platform = yaml.safe_load_all(text)
    return pipeline, platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"], text


class Compiled(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pipeline, cls.pods, cls.text = compiled(WORK / "compiled")
        cls.tasks = cls.pipeline["root"]["dag"]["tasks"]
        cls.containers = {name[len("exec-"):]: one["container"] for name, one in cls.pipeline["deploymentSpec"]["executors"].items()}

    def test_it_is_a_pipeline_and_again_the_same_bytes(self):
        self.assertEqual(self.pipeline["schemaVersion"], "2.1.0")
        self.assertEqual(set(self.tasks), STEPS)
        self.assertEqual(compiled(WORK / "again")[2], self.text)
        self.assertEqual(components.load_component_from_file(str(WORK / "compiled/made.yaml")).name, "megacpp")

    def test_steps_with_a_volume_are_not_cached_and_others_are(self):
        for name, task in self.tasks.items():
            volume = "pvcMount" in self.pods[f"exec-{name}"]
            self.assertEqual(volume, name in ("train", "evaluate"), name)
            self.assertEqual(task["cachingOptions"].get("enableCache", False), not volume, name)
            words = " ".join(map(str, self.containers[name]["command"] + self.containers[name]["args"]))
            self.assertEqual(volume, "/checkpoints/" in words, name)

    def test_nothing_is_trained_before_its_data_is_verified(self):
        self.assertIn("verify", self.tasks["train"]["dependentTasks"])
        self.assertIn("train", self.tasks["evaluate"]["dependentTasks"])

    def test_pods(self):
        values = recipes.values()
        images = {"fetch": "TOOLS_IMAGE", "fetch-2": "TOOLS_IMAGE", "train": "REPO_URI", "evaluate": "REPO_URI"}
        for name, container in self.containers.items():
            pod = self.pods[f"exec-{name}"]
            self.assertEqual(container["image"], values[images.get(name, "DATA_IMAGE")], name)
            self.assertEqual((pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]), ("1000", True), name)
            self.assertEqual([s["secretName"] for s in pod["imagePullSecret"]], [values["IMAGE_PULL_SECRET"]], name)
            self.assertEqual("configMapAsVolume" in pod, name.startswith("fetch"), name)
            variables = {e["name"]: e.get("value", "") for e in container["env"]}
            self.assertEqual(variables["NO_PROXY"], values["NO_PROXY"], name)
            gpus = container["resources"].get("accelerator", {}).get("resourceCount")
            self.assertEqual(gpus, values["GPU_PER_NODE"] if name in ("train", "evaluate") else None, name)
            self.assertEqual(variables.get("PET_NPROC_PER_NODE"), gpus, name)
            if gpus:
                self.assertEqual(pod["nodeSelector"]["labels"], {"node.kubernetes.io/instance-type": values["NODE_TYPE"]})
                self.assertEqual([m["mountPath"] for m in pod["emptyDirMounts"]], ["/dev/shm"])
                self.assertEqual([(m["constant"], m["mountPath"]) for m in pod["pvcMount"]], [("llm-checkpoints", "/checkpoints")])
        self.assertNotRegex(self.text.decode(), "(?i)token: |password|secretKey")

    def test_hostile_values_are_the_values_of_the_pipeline(self):
        hostile = 'a "b" \\n \'c\' {d} # $e `f` %s\t한국어'
        pipeline, pods, _ = compiled(WORK / "hostile", PIPELINE_RUN=hostile, DATA_IMAGE=hostile, NODE_TYPE=hostile)
        self.assertEqual(pipeline["root"]["inputDefinitions"]["parameters"]["run"]["defaultValue"], hostile)
        self.assertEqual(pipeline["deploymentSpec"]["executors"]["exec-prepare"]["container"]["image"], hostile)
        self.assertEqual(pods["exec-train"]["nodeSelector"]["labels"]["node.kubernetes.io/instance-type"], hostile)


class Server(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Steps:
    """A server of pipelines as far as commands go: inputs, outputs and order of the tasks, artifacts in a folder."""

    def __init__(self, pipeline, folder, **asked):
        self.pipeline, self.folder, self.asked = pipeline, folder, asked
        self.artifacts, self.commands = {}, {}
        parameters = pipeline["root"]["inputDefinitions"]["parameters"]
        self.parameters = {name: asked.get(name, one.get("defaultValue")) for name, one in parameters.items()}

    def value(self, source):
        value = self.parameters[source["componentInputParameter"]]
        return int(value) if isinstance(value, float) else value  # the compiled pipeline has numbers of protobuf

    def words(self, name):
        task = self.pipeline["root"]["dag"]["tasks"][name]
        component = self.pipeline["components"][task["componentRef"]["name"]]
        inputs = task.get("inputs", {})
        outputs = component.get("outputDefinitions", {}).get("artifacts", {})
        made = {key: str(self.folder / "s3 bucket" / name / key) for key in outputs}
        taken = {key: self.artifacts[one["taskOutputArtifact"]["producerTask"], one["taskOutputArtifact"]["outputArtifactKey"]]
                 for key, one in inputs.get("artifacts", {}).items()}
        filled = {"inputs": {"parameterValues": {key: self.value(one) for key, one in inputs.get("parameters", {}).items()},
                             "artifacts": {key: {"artifacts": [{"name": key, "uri": uri}]} for key, uri in taken.items()}},
                  "outputs": {"artifacts": {key: {"artifacts": [{"name": key, "uri": uri}]} for key, uri in made.items()},
                              "outputFile": str(self.folder / "output_metadata.json")}}
        container = self.pipeline["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
        words = placeholder_utils.replace_placeholders([str(word) for word in container["command"] + container.get("args", [])], filled,
                                                       pipeline_resource_name="run", task_resource_name=name, pipeline_root="root",
                                                       unique_pipeline_id="1")
        self.artifacts.update({(name, key): uri for key, uri in made.items()})
        program = str(DATA_TOOL if "data" in container["image"] else PROGRAM)
        here = [{"/opt/megacpp/program": program, "python3": sys.executable}.get(word, word) for word in words]
        here = [re.sub("^/checkpoints/", f"{self.folder}/checkpoints/", word).replace("/scripts/", f"{recipes.DEPLOY}/kubernetes/scripts/")
                for word in here]
        return here, {e["name"]: e.get("value", "") for e in container["env"]}

    def run(self, name, check=0):
        words, variables = self.words(name)
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.folder, check=False, timeout=300,
                              env={**{k: v for k, v in os.environ.items() if not k.startswith(("PET_", "MASTER_"))}, **variables, "FETCH_WAIT": "0"})
        if done.returncode != check:
            raise AssertionError(f"{name}: {words}: exit code {done.returncode}, not {check}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def order(self, upto=None):
        """Names of the tasks, each behind those that it depends on."""
        tasks, done = self.pipeline["root"]["dag"]["tasks"], []
        while len(done) < len(tasks):
            name = next(n for n in tasks if n not in done and set(tasks[n].get("dependentTasks", [])) <= set(done))
            done.append(name)
        return [name for name in done if upto is None or name in upto]


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(WORK / "served", ignore_errors=True)
        served = WORK / "served"
        served.mkdir(parents=True)
        subprocess.run([sys.executable, ROOT / "examples/small_conversations.py", served], check=True, stdout=subprocess.DEVNULL)
        lines = (served / "conversations.jsonl").read_text().splitlines()[:2000]
        (served / "some.jsonl").write_text("".join(f"{line}\n" for line in lines))
        subprocess.run([sys.executable, ROOT / "examples/small_tokenizer.py", served / "tokenizer", served / "some.jsonl", "--vocabulary", "512"],
                       check=True, stdout=subprocess.DEVNULL)
        cls.texts = [" ".join(m["content"] for m in json.loads(line)["messages"]) for line in lines]
        with lzma.open(served / "texts.jsonl.xz", "wt") as out:
            out.writelines(json.dumps({"text": text}) + "\n" for text in cls.texts)
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=served))
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{cls.server.server_port}"
        cls.asked = {"texts_url": f"{url}/texts.jsonl.xz", "tokenizer_url": f"{url}/tokenizer/tokenizer.json"}
        cls.pipeline = compiled(WORK / "small", **VALUES)[0]

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        cls.server.server_close()

    def steps(self, name, **asked):
        folder = WORK / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return Steps(self.pipeline, folder, **{**self.asked, **asked})

    @staticmethod
    def bytes_below(path):
        path = Path(path)
        return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()} if path.is_dir() else path.read_bytes()

    def test_the_whole_pipeline(self):
        steps = self.steps("whole")
        said = {name: steps.run(name) for name in steps.order()}
        self.assertIn("2 ranks", said["train"])
        self.assertIn("step 20/20 | saved to", said["train"])
        verified = json.loads(Path(steps.artifacts["verify", "report"]).read_text())
        self.assertEqual((verified["documents"], verified["checksums"]), (len(self.texts), True))
        self.assertLess(json.loads(Path(steps.artifacts["evaluate", "report"]).read_text())["perplexity"], 150)  # 512 before
        self.assertTrue(any((steps.folder / "checkpoints/tensorboard/small run").iterdir()))
        self.assertGreaterEqual(len((steps.folder / "checkpoints/small run.jsonl").read_text().splitlines()), 20)
        self.assertIn("nothing is left to train", steps.run("train"))  # a retry

    def test_ids_are_those_of_the_data_set(self):
        steps = self.steps("ids")
        for name in steps.order({"fetch", "fetch-2", "encode", "prepare"}):
            steps.run(name)
        ids = [json.loads(line) for line in Path(steps.artifacts["encode", "ids"]).read_text().splitlines()]
        self.assertEqual(len(ids), len(self.texts))
        data = array.array("H", Path(steps.artifacts["prepare", "data"], "corpus_text_document.bin").read_bytes())
        end = data[len(ids[0])]
        self.assertEqual(data.tolist(), [token for text in ids for token in [*text, end]])

    def test_outputs_do_not_depend_on_place_time_and_cores(self):
        made = []
        for name, cores in (("one", {0}), ("two", os.sched_getaffinity(0))):
            steps, before = self.steps(name), os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores & before or before)
            try:
                for step in steps.order(STEPS - {"train", "evaluate"}):
                    steps.run(step)
            finally:
                os.sched_setaffinity(0, before)
            made.append({key: self.bytes_below(path) for key, path in steps.artifacts.items()})
        self.assertEqual(set(made[0]["prepare", "data"]), {f"corpus_text_document.{ending}" for ending in ("bin", "idx", "xxh64")})
        for report in (one["verify", "report"] for one in made):
            self.assertNotIn(str(WORK).encode(), re.sub(rb'"name":"[^"]*"', b"", report))
        for one in made:  # the report names the place of its data set
            one["verify", "report"] = {k: v for k, v in json.loads(one["verify", "report"]).items() if k != "name"}
        self.assertEqual(made[0], made[1])

    def test_a_damaged_data_set_ends_the_pipeline(self):
        steps = self.steps("damaged")
        for name in steps.order({"fetch", "fetch-2", "prepare"}):
            steps.run(name)
        path = Path(steps.artifacts["prepare", "data"], "corpus_text_document.bin")
        whole = bytearray(path.read_bytes())
        whole[100] ^= 1
        path.write_bytes(whole)
        steps.run("verify", check=4)
        self.assertFalse(Path(steps.artifacts["verify", "report"]).exists())

    def test_another_checksum_ends_the_pipeline(self):
        steps = self.steps("checksum", texts_sha256="0" * 64)
        self.assertIn("has the SHA-256", steps.run("fetch", check=1))
        self.assertFalse(Path(steps.artifacts["fetch", "file"]).exists())


if __name__ == "__main__":
    WORK, PROGRAM, DATA_TOOL = (Path(word).resolve() for word in sys.argv[1:4])
    WORK.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
