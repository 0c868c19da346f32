"""Programs as text, read by TVM."""
import importlib.util
import os
import sys
import tempfile

HEADER = "from tvm.script import tirx as T\nfrom tvm.script import ir as I\n"


def load(text, count=[0]):
    """A text as a Python module; from a file, since TVM's parser reads the source."""
    count[0] += 1
    name = f"program_{os.getpid()}_{count[0]}"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name + ".py")
        with open(path, "w") as file:
            file.write(HEADER + text)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.modules[name]
    return module


def program(text, kinds):
    """The last program of these kinds in a text."""
    return [v for v in vars(load(text)).values() if isinstance(v, kinds)][-1]
