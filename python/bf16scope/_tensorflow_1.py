"""TensorFlow 1's names where TensorFlow 2 is installed: stand-ins for `tf.contrib`, and scripts loaded with them."""

import importlib
import importlib.abc
import importlib.util
import os
import re
import sys
import types


class TraceError(Exception):
    """An error in the script or in the arguments."""


class Params(dict):
    """Parameters as scripts read them: by key and by attribute."""

    __setattr__ = dict.__setitem__

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            # `hasattr`, `getattr` with a default and `copy` expect this error.
            raise AttributeError(f"no parameter `{name}`; --params {name}=VALUE gives it") from None

    def override(self, other):
        self.update(other)


class HParams(Params):
    """`tf.contrib.training.HParams`, whose `values` is a dict."""

    def values(self):
        return dict(self)


class Unsupplied:
    """A name of `tf.contrib` without a stand-in: importing it succeeds, and using it is an error that names it."""

    def __init__(self, name):
        self.__dict__["name"] = name

    def _refuse(self):
        raise TraceError(
            f"the script uses {self.name}, which TensorFlow 2 does not have and nothing stands in for\n"
            f"help: replace it by its successor (tf.compat.v1, tf_slim, tensorflow_addons) and trace again"
        )

    def __call__(self, *values, **options):
        self._refuse()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


class Contrib(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports stand-ins for `tensorflow.contrib` and its submodules, and modules of TensorFlow 1 that have moved."""

    MOVED = {"tensorflow.python.estimator": "tensorflow_estimator.python.estimator"}

    def __init__(self, v1):
        self.v1 = v1
        from tensorflow.python.framework import ops

        if not hasattr(ops, "Tensor"):
            # tf_slim 1.1.0 needs it here, as in TensorFlow 2.14 and before.
            ops.Tensor = v1.Tensor
        try:
            import tf_slim

            self.slim = tf_slim
        except ImportError:
            self.slim = None

    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow.contrib" or name.startswith(("tensorflow.contrib.", *self.MOVED)):
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec):
        for old, new in self.MOVED.items():
            if spec.name.startswith(old):
                return importlib.import_module(new + spec.name[len(old) :])
        if self.slim and spec.name.startswith("tensorflow.contrib.slim."):
            tail = spec.name[len("tensorflow.contrib.slim.") :].replace("python.slim.", "")
            try:
                return importlib.import_module(f"tf_slim.{tail}")
            except ImportError:
                pass
        return Standin(spec.name, self)

    def exec_module(self, module):
        pass

    def named(self, module, name):
        """The stand-in for a name of a module of contrib; None without one."""
        v1 = self.v1
        parts = module.split(".")[2:]
        place = [v1.tpu, getattr(v1.estimator, "tpu", None)] if "tpu" in parts else []
        if "tpu" not in parts and name in self.words():
            return self.words()[name]
        if "slim" in parts and self.slim:
            place.append(self.slim)
        if "layers" in parts and self.slim:
            place.append(self.slim.layers)
        if "framework" in parts:
            place += [v1, v1.train]
        if "summary" in parts:
            place.append(v1.summary)
        if "data" in parts:
            place += [v1.data.experimental, v1.data]
        if "estimator" in parts:
            place.append(v1.estimator)
        if "cluster_resolver" in parts or "distribute" in parts:
            place += [v1.distribute.cluster_resolver, v1.distribute]
        if "rnn" in parts:
            place.append(v1.nn.rnn_cell)
        for source in place:
            if source is not None and hasattr(source, name):
                return getattr(source, name)
        return None

    def words(self):
        v1 = self.v1
        words = {
            "HParams": lambda **values: HParams(values),
            "variance_scaling_initializer": lambda factor=2.0, mode="FAN_IN", uniform=False, seed=None, dtype=None: (
                v1.variance_scaling_initializer(factor, mode.lower(), "uniform" if uniform else "truncated_normal", seed=seed)
            ),
            "xavier_initializer": lambda uniform=True, seed=None, dtype=None: v1.variance_scaling_initializer(
                1.0, "fan_avg", "uniform" if uniform else "truncated_normal", seed=seed
            ),
            "l2_regularizer": lambda scale, scope=None: lambda weights: scale * v1.nn.l2_loss(weights),
            "xavier_initializer_conv2d": lambda uniform=True, seed=None, dtype=None: words["xavier_initializer"](uniform, seed),
            "get_or_create_global_step": v1.train.get_or_create_global_step,
        }
        if self.slim:
            words["arg_scope"] = self.slim.arg_scope
        return words


class Standin(types.ModuleType):
    """A module of `tf.contrib`."""

    def __init__(self, name, contrib):
        super().__init__(name)
        self.__dict__["_contrib"] = contrib

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._contrib.named(self.__name__, name)
        # `tf.contrib.tpu` may be used without an explicit import, and files of its `python` folder have names in small letters.
        may_be_module = self.__name__.count(".") == 1 or ".python" in self.__name__ and name == name.lower()
        if value is None and may_be_module:
            value = importlib.import_module(f"{self.__name__}.{name}")
        if value is None:
            value = Unsupplied(self._name_of(name))
        setattr(self, name, value)
        return value

    def _name_of(self, name=""):
        return f"{self.__name__}.{name}".rstrip(".").replace("tensorflow", "tf", 1)

    def __call__(self, *values, **options):
        # A function of a file, which was taken for a module.
        Unsupplied(self._name_of())._refuse()


def stand_in(tf):
    """Installs stand-ins for names of TensorFlow 1 that TensorFlow 2 no longer has."""
    v1 = tf.compat.v1
    if not any(isinstance(finder, Contrib) for finder in sys.meta_path):
        # Before TensorFlow's own finders, since its lazy modules are looked up only once.
        sys.modules.setdefault("tensorflow.compat.v1.estimator", v1.estimator)
        sys.meta_path.insert(0, Contrib(v1))
        v1.contrib = importlib.import_module("tensorflow.contrib")


def _is_version_1(text):
    """Whether a script uses TensorFlow 1's API under the name `tensorflow`."""
    if re.search(r"tensorflow\.compat\.v1|compat\.v1 as tf", text):
        return False
    words = r"\btf\.(contrib|get_variable|layers|placeholder|variable_scope|train\.\w*Optimizer|flags|logging|losses|app)\b"
    return re.search(words, text) is not None


def read_script(path):
    """The text of a script; bytes of another encoding occur only in comments and strings, which do not matter."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def load(path, tf, flags=()):
    """Loads the script as a module, with TensorFlow 1's names if it uses them."""
    path = os.path.abspath(path)
    text = read_script(path)
    sys.path.insert(0, os.path.dirname(path))
    # A script that reads its command line as it is imported reads its own flags, not the tracer's.
    sys.argv = [path, *(f"--{flag}" for flag in flags)]
    stand_in(tf)
    if _is_version_1(text):
        as_version_1(tf)
    spec = importlib.util.spec_from_file_location("traced_script", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["traced_script"] = module
    spec.loader.exec_module(module)
    # argparse may have read some of them as the script was imported.
    parse_flags(flags, known_only="argparse" in text)
    return module


def as_version_1(tf):
    """Makes `import tensorflow` import TensorFlow 1's API from now on."""
    v1 = tf.compat.v1
    v1.disable_v2_behavior()
    v1.__path__ = tf.__path__
    sys.modules["tensorflow"] = v1


def parse_flags(flags, known_only=False):
    """Parses absl's flags as a script's `main` would: their defaults, and the values from `--flag`."""
    from absl import flags as absl_flags

    known = absl_flags.FLAGS
    known.unparse_flags()
    try:
        known(["traced_script", *(f"--{flag}" for flag in flags)], known_only=known_only)
    except absl_flags.Error as error:
        # absl checks flags once all are read. One that `main` requires, such as a data_dir, is not needed to build a graph.
        if not known.is_parsed():
            raise TraceError(f"--flag: {error}") from None
