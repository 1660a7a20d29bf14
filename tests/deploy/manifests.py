#!/usr/bin/env python3
"""The manifests of examples/deploy: custom resources against the schemas of their definitions, and what they say.

    manifests.py CRDS [unittest argument...]

CRDS is the folder of the definitions. tests/deploy/models.py has what needs packages of PyPI.
"""

import copy
import functools
import json
import re
import sys
import unittest
from pathlib import Path

import jsonschema

sys.path.insert(0, str(Path(__file__).parent))
import recipes  # noqa: E402

CRDS = None
DEFINITIONS = {"PyTorchJob": "kubeflow.org_pytorchjobs", "TrainJob": "trainer.kubeflow.org_trainjobs",
               "ClusterTrainingRuntime": "trainer.kubeflow.org_clustertrainingruntimes",
               "OptimizationJob": "trainer.kubeflow.org_optimizationjobs"}


def strict(schema):
    """A schema of Kubernetes that refuses unknown keys, in a copy."""
    if isinstance(schema, list):
        return [strict(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(inner) for key, inner in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    return made


@functools.cache
def validator(kind):
    whole = next(one for one in recipes.read_yaml((CRDS / f"{DEFINITIONS[kind]}.yaml").read_text()) if one)
    version = next(v for v in whole["spec"]["versions"] if v["served"])
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = strict({"type": "object", "properties": {
        "name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}, "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}}}})
    return jsonschema.Draft202012Validator(schema), f"{whole['spec']['group']}/{version['name']}"


# Keys that are names which a user chooses, or that Kubernetes does not know beforehand.
FREE = {"labels", "annotations", "matchLabels", "nodeSelector", "requests", "limits", "pytorchReplicaSpecs"}


class Custom(unittest.TestCase):
    def test_each_kind_is_there(self):
        kinds = {one["kind"] for _, one in recipes.documents()}
        self.assertLessEqual({*DEFINITIONS, "HyperPodPyTorchJob", "InferenceService", "Experiment"}, kinds)

    def test_they_fit_the_schemas(self):
        for name, one in recipes.documents():
            if one["kind"] in DEFINITIONS:
                with self.subTest(f"{name}: {one['kind']}"):
                    schema, version = validator(one["kind"])
                    self.assertEqual(one["apiVersion"], version)
                    self.assertEqual([f"{e.json_path}: {e.message}" for e in schema.iter_errors(one)], [])

    def test_a_misspelt_key_is_found(self):
        seen = set()
        for name, one in recipes.documents():
            if one["kind"] not in DEFINITIONS or one["kind"] in seen:
                continue
            seen.add(one["kind"])  # one of each kind, key by key
            schema = validator(one["kind"])[0]
            for where, wrong in recipes.misspelt(one):
                if len(where) < 2 or where[-2] not in FREE:
                    self.assertFalse(schema.is_valid(wrong), f"{name}: {where} may be misspelt")

    def test_what_a_schema_must_refuse(self):
        train = next(one for _, one in recipes.documents() if one["kind"] == "TrainJob")
        for change in (lambda t: t.update(numProcPerNode="auto"), lambda t: t.update(numNodes="2"), lambda t: t["args"].append(6.0e-5)):
            wrong = copy.deepcopy(train)
            change(wrong["spec"]["trainer"])
            self.assertFalse(validator("TrainJob")[0].is_valid(wrong))


class Meaning(unittest.TestCase):
    """What schemas do not say."""

    def setUp(self):
        self.all = recipes.documents()

    def jobs(self, *kinds):
        return [(name, one) for name, one in self.all if one["kind"] in kinds]

    def test_secrets_come_from_secrets(self):
        for name, one in self.all:
            for container in recipes.containers(one):
                for variable in container.get("env", []):
                    if re.search("TOKEN|KEY|SECRET|PASSWORD", variable["name"]):
                        self.assertIn("secretKeyRef", variable.get("valueFrom", {}), f"{name}: {variable['name']}")
                words = " ".join(map(str, container.get("command", []) + container.get("args", [])))
                self.assertNotRegex(words, r"HF_TOKEN|_KEY|SECRET|\$\((?!KUBEFLOW_TRAINER_OPT_)", name)
        for secret, key in (("langfuse", "public-key"), ("langfuse", "secret-key"), ("hf-token", "token")):
            self.assertTrue(any(e.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == secret and
                                e["valueFrom"]["secretKeyRef"]["key"] == key
                                for _, one in self.all for c in recipes.containers(one) for e in c.get("env", [])), (secret, key))

    def test_programs_are_where_images_have_them(self):
        docker = recipes.DEPLOY / "docker"
        (place,) = set(re.findall(r'\$image(/\S*/program)"', (docker / "image_files.sh").read_text()))
        for name in ("program", "data"):
            self.assertIn(f'\nENTRYPOINT ["{place}"]\n', (docker / f"{name}.Dockerfile").read_text())
        called = {path for ending in (".yaml", ".sbatch", ".py") for text in recipes.texts(ending).values()
                  for path in re.findall(r"[\w./-]*/program\b", text)}
        self.assertEqual(called, {place})

    def test_pods_of_a_run(self):
        for name, one in self.jobs("PyTorchJob", "ClusterTrainingRuntime", "HyperPodPyTorchJob"):
            for pod in recipes.pods(one):
                with self.subTest(f"{name}: {one['kind']}"):
                    anti, = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                    labels = self.labels_of(one, pod)
                    self.assertEqual(anti["topologyKey"], "kubernetes.io/hostname")
                    self.assertLessEqual(anti["labelSelector"]["matchLabels"].items(), labels.items())
                    memory, = [v for v in pod["volumes"] if v.get("emptyDir", {}).get("medium") == "Memory"]
                    container, = pod["containers"]
                    self.assertIn({"name": memory["name"], "mountPath": "/dev/shm"}, container["volumeMounts"])
                    self.assertTrue(any("instance-type" in key for key in pod["nodeSelector"]))
                    self.assertTrue(pod["tolerations"])
                    self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], 120)
                    self.assertTrue(pod["securityContext"]["runAsNonRoot"])

    @staticmethod
    def labels_of(one, pod):
        """The labels of the template whose pod this is."""
        def find(inner):
            if isinstance(inner, dict):
                if inner.get("spec") is pod:
                    return inner["metadata"]["labels"]
                return next(filter(None, map(find, inner.values())), None)
            return next(filter(None, map(find, inner)), None) if isinstance(inner, list) else None
        return find(one)

    def test_containers_have_the_variables_that_they_use(self):
        """Packages where a script imports some, proxies where something is asked beyond the cluster, and no others."""
        known = {"fetch.py": False, "parquet_to_jsonl.py": True, "states_to_s3.py": True, "side_by_side.py": False}
        seen = set()
        for name, one in self.all:
            for container in recipes.containers(one):
                words, has = list(map(str, [*container.get("command", []), *container.get("args", [])])), {e["name"] for e in container.get("env", [])}
                mounts = {m["name"] for m in container.get("volumeMounts", [])}
                script = words[1].rpartition("/")[2] if words[:1] == ["python3"] else None
                imports = script == "-m" or known.get(script, False) or words[1:3] == ["/scripts/fetch.py", "hub"]
                asks = words[:1] == ["pip"] or script in ("fetch.py", "states_to_s3.py") or "LANGFUSE_HOST" in has
                with self.subTest(name, container=container.get("name")):
                    self.assertEqual("PYTHONPATH" in has, imports)
                    self.assertEqual("packages" in mounts, imports or words[:1] == ["pip"])
                    self.assertEqual("HTTPS_PROXY" in has, asks)
                    self.assertEqual("NO_PROXY" in has, asks)
                seen.add(script)
        self.assertLessEqual(set(known), seen)

    def test_no_server_holds_a_job_for_ever(self):
        held = {name for name, one in self.jobs("Job", "CronJob") for container in recipes.containers(one)
                if {"pip", "/scripts/fetch.py", "/scripts/states_to_s3.py"} & set(map(str, container["command"]))}
        self.assertEqual(held, {"kubernetes/fetch", "hyperpod/getdata", "kubernetes/states-to-s3"})
        for name, one in self.jobs("Job", "CronJob"):
            if name in held:
                spec = one["spec"].get("jobTemplate", one)["spec"]
                self.assertGreaterEqual(spec["activeDeadlineSeconds"], 4 * 3600, name)  # as long as the page waits

    def test_what_is_made_of_a_file_goes_with_it(self):
        """getdata brings what prepdata reads, and removes what that writes where a file comes anew."""
        (_, brings), = [(n, d) for n, d in self.jobs("Job") if n == "hyperpod/getdata"]
        (_, makes), = [(n, d) for n, d in self.jobs("Job") if n == "hyperpod/prepdata"]
        made, = [c["args"] for c in recipes.containers(makes)]
        brought = set()
        for container in recipes.containers(brings):
            self.assertEqual(container["args"][:3], ["url", "--made", made[made.index("--output-prefix") + 1] + "_text_document.*"])
            brought.add(container["args"][-1])
        self.assertEqual(brought, {made[made.index(flag) + 1] for flag in ("--input", "--vocab-file", "--merge-file")})

    def test_jobs_of_two_nodes(self):
        for way in ("full", "qlora"):
            (name, job), = [(n, d) for n, d in self.jobs("PyTorchJob") if d["metadata"]["name"] == f"qwen3-{way}"]
            self.assertEqual(job["spec"]["nprocPerNode"], "8")
            self.assertNotIn("elasticPolicy", job["spec"])
            replicas = job["spec"]["pytorchReplicaSpecs"]
            self.assertEqual([replicas[r]["replicas"] for r in ("Master", "Worker")], [1, 1])
            self.assertEqual(*(replicas[r]["template"] for r in ("Master", "Worker")))
            container, = replicas["Master"]["template"]["spec"]["containers"]
            self.assertEqual(container["name"], "pytorch")
            (_, train), = [(n, d) for n, d in self.jobs("TrainJob") if d["metadata"]["name"] == f"qwen3-{way}"]
            (_, runtime), = [(n, d) for n, d in self.jobs("ClusterTrainingRuntime") if d["metadata"]["name"] == train["spec"]["runtimeRef"]["name"]]
            trainer = train["spec"]["trainer"]
            self.assertEqual((trainer["numNodes"], trainer["numProcPerNode"]), (2, 8))
            # The same run in both ways.
            self.assertEqual(trainer["args"], container["args"])
            self.assertEqual(trainer["env"], container["env"])
            self.assertEqual(trainer["resourcesPerNode"], container["resources"])
            self.assertFalse([e for e in trainer["env"] if e["name"].startswith("PET_")])
            node, = runtime["spec"]["template"]["spec"]["replicatedJobs"]
            policy = node["template"]["spec"]["podFailurePolicy"]["rules"][0]
            self.assertEqual((node["name"], policy["onExitCodes"]["containerName"]), ("node", "node"))
            self.assertEqual([c["name"] for pod in recipes.pods(runtime) for c in pod["containers"]], ["node"])
            self.assertEqual(policy["onExitCodes"]["values"], [2, 3, 4, 5, 8])

    def test_searches(self):
        """Both ways to search look for the same, in the same range, and their trials get each parameter."""
        (_, experiment), = self.jobs("Experiment")
        (_, search), = self.jobs("OptimizationJob")
        spec, other = experiment["spec"], search["spec"]
        goal, = other["objectives"]
        self.assertEqual((spec["objective"]["objectiveMetricName"], spec["objective"]["type"]), ("validation_loss", "minimize"))
        self.assertEqual((goal["metric"], goal["direction"]), ("validation_loss", "Minimize"))
        self.assertEqual((spec["maxTrialCount"], spec["parallelTrialCount"]), (other["numTrials"], other["parallelTrials"]))
        rate, batch = (p["feasibleSpace"] for p in spec["parameters"])
        rates, batches = (p["searchSpace"] for p in other["parameters"])
        self.assertEqual({k: rate[k] for k in ("min", "max")}, rates["logUniform"])
        self.assertLess(float(rate["min"]), float(rate["max"]))
        self.assertEqual(batch["list"], batches["categorical"]["choices"])
        # Katib: each parameter has a name in the template of a trial, and each name there is one of these.
        template = spec["trialTemplate"]
        self.assertEqual([p["name"] for p in spec["parameters"]], [p["reference"] for p in template["trialParameters"]])
        self.assertEqual(set(re.findall(r"\$\{trialParameters\.(\w+)\}", str(template["trialSpec"]))), {p["name"] for p in template["trialParameters"]})
        container, = [c for pod in recipes.pods(template["trialSpec"]) for c in pod["containers"]]
        self.assertEqual((container["name"], container["command"]), (template["primaryContainerName"], ["sh", "-c"]))
        line, = container["args"]  # to which Katib adds "&& echo ..."
        self.assertNotIn("\n", line)
        collector = spec["metricsCollectorSpec"]
        self.assertEqual(collector["collector"]["kind"], "File")
        self.assertIn(f"--katib-metrics {collector['source']['fileSystemPath']['path']}", line)
        self.assertEqual(set(re.findall(r'"\$\{(\w+):\?\}"', line)) | {"PET_NNODES", "PET_NPROC_PER_NODE"}, {e["name"] for e in container["env"]})
        # OptimizationJob: the same words, parameters by variables, and a runtime that is there.
        trainer = other["trainJobTemplate"]["spec"]["trainer"]
        self.assertEqual(re.findall(r"\$\((\w+)\)", str(trainer["args"])),
                         [f"KUBEFLOW_TRAINER_OPT_{p['name'].upper()}" for p in reversed(other["parameters"])])
        said = dict((e["name"], e["value"]) for e in container["env"])
        words = [said.get(word.strip('"${:?}'), word) for word in line.split()[1:]]
        plain = [re.sub(r"\$.*", "*", word) for word in words]
        self.assertEqual(plain, [re.sub(r"\$.*", "*", word) for word in trainer["args"]] + ["--katib-metrics", "/var/log/katib/metrics.log"])
        self.assertIn(other["trainJobTemplate"]["spec"]["runtimeRef"]["name"], [d["metadata"]["name"] for _, d in self.jobs("ClusterTrainingRuntime")])

    def test_heads_tell_what_carries_exchanges_and_what_has_run(self):
        for name, text in {**recipes.texts(".yaml"), **recipes.texts(".sbatch")}.items():
            head = re.sub(r"\n# ?", " ", "\n" + re.match(r"(?:#[^\n]*\n)+", text).group())
            self.assertRegex(head, r"(?i)no cluster|not tried|not run|has run|checked against|ReadWriteMany", name)
            if re.search(r"nprocPerNode|numProcPerNode|PET_NPROC|ntasks-per-node=8", text):
                self.assertRegex(head, "What carries the exchanges: pinned memory of the host", name)
                self.assertRegex(head, "What has run: ", name)

    def test_names_lead_somewhere(self):
        claims = {d["metadata"]["name"] for _, d in self.jobs("PersistentVolumeClaim")}
        maps = {d["metadata"]["name"] for _, d in self.jobs("ConfigMap")} | {"megacpp-scripts"}
        for name, one in self.all:
            for pod in recipes.pods(one):
                volumes = {v["name"] for v in pod.get("volumes", [])}
                for volume in pod.get("volumes", []):
                    if "persistentVolumeClaim" in volume:
                        self.assertIn(volume["persistentVolumeClaim"]["claimName"], claims, name)
                    if "configMap" in volume:
                        self.assertIn(volume["configMap"]["name"], maps, name)
                mounted = set()
                for container in [*pod.get("initContainers", []), *pod["containers"]]:
                    own = {m["name"] for m in container.get("volumeMounts", [])}
                    self.assertLessEqual(own, volumes, name)
                    mounted |= own
                    for word in container.get("command", []):
                        if str(word).startswith("/scripts/"):
                            self.assertTrue((recipes.DEPLOY / "kubernetes" / str(word)[1:]).is_file(), word)
                self.assertEqual(mounted, volumes, name)
        for name, service in self.jobs("Service"):
            self.assertTrue(any(d["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] for n, d in self.jobs("Deployment") if n == name))
        for _, volume in self.jobs("PersistentVolume"):
            claim = next(d for _, d in self.jobs("PersistentVolumeClaim") if d["metadata"]["name"] == volume["spec"].get("claimRef", {}).get(
                "name") or d["spec"].get("volumeName") == volume["metadata"]["name"])
            self.assertEqual(claim["spec"]["storageClassName"], volume["spec"]["storageClassName"])
            self.assertEqual((claim["spec"]["accessModes"], volume["spec"]["accessModes"]), (["ReadWriteMany"], ["ReadWriteMany"]))

    def test_prometheus_asks_the_first_pod_of_each_job(self):
        config = next(d for n, d in self.jobs("ConfigMap") if n == "kubernetes/prometheus")["data"]["prometheus.yml"]
        job, = next(recipes.read_yaml(config))["scrape_configs"]

        def kept(labels):
            for rule in job["relabel_configs"]:
                joined = ";".join(labels.get(source, "") for source in rule["source_labels"])
                if rule.get("action") == "keep" and not re.fullmatch(rule["regex"], joined):
                    return False
            return True
        pod = "__meta_kubernetes_pod_"
        ours = {pod + "label_megacpp_metrics": "yes", pod + "container_port_name": "metrics"}
        first = [{pod + "label_training_kubeflow_org_replica_type": "master"}, {pod + "label_batch_kubernetes_io_job_completion_index": "0"},
                 {pod + "name": "megacpp-hyperpod-pods-0"}]
        others = [{pod + "label_training_kubeflow_org_replica_type": "worker", pod + "name": "megacpp-worker-0"},
                  {pod + "label_batch_kubernetes_io_job_completion_index": "1"},
                  {pod + "label_batch_kubernetes_io_job_completion_index": "10"}, {pod + "name": "megacpp-hyperpod-pods-10"}, {}]
        self.assertEqual([kept({**ours, **one}) for one in first], [True] * len(first))
        self.assertEqual([kept({**ours, **one}) for one in others], [False] * len(others))
        self.assertFalse(kept({**ours, **first[0], pod + "container_port_name": "pytorchjob-port"}))
        self.assertFalse(kept(first[0]))

    def test_who_is_asked_for_numbers_gives_them(self):
        """A pod has the label that Prometheus looks for exactly where its program opens the port of that name."""
        asked = set()
        for name, one in self.all:
            words = json.dumps(one)
            if one["kind"] not in ("PyTorchJob", "TrainJob", "ClusterTrainingRuntime", "HyperPodPyTorchJob"):
                continue
            ports = [port["containerPort"] for container in recipes.containers(one) for port in container.get("ports", [])
                     if port.get("name") == "metrics"]
            told = '"megacpp/metrics": "yes"' in words
            self.assertEqual(told, bool(ports), name)
            if "--metrics-port" in words:
                asked.add(name)
                self.assertIn(f'"--metrics-address", "0.0.0.0", "--metrics-port", "{recipes.values()["METRICS_PORT"]}"', words)
            if one["kind"] in ("PyTorchJob", "HyperPodPyTorchJob"):
                self.assertEqual("--metrics-port" in words, told, name)
            self.assertLessEqual(set(map(str, ports)), {recipes.values()["METRICS_PORT"]})
        self.assertLessEqual({"hyperpod/pytorchjob", "hyperpod/hyperpodpytorchjob", "kubernetes/full-pytorchjob", "kubernetes/full-trainjob"},
                             asked)

    def test_tensorboard_reads_what_runs_write(self):
        """By the values of the example, and by those that it names for HyperPod."""
        told = (recipes.DEPLOY / "values.example").read_text()
        self.assertIn("have fsx-claim and\n# checkpoints/tensorboard.", told)
        read = {"llm-checkpoints": recipes.documents(), "fsx-claim": recipes.documents(
            TENSORBOARD_CLAIM="fsx-claim", TENSORBOARD_FOLDER="checkpoints/tensorboard")}
        written = 0
        for name, one in self.jobs("PyTorchJob", "HyperPodPyTorchJob"):
            for pod in recipes.pods(one):
                (container,), claims = pod["containers"], {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"]
                                                           if "persistentVolumeClaim" in v}
                if "--tensorboard-dir" not in container["args"]:
                    continue
                folder = container["args"][container["args"].index("--tensorboard-dir") + 1]
                mount = next(m for m in container["volumeMounts"] if m["name"] in claims and folder.startswith(m["mountPath"] + "/"))
                server = next(d for n, d in read[claims[mount["name"]]] if n == "kubernetes/tensorboard" and d["kind"] == "Deployment")
                shown = server["spec"]["template"]["spec"]
                args = shown["containers"][0]["args"]
                self.assertEqual(next(v for v in shown["volumes"] if "persistentVolumeClaim" in v)["persistentVolumeClaim"]["claimName"],
                                 claims[mount["name"]])
                self.assertTrue((args[args.index("--logdir") + 1] + "/").startswith("/volume/"))
                self.assertTrue(folder.replace(mount["mountPath"], "/volume", 1).startswith(args[args.index("--logdir") + 1] + "/"), name)
                written += 1
        self.assertGreaterEqual(written, 4)

    def test_the_hyperpod_pattern(self):
        """On lines as a run prints them; models.py has the agent's own code read those of a run."""
        (_, job), = self.jobs("HyperPodPyTorchJob")
        rule, = job["spec"]["runPolicy"]["logMonitoringConfiguration"]
        matches = re.compile(rule["logPattern"]).match
        self.assertTrue(matches("step 100/2000 | loss: 2.3451 | lr: 1.000e-03 | grad norm: 0.812 | 12.3k tokens/s\n"))
        self.assertTrue(matches("step 3/3 | validation loss: 4.7077 | perplexity: 110.793 | 119 tokens\n"))
        self.assertFalse(matches("step 3/3 | saved to out/iter_0000003\n"))
        self.assertNotIn("expectedStartCutOffInSeconds", rule)  # node 1 would never match

    def test_hostile_values_are_the_values_that_kubernetes_reads(self):
        for value in ('a"b', "a\\b", "a: b", "# no", "*a", "{{x}}", "$(touch x)", "`x`", "'"):
            one = next(d for n, d in recipes.documents(MODEL=value, NODE_TYPE=value) if n == "kubernetes/full-pytorchjob")
            pod = one["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
            self.assertEqual(pod["nodeSelector"]["node.kubernetes.io/instance-type"], value)
            self.assertIn(f"/datasets/{value}", pod["containers"][0]["args"])


if __name__ == "__main__":
    CRDS = Path(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
