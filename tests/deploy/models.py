#!/usr/bin/env python3
"""The manifests of examples/deploy against what packages of PyPI know: plain objects by kubernetes-validate, strict;
HyperPodPyTorchJob, InferenceService and Experiment by the fields of their Python packages, which is weaker than a schema; and
the rules about logs by the code of HyperPod's agent, on lines of a run.

    models.py PACKAGES PROGRAM [unittest argument...]

PACKAGES is a folder with kserve, kubeflow-katib, sagemaker-hyperpod and hyperpod-elastic-agent as pip downloads them.
"""

import ast
import importlib.util
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock
import zipfile
from pathlib import Path

import kubernetes_validate

sys.path.insert(0, str(Path(__file__).parent))
import recipes  # noqa: E402

PACKAGES = RUN = None
VERSIONS = ("1.31", "1.37")
CUSTOM = {"PyTorchJob", "TrainJob", "ClusterTrainingRuntime", "HyperPodPyTorchJob", "InferenceService", "Experiment", "OptimizationJob"}
FREE = {"labels", "annotations", "matchLabels", "nodeSelector", "requests", "limits", "capacity", "data", "volumeAttributes"}


def module(name, text, folder):
    path = Path(folder) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # dataclasses and pydantic look there
    spec.loader.exec_module(loaded)
    return loaded


def of_wheel(package, file):
    path, = PACKAGES.glob(f"{package}-*.whl")
    with zipfile.ZipFile(path) as wheel:
        return wheel.read(file).decode()


def faults(one, version=VERSIONS[-1]):
    try:
        kubernetes_validate.validate(one, version, strict=True)
        return None
    except kubernetes_validate.ValidationError as problem:
        return f"{list(problem.path)}: {problem.message}"


def as_pod_template(spec):
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": {"spec": spec}}


class Plain(unittest.TestCase):
    def test_they_fit_the_schemas_of_kubernetes(self):
        for name, one in recipes.documents():
            if one["kind"] not in CUSTOM:
                for version in VERSIONS:
                    with self.subTest(f"{name}: {one['kind']}, {version}"):
                        self.assertIsNone(faults(one, version))

    def test_pods_of_custom_resources(self):
        count = 0
        for name, one in recipes.documents():
            if one["kind"] in CUSTOM:
                for pod in recipes.pods(one):
                    count += 1
                    self.assertIsNone(faults(as_pod_template(pod)), f"{name}: {one['kind']}")
        self.assertGreaterEqual(count, 8)

    def test_a_misspelt_key_is_found(self):
        seen = set()
        for name, one in recipes.documents():
            if one["kind"] in CUSTOM | seen or one["kind"] == "Job" and not name.endswith("fetch"):
                continue
            seen.add(one["kind"])
            for where, wrong in recipes.misspelt(one):
                if where[0] in ("apiVersion", "kind") or len(where) > 1 and where[-2] in FREE or (one["kind"], where[-2:-1]) == ("Service", ("selector",)):
                    continue  # without the first two there is no schema
                self.assertIsNotNone(faults(wrong), f"{name}: {where} may be misspelt")


class HyperPod(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            cls.model = module("hyperpod_model", of_wheel(
                "sagemaker_hyperpod", "sagemaker/hyperpod/training/config/hyperpod_pytorch_job_unified_config.py"), folder)
            path, = PACKAGES.glob("hyperpod_elastic_agent-*.tar.gz")
            with tarfile.open(path) as agent:
                file = next(m for m in agent.getmembers() if m.name.endswith("/src/hyperpod_elastic_agent/logagent/log_agent.py"))
                cls.agent = module("log_agent", agent.extractfile(file).read().decode(), folder)
        cls.job = next(one for _, one in recipes.documents() if one["kind"] == "HyperPodPyTorchJob")
        cls.rule, = cls.job["spec"]["runPolicy"]["logMonitoringConfiguration"]

    def unknown(self, spec, model=None):
        """What a value has that its model has not, and the other way round, by the names that manifests have."""
        model = model or self.model._HyperPodPytorchJob
        for key, field in model.model_fields.items():
            if field.is_required() and key not in spec:
                yield f"{model.__name__} lacks {key}"
        for key, value in spec.items():
            if key not in model.model_fields:
                yield f"{model.__name__} has {key}"
                continue
            inner = self.inner(model.model_fields[key].annotation)
            for one in value if isinstance(value, list) else [value]:
                if inner and key != "spec":  # its fields of pods are mixed up; Plain has them by Kubernetes' schemas
                    yield from self.unknown(one, inner)

    def inner(self, annotation):
        """The model in Optional[List[Model]] and its like."""
        if isinstance(annotation, type) and issubclass(annotation, self.model.BaseModel):
            return annotation
        found = [self.inner(a) for a in getattr(annotation, "__args__", ())]
        return next(filter(None, found), None)

    def test_fields(self):
        self.assertEqual((self.job["apiVersion"], self.job["spec"]["nprocPerNode"]), ("sagemaker.amazonaws.com/v1", "8"))
        self.assertEqual(list(self.unknown(self.job["spec"])), [])
        for where, wrong in recipes.misspelt(self.job["spec"]):
            if "template" not in where[:-1] and (len(where) < 2 or where[-2] not in FREE):
                self.assertTrue(list(self.unknown(wrong)), f"{where} may be misspelt")

    def test_the_rule_on_lines_of_a_run(self):
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "text"
            text.write_text("".join(f"{n} green bottles.\n" for n in range(300)))
            lines = subprocess.run([RUN, "train", "--data-path", text, "--train-iters", "6", "--log-interval", "2", "--eval-interval", "3",
                                    "--ranks", "2"], capture_output=True, text=True, check=True).stdout.splitlines(keepends=True)
        now, states = [1000.0], []
        with unittest.mock.patch.object(self.agent.time, "time", lambda: now[0]):
            reader, other = (self.agent.LogEvaluator(self.rule) for _ in range(2))  # of a rank that tells, and of one that does not
            for line in lines:
                now[0] += 1
                states.append(reader.evaluate(line)[0])
            healthy = self.agent.LogState.HEALTHY
            self.assertIn(self.agent.LogState.WAITING, states)  # until the first step
            self.assertEqual(states[-1], healthy)
            matched = [line for line, state in zip(lines, states) if reader.log_pattern.match(line)]
            self.assertGreaterEqual(len(matched), 6)  # steps and evaluations
            now[0] += self.rule["expectedRecurringFrequencyInSeconds"] - 10
            self.assertEqual(reader.evaluate()[0], healthy)
            now[0] += 20
            self.assertEqual(reader.evaluate()[0], self.agent.LogState.HANGING)
            self.assertEqual(other.evaluate()[0], self.agent.LogState.WAITING)  # as on the other nodes, however long
            self.assertEqual(reader.evaluate("step 7/9 | loss: 1.0000 | lr: 1.000e-03\n")[0], healthy)


class OpenApi(unittest.TestCase):
    """Fields of resources by the models of their Python packages, which OpenAPI's generator has made: names alone."""

    def fields(self, package, folder, kind):
        """JSON names and types of a class, from its source."""
        file = f"{folder}/" + "".join("_" + c.lower() if c.isupper() else c for c in kind)[1:] + ".py"
        tables = {}
        for node in ast.walk(ast.parse(of_wheel(package, file))):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("openapi_types", "attribute_map"):
                tables[node.targets[0].id] = ast.literal_eval(node.value)
        return {tables["attribute_map"][name]: kind for name, kind in tables["openapi_types"].items()}

    def unknown(self, one, kind, *where):
        fields = self.fields(*where, kind)
        for key, value in one.items():
            if key not in fields:
                yield f"{kind}.{key}"
                continue
            name = re.fullmatch(r"(?:list\[)?(V1beta1\w+?)\]?", fields[key])
            for inner in value if isinstance(value, list) else [value]:
                if name:
                    yield from self.unknown(inner, name.group(1), *where)

    def test_inference_service(self):
        where = ("kserve", "kserve/models")
        service = next(one for _, one in recipes.documents() if one["kind"] == "InferenceService")
        self.assertEqual(list(self.unknown(service, "V1beta1InferenceService", *where)), [])
        model = service["spec"]["predictor"]["model"]
        pod = {key: value for key, value in service["spec"]["predictor"].items() if key in ("nodeSelector", "tolerations")}
        self.assertIsNone(faults(as_pod_template({**pod, "containers": [{"name": "x", "args": model["args"], "resources": model["resources"]}]})))
        for path, wrong in recipes.misspelt(service):
            if path[-2:-1] not in [(name,) for name in FREE] and not {"metadata", "resources", "tolerations"} & set(path[:-1]):
                self.assertTrue(list(self.unknown(wrong, "V1beta1InferenceService", *where)), f"{path} may be misspelt")

    def test_experiment(self):
        where = ("kubeflow_katib", "kubeflow/katib/models")
        experiment = next(one for _, one in recipes.documents() if one["kind"] == "Experiment")
        self.assertEqual(experiment["apiVersion"], "kubeflow.org/v1beta1")
        self.assertEqual(list(self.unknown(experiment, "V1beta1Experiment", *where)), [])
        for path, wrong in recipes.misspelt(experiment):
            if not {"metadata", "trialSpec"} & set(path[:-1]):
                self.assertTrue(list(self.unknown(wrong, "V1beta1Experiment", *where)), f"{path} may be misspelt")
        trial = {**experiment["spec"]["trialTemplate"]["trialSpec"], "metadata": {"name": "a-trial"}}  # as Katib names it
        for version in VERSIONS:
            self.assertIsNone(faults(trial, version))
        for path, wrong in recipes.misspelt(trial):
            if path[0] not in ("apiVersion", "kind") and path[-2:-1] not in [(name,) for name in FREE]:
                self.assertIsNotNone(faults(wrong), f"{path} may be misspelt")


if __name__ == "__main__":
    PACKAGES, RUN = Path(sys.argv[1]), sys.argv[2]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
