"""What the tests of examples/deploy share: the templates, filled with the example's values."""

import importlib.util
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "examples/deploy"


def program():
    """render.py as a module."""
    spec = importlib.util.spec_from_file_location("render_program", DEPLOY / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def values():
    return program().read_values(DEPLOY / "values.example")


def texts(ending, **changed):
    """The filled texts of the templates of an ending, such as .yaml, by their names."""
    render = program()
    own = {**render.read_values(DEPLOY / "values.example"), **changed}
    return {name: render.filled(path, own) for name, path in render.templates().items() if ending in path.suffixes}


def read_yaml(text):
    """The objects of a text, by the fast reader where there is one."""
    import yaml
    return yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def documents(**changed):
    """Pairs of the name of a template and an object of it."""
    return [(name, one) for name, text in texts(".yaml", **changed).items() for one in read_yaml(text) if one]


def pods(one):
    """The templates of pods in an object."""
    if isinstance(one, dict):
        if "containers" in one and isinstance(one["containers"], list):
            yield one
        else:
            for inner in one.values():
                yield from pods(inner)
    elif isinstance(one, list):
        for inner in one:
            yield from pods(inner)


def containers(one):
    """The containers of an object, and the trainer of a TrainJob or of the trials of an OptimizationJob, which stands for one."""
    for pod in pods(one):
        yield from [*pod.get("initContainers", []), *pod["containers"]]
    if one.get("kind") == "TrainJob":
        yield one["spec"]["trainer"]
    if one.get("kind") == "OptimizationJob":
        yield one["spec"]["trainJobTemplate"]["spec"]["trainer"]


def misspelt(one, where=()):
    """Copies of an object, each with one misspelt key, and where it is."""
    if isinstance(one, dict):
        for key, value in one.items():
            yield where + (key,), {(name + "x" if name == key else name): inner for name, inner in one.items()}
            for inside, copy in misspelt(value, where + (key,)):
                yield inside, {**one, key: copy}
    elif isinstance(one, list):
        for number, value in enumerate(one):
            for inside, copy in misspelt(value, where + (number,)):
                yield inside, [*one[:number], copy, *one[number + 1:]]
