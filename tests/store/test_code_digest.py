"""Ways of changing one's own code: each is noticed, or named in a warning."""

from __future__ import annotations

import importlib
import json
import os
import site
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from heedful.store.code_digest import UnseenCodeWarning, code_digest, is_user_module
from heedful.store.state_digest import class_digest

USE = "class Mine:\n    def make(self): return "
BY_NAME = f"import helper\n{USE}helper.f()"
FROM = f"from helper import f\n{USE}f()"
IN_METHOD = "class Mine:\n    def make(self):\n        "
HELPER = {"helper.py": "def f(): return VALUE"}
PACKAGE = {
    "package/__init__.py": "",
    "package/inner/__init__.py": "",
    "package/inner/helper.py": "def f(): return VALUE",
}

NOTICED: dict[str, dict[str, str]] = {
    "body of a method": {"mine.py": USE + "VALUE"},
    "comment": {"mine.py": USE + "1  # VALUE"},
    "function": {"mine.py": f"def f(): return VALUE\n{USE}f()"},
    "default of an argument": {"mine.py": f"def f(x=VALUE): return x\n{USE}f()"},
    "constant": {"mine.py": f"SCALE = VALUE\n{USE}SCALE"},
    "attribute of the class": {"mine.py": f"{USE}self.a\n    a = [VALUE]"},
    "property": {"mine.py": f"{USE}self.a\n    @property\n    def a(self): return VALUE"},
    "nested class": {"mine.py": f"{USE}self.Inner.a\n    class Inner:\n        a = VALUE"},
    "array": {"mine.py": f"import numpy\nT = numpy.array([0, VALUE])\n{USE}T"},
    "tensor": {"mine.py": f"import torch\nT = torch.tensor([0, VALUE])\n{USE}T"},
    "data frame": {"mine.py": f"import pandas\nT = pandas.DataFrame({{'a': [VALUE]}})\n{USE}T"},
    "plain object": {"mine.py": f"class K:\n    def __init__(self, a): self.a = a\nT = K(VALUE)\n{USE}T.a"},
    "vectorized function": {"mine.py": f"import numpy\n@numpy.vectorize\ndef f(x): return VALUE\n{USE}f(1)"},
    "cached function": {"mine.py": f"import functools\n@functools.lru_cache\ndef f(): return VALUE\n{USE}f()"},
    "partial function": {"mine.py": f"import functools, helper\nf = functools.partial(helper.f)\n{USE}f()", **HELPER},
    "dispatched function": {
        "mine.py": "from functools import singledispatch\n@singledispatch\ndef f(x): pass\n"
        f"@f.register\ndef _(x: int): return VALUE\n{USE}f(1)"
    },
    "lambda in a dict": {"mine.py": f"T = {{'a': lambda: VALUE}}\n{USE}T['a']()"},
    "set": {"mine.py": f"T = {{'a', 'b', 'c', VALUE}}\n{USE}T"},
    "member of an enum": {"mine.py": f"import enum\nclass Mode(enum.Enum):\n    A = VALUE\n{USE}Mode.A"},
    "factory of a field": {
        "mine.py": "from dataclasses import dataclass, field\n@dataclass\nclass K:\n"
        f"    a: list = field(default_factory=lambda: [VALUE])\n{USE}K()"
    },
    "statement of the module": {"mine.py": f"T = []\nfor x in range(VALUE): T.append(x)\n{USE}T"},
    "imported module": {"mine.py": BY_NAME, **HELPER},
    "imported function": {"mine.py": FROM, **HELPER},
    "imported under another name": {"mine.py": f"from helper import f as g\n{USE}g()", **HELPER},
    "imported data": {"mine.py": f"from helper import T\n{USE}T", "helper.py": "T = [VALUE]"},
    "imported base class": {"mine.py": "from helper import K\nclass Mine(K): pass", "helper.py": "class K: a = VALUE"},
    "imported metaclass": {
        "mine.py": "from helper import K\nclass Mine(metaclass=K): pass", "helper.py": "class K(type): a = VALUE"
    },
    "imported decorator": {
        "mine.py": "from helper import d\n@d\nclass Mine: pass", "helper.py": "def d(k): k.a = VALUE; return k"
    },
    "closure": {
        "mine.py": f"from helper import make\nf = make(1)\n{USE}f()",
        "helper.py": "def make(x):\n    def f(): return x + VALUE\n    return f",
    },
    "import of an import": {"mine.py": BY_NAME, "helper.py": "from third import f", "third.py": "f = [VALUE]"},
    "import in a method": {"mine.py": IN_METHOD + "import helper\n        return helper.f()", **HELPER},
    "import from in a method": {"mine.py": IN_METHOD + "from helper import f\n        return f()", **HELPER},
    "import in a function of an import": {
        "mine.py": BY_NAME, "helper.py": "def f():\n    import third\n    return third.x", "third.py": "x = VALUE"
    },
    "import in a class body": {"mine.py": "class Mine:\n    from helper import f", **HELPER},
    "import for its effects": {
        "mine.py": f"import patch\n{BY_NAME}", "patch.py": "import helper\nhelper.f = lambda: VALUE",
        "helper.py": "def f(): pass",
    },
    "circular import": {"mine.py": BY_NAME, "helper.py": "def f():\n    import mine\n    return mine.Mine, VALUE"},
    "import under try": {"mine.py": f"try: import helper\nexcept ImportError: helper = None\n{USE}helper", **HELPER},
    "import instead of a missing one": {
        "mine.py": f"try: import absent as helper\nexcept ImportError: import helper\n{USE}helper.f()", **HELPER
    },
    "import under if": {"mine.py": f"import sys\nif sys.argv is not None: import helper\n{USE}helper", **HELPER},
    "star import": {"mine.py": f"from helper import *\n{USE}f()", **HELPER},
    "star import of a package": {
        "mine.py": f"from package import *\n{USE}helper.f()", "package/__init__.py": "__all__ = ['hel' + 'per']",
        "package/helper.py": "def f(): return VALUE",
    },
    "import of a path": {"mine.py": f"import package.inner.helper\n{USE}package.inner.helper.f()", **PACKAGE},
    "import of a path under another name": {"mine.py": f"import package.inner.helper as h\n{USE}h.f()", **PACKAGE},
    "module from a package": {"mine.py": f"from package.inner import helper\n{USE}helper.f()", **PACKAGE},
    "file of a package on the way": {
        "mine.py": f"from package.inner.helper import f\n{USE}f()", **PACKAGE, "package/__init__.py": "VALUE",
        "package/inner/helper.py": "f = 1",
    },
    "file of the package of the class": {"package/__init__.py": "VALUE", "package/mine.py": USE + "1"},
    "folder without a file of the package": {"mine.py": f"import space.helper\n{USE}1", "space/helper.py": "VALUE"},
    "relative import": {"package/__init__.py": "", "package/mine.py": f"from . import helper\n{USE}helper.x",
                        "package/helper.py": "x = VALUE"},
    "relative import of a name": {"package/__init__.py": "", "package/mine.py": f"from .helper import x\n{USE}x",
                                  "package/helper.py": "x = VALUE"},
    "relative import from above": {
        "package/__init__.py": "", "package/inner/__init__.py": "", "package/other.py": "x = VALUE",
        "package/inner/mine.py": f"from ..other import x\n{USE}x",
    },
    "relative import in a package": {
        "mine.py": f"import package\n{USE}package.x", "package/__init__.py": "from .helper import x",
        "package/helper.py": "x = VALUE",
    },
    "attribute of a package": {
        "mine.py": f"import package\n{USE}package.inner.helper.f()", **PACKAGE
    },
    "attribute of a package loaded in a method": {
        "mine.py": f"import package\n{USE}getattr(package, 'helper')", "package/__init__.py": "",
        "package/helper.py": "VALUE",
    },
    "package that loads lazily": {
        "mine.py": f"import package\n{USE}package.f()",
        "package/__init__.py": "def __getattr__(name):\n    from . import helper as h\n    return getattr(h, name)",
        "package/helper.py": "from . import third", "package/third.py": "VALUE",
    },
    "getattr of a module": {"mine.py": f"import helper\n{USE}getattr(helper, 'f')()", **HELPER},
    "import_module": {"mine.py": f"import importlib\n{USE}importlib.import_module('helper').f()", **HELPER},
    "import_module of a relative name": {
        "package/__init__.py": "", "package/helper.py": "VALUE",
        "package/mine.py": f"from importlib import import_module\n{USE}import_module('.helper', __package__)",
    },
    "__import__": {"mine.py": f"{USE}__import__('helper').f()", **HELPER},
    "name of a function as text": {"mine.py": f"import pkgutil\n{USE}pkgutil.resolve_name('helper:f')()", **HELPER},
    "module named like one of Python's": {"mine.py": f"import antigravity\n{USE}1", "antigravity.py": "VALUE"},
    "compiled module": {"mine.py": BY_NAME, "helper.pyc": "def f(): return VALUE"},
    "module in an archive": {"mine.py": BY_NAME, "archive.zip": "def f(): return VALUE"},
    "script": {"script.py": USE + "VALUE"},
    "import of a script": {"script.py": BY_NAME, **HELPER},
    "cell of a notebook": {"cells": USE + "VALUE"},
    "function of another cell": {"cells": f"def f(): return VALUE#%%{USE}f()"},
    "data of another cell": {"cells": f"T = [VALUE]#%%def f(): return [x for x in T]#%%{USE}f()"},
    "latest definition of a cell": {"cells": f"def f(): return 0#%%{USE}f()#%%def f(): return VALUE"},
    "import of a cell": {"cells": f"import helper#%%{USE}helper.f()", **HELPER},
}  # fmt: skip
WARNED: dict[str, dict[str, str]] = {
    "import_module of a variable": {"mine.py": f"import importlib\n{USE}importlib.import_module(self.name)", **HELPER},
    "import_module under another name": {"mine.py": f"from importlib import import_module as load\n{USE}load(self.a)"},
    "import_module as a value": {"mine.py": f"import importlib\nload = importlib.import_module\n{USE}load(self.a)"},
    "eval": {"mine.py": f"{USE}eval(self.text)"},
    "exec": {"mine.py": f"{USE}exec(open('VALUE').read())"},
    "exec of builtins": {"mine.py": f"import builtins\n{USE}builtins.exec(self.text)"},
    "exec in an import": {"mine.py": BY_NAME, "helper.py": "def f(): exec('import third')", "third.py": "VALUE"},
    "run_path": {"mine.py": f"import runpy\n{USE}runpy.run_path('helper.py')", **HELPER},
    "spec_from_file_location": {
        "mine.py": f"import importlib.util\n{USE}importlib.util.spec_from_file_location('h', 'helper.py')", **HELPER
    },
    "import that is not found": {"mine.py": IN_METHOD + "import absent"},
    "class without source": {"generated": USE + "VALUE"},
}  # fmt: skip
SAME: dict[str, dict[str, str]] = {
    "module that is not imported": {"mine.py": FROM, "helper.py": "def f(): pass", "third.py": "VALUE"},
    "later cell of a notebook": {"cells": f"def f(): return 1#%%{USE}f()#%%Mine().make() + VALUE"},
    "optional package that is absent": {
        "mine.py": f"try: import absent\nexcept ImportError: pass\n{USE}1",
        "x.py": "VALUE",
    },
    "installed package": {"mine.py": f"import bought\n{USE}bought.x", "site-packages/bought.py": "x = VALUE"},
}
ROWS = {**NOTICED, **WARNED, **SAME}

SCRIPT = """
import importlib, json, os, py_compile, sys, warnings, zipfile
from pathlib import Path
from types import ModuleType
import numpy, pandas, torch
from heedful.store.code_digest import code_digest

def load(folder):
    sys.path[:0] = [str(folder), str(folder / "archive.zip"), str(folder / "site-packages")]
    main = sys.modules["__main__"] = ModuleType("__main__")
    for path in folder.rglob("*.pyc"):
        path.rename(path.with_suffix(".txt"))
        py_compile.compile(path.with_suffix(".txt"), path, "helper.py",
                           invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    for path in folder.rglob("archive.zip"):
        source = path.read_text()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("helper.py", source)
    if (folder / "cells").exists():
        main.In = ["", *(folder / "cells").read_text().split("#%%")]
        for cell in main.In:
            exec(cell, vars(main))
    elif (folder / "script.py").exists():
        main.__file__ = str(folder / "script.py")
        exec((folder / "script.py").read_text(), vars(main))
    elif (folder / "generated").exists():
        main = sys.modules["generated"] = ModuleType("generated")
        exec((folder / "generated").read_text(), vars(main))
    else:
        (path,) = folder.rglob("mine.py")
        main = importlib.import_module(".".join(path.relative_to(folder).with_suffix("").parts))
    return main.Mine

for folder in sorted(Path().glob("*/*")):
    sys.stdout.flush()
    if os.fork() == 0:
        kind = load(folder.absolute())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            digests = [code_digest(kind), code_digest(kind)]
        assert digests[0] == digests[1]
        print(json.dumps([*folder.parts, digests[0], [str(warning.message) for warning in caught]]), flush=True)
        os._exit(0)
    os.wait()
"""
Answer = tuple[str, list[str]]


def ask(root: Path, values: tuple[str, ...], seed: str) -> list[dict[str, Answer]]:
    """For each value, the digest of the class of each row, whose files are written below `root`, and the warnings."""
    for value in values:
        for number, files in enumerate(ROWS.values()):
            for name, source in files.items():
                path = root / value / f"{number:03}" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source.replace("VALUE", value))
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", SCRIPT]
    shown = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    answers = {
        (value, number): (digest, caught)
        for value, number, digest, caught in map(json.loads, shown.stdout.splitlines())
    }
    return [{name: answers[value, f"{number:03}"] for number, name in enumerate(ROWS)} for value in values]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Answer]]:
    """Before an edit, after it, and before it in another folder and with other hashes."""
    variants = [(("1", "2"), "1"), (("1",), "2")]
    return [answer for variant in variants for answer in ask(tmp_path_factory.mktemp("code"), *variant)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_an_edit_is_noticed_or_named(name: str, answers: list[dict[str, Answer]]) -> None:
    (before, warned), (after, _), (again, _) = (variant[name] for variant in answers)
    assert before == again
    assert len(warned) == (name in WARNED)
    assert all("revision" in message for message in warned)
    if name not in WARNED:
        assert (before != after) == (name in NOTICED)


def test_a_source_counts_as_it_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "reloaded_helper.py").write_text("x = 1")
    (tmp_path / "reloaded_mine.py").write_text("import reloaded_helper\nclass Mine: pass")
    kind = importlib.import_module("reloaded_mine").Mine
    before = code_digest(kind)
    (tmp_path / "reloaded_helper.py").write_text("x = 1  # edited")
    assert code_digest(kind) == before
    importlib.reload(sys.modules["reloaded_helper"])
    assert code_digest(kind) != before
    for name in ("reloaded_mine", "reloaded_helper"):
        del sys.modules[name]


@pytest.mark.slow
def test_a_class_carries_its_digest_to_where_its_source_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "carried_mine.py").write_text("class Mine:\n    def make(self): return 1")
    module = importlib.import_module("carried_mine")
    expected = class_digest(module.Mine)
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    cloudpickle.register_pickle_by_value(module)
    (tmp_path / "sent").write_bytes(cloudpickle.dumps(module.Mine))
    cloudpickle.unregister_pickle_by_value(module)
    del sys.modules["carried_mine"]
    (tmp_path / "carried_mine.py").unlink()
    script = (
        "import pathlib, pickle; from heedful.store.state_digest import class_digest\n"
        f"print(class_digest(pickle.loads(pathlib.Path({str(tmp_path / 'sent')!r}).read_bytes())))"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == expected


def make_class(scale: object) -> type:
    class Scaled:
        def make(self) -> object:
            return scale

    return Scaled


def test_classes_of_one_factory_differ_by_what_they_hold() -> None:
    held = [1]
    kind = make_class(held)
    first, again, other = (class_digest(made) for made in (kind, make_class([1]), make_class([2])))
    assert first == again != other
    held.append(2)  # while a recipe is made
    assert class_digest(kind) == first
    kinds = [type("Made", (), {"factor": factor}) for factor in (1, 2)]
    assert class_digest(kinds[0]) != class_digest(kinds[1])
    with pytest.warns(UnseenCodeWarning, match="generator"):
        class_digest(make_class(iter(int, 1) for _ in ""))


def test_a_closure_over_an_unbound_name_has_a_digest() -> None:
    def make() -> type:
        class Lazy:
            def call(self) -> object:
                return later

        digest = class_digest(Lazy)
        later = 1
        assert (len(digest), later) == (64, 1)
        return Lazy

    assert make().__name__ == "Lazy"


@pytest.mark.parametrize(
    ("folder", "is_local"),
    [
        (Path(site.getsitepackages()[0]), False),
        (Path(site.getusersitepackages()), False),
        (Path(sysconfig.get_path("stdlib")), False),
        (Path("/home/me/other/site-packages"), False),
        (Path("/usr/lib/python3/dist-packages"), False),
        (Path(site.getusersitepackages() + "-mine"), True),
        (Path("/home/me/project/src"), True),
    ],
)
def test_local_modules_are_told_by_their_folder(
    folder: Path, is_local: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, file in (("bought", "bought/__init__.py"), ("bought.part", "bought/part.py"), ("bought.compiled", None)):
        module = ModuleType(name)
        if file is not None:
            module.__file__ = str(folder / file)
        monkeypatch.setitem(sys.modules, name, module)
        assert is_user_module(name) is is_local
    assert is_user_module("typed.in.a.notebook")
    assert not is_user_module("heedful.types")
