"""Fingerprints: stable where nothing changed, different where anything did."""

from __future__ import annotations

import hashlib
import importlib
import os
import site
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field, make_dataclass, replace
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.tokenization import Words
from heedful.store.recipe import (
    Artefact,
    Recipe,
    canonical_json,
    code_digest,
    derive_seed,
    describe_recipe,
    is_user_module,
    json_digest,
    to_json,
)
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.types import Corpus, Splits

DATA = Path("data")


def fingerprint(recipe: Recipe, data: Path) -> str:
    return json_digest(describe_recipe(recipe, data))


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Notebook(Corpus):
    name: ClassVar[str] = "notebook"
    tokenization: ClassVar[Words] = Words()
    lower: bool = True

    def read(self, data: Path) -> Splits:
        raise NotImplementedError

    def digest(self, data: Path) -> str:
        with (data / "asked").open("a") as file:
            file.write("x")
        return hashlib.sha256((data / "notebook.txt").read_bytes()).hexdigest()


@dataclass(frozen=True)
class Rate:
    start: float = 0.5
    floor: float | None = None


@dataclass(frozen=True)
class Grow(Recipe):
    seed: int = 1
    rate: Rate = Rate()

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact()


@dataclass(frozen=True)
class Borrowed:
    source: Recipe


@dataclass(frozen=True)
class Compare(Recipe):
    revision: ClassVar[int] = 3
    first: Recipe = Grow()
    rest: tuple[Recipe, ...] = ()
    loan: Borrowed | None = None
    note: object = None

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact()


@dataclass(frozen=True)
class Read(Recipe):
    corpora: tuple[Notebook, ...]

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact()


def test_fingerprint_is_the_hash_of_this_very_text() -> None:
    code = {each: code_digest(each) for each in (Rate, Grow, Colour, Compare)}
    text = (
        f'{{"code":"{code[Compare]}","first":{{"code":"{code[Grow]}","rate":{{"code":"{code[Rate]}","floor":null,'
        f'"start":0.5,"type":"{__name__}.Rate"}},"revision":1,"seed":1,"type":"{__name__}.Grow"}},"loan":null,'
        f'"note":{{"code":"{code[Colour]}","member":"BLUE","type":"{__name__}.Colour"}},"rest":[],"revision":3,'
        f'"type":"{__name__}.Compare"}}'
    ).encode()
    assert fingerprint(Compare(note=Colour.BLUE), DATA) == hashlib.sha256(text).hexdigest()
    assert Workspace(DATA, data_dir=DATA).artefact_name(Compare(note=Colour.BLUE)) == (
        f"Compare-{hashlib.sha256(text).hexdigest()[:12]}"
    )


def test_classes_of_the_package_have_no_code_digest() -> None:
    assert canonical_json(BinaryClassification(), DATA) == {"type": "heedful.tasks.BinaryClassification"}


METHOD = """
from dataclasses import dataclass
from helper import shift
SCALE = {scale}
def double(x):
    return {double} * x  {comment}
@dataclass(frozen=True)
class Mine:
    seed: int = 0
    def __call__(self, x):
        return [double(value) * SCALE + shift(value) for value in x]
def unrelated():
    return {unrelated}
"""


def load_method(folder: Path, **changes: object) -> type:
    """The class Mine of a freshly written module, with its helper module."""
    values = {"scale": 3, "double": 2, "comment": "", "unrelated": 1, "shift": 1, **changes}
    (folder / "helper.py").write_text(f"def shift(x):\n    return x + {values.pop('shift')}\n")
    (folder / "mine.py").write_text(METHOD.format(**values))
    for name in ("mine", "helper"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    found: type = importlib.import_module("mine").Mine
    return found


def test_code_outside_the_package_counts_wherever_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("mine", "helper"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # restored, that is removed, afterwards
    digest = {
        str(changes): canonical_json(load_method(tmp_path, **changes)(), DATA)["code"]  # type: ignore[index, call-overload]
        for changes in ({}, {"scale": 4}, {"double": 5}, {"shift": 9}, {"comment": "# twice"}, {"unrelated": 2})
    }
    assert len(set(digest.values())) == 4
    assert digest["{}"] == digest["{'comment': '# twice'}"] == digest["{'unrelated': 2}"]


def write_module(folder: Path, name: str) -> str:
    """The path of a freshly written module, also of one in a package."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    return str(file)


@pytest.mark.parametrize(
    "folder",
    [
        Path(site.getsitepackages()[0]),
        Path(site.getusersitepackages()),
        Path(sysconfig.get_path("stdlib")),
        Path("/home/me/other/site-packages"),
        Path("/usr/lib/python3/dist-packages"),
    ],
)
def test_installed_packages_are_not_the_users_wherever_they_lie(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file in (("bought", "bought/__init__.py"), ("bought.part", "bought/part.py")):
        module = ModuleType(name)
        module.__file__ = str(folder / file)
        monkeypatch.setitem(sys.modules, name, module)
        assert not is_user_module(name)
    monkeypatch.setitem(sys.modules, "bought.compiled", ModuleType("bought.compiled"))
    assert not is_user_module("bought.compiled")


def test_a_folder_of_the_users_that_begins_like_a_library_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own")
    module.__file__ = site.getusersitepackages() + "-mine/own.py"
    monkeypatch.setitem(sys.modules, "own", module)
    assert is_user_module("own")


def test_packages_of_a_target_folder_are_told_from_the_users_files_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bought.part.deep", "single", "own"):
        module = ModuleType(name)
        module.__file__ = write_module(tmp_path, name)
        monkeypatch.setitem(sys.modules, name, module)
    (tmp_path / "bought-1.0.dist-info").mkdir()
    (tmp_path / "bought-1.0.dist-info" / "RECORD").write_text("bought/part/deep.py,sha256=x,0\nsingle.py,,\n")
    verdicts = {name: is_user_module(name) for name in ("bought.part.deep", "single", "own")}
    assert verdicts == {"bought.part.deep": False, "single": False, "own": True}


def test_an_editable_project_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("project.part")
    module.__file__ = write_module(tmp_path / "src", "project.part")
    (tmp_path / "src" / "project.egg-info").mkdir()
    (tmp_path / "src" / "project.egg-info" / "top_level.txt").write_text("project\n")
    monkeypatch.setitem(sys.modules, "project.part", module)
    assert is_user_module("project.part")
    assert is_user_module("typed.in.a.notebook")


def run_source(source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's with this source."""
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    exec(compile(source, "mine.py", "exec"), vars(module))
    return module


PRELUDE = """
import math, operator, re
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cached_property, lru_cache, partial, partialmethod, singledispatch, singledispatchmethod, wraps
from pathlib import Path
from types import MappingProxyType
import torch
def one(x, y=0): return x + 1
def two(x, y=0): return x + 2
def bare(f):
    def inner(*words): return f(*words)
    return inner
class Stored:
    def __init__(self, f): self.f = f
    def __call__(self, x): return self.f(x)
@dataclass(frozen=True)
class Setting:
    value: object = 0
@dataclass
class Loose:
    value: object = 0
class Plain:
    def __init__(self, value): self.value = value
"""
USE = "\nclass Mine:\n    def __call__(self, x): return {}\n"
EDITS = {
    "default": ("def f(x, k=V): return k", "f(x)", "1", "2"),
    "keyword-only default": ("def f(x, *, k=V): return k", "f(x)", "1", "2"),
    "default that is a list": ("def f(x, k=[V]): return k", "f(x)", "1", "2"),
    "kind of argument": ("def f(x, V): return k", "f", "k=1", "*, k=1"),
    "star argument": ("def f(V): return x", "f", "x", "*x"),
    "reach of try": ("def f(x):\n  try: x()V", "f", "; one(x)\n  except OSError: pass",
                     "\n  except OSError: pass\n  else: one(x)"),
    "cached function": ("@lru_cache\ndef f(x): return V", "f(x)", "1", "2"),
    "cached function with a size": ("@lru_cache(maxsize=3)\ndef f(x): return V", "f(x)", "1", "2"),
    "wrapped": ("def deco(g):\n  @wraps(g)\n  def inner(x): return g(x)\n  return inner\n@deco\ndef f(x): return V",
                "f(x)", "1", "2"),
    "decorator of a package": ("@torch.no_grad()\ndef f(x): return V", "f(x)", "1", "2"),
    "decorator that is an object": ("@Stored\ndef f(x): return V", "f(x)", "1", "2"),
    "dispatch": ("@singledispatch\ndef f(x): pass\n@f.register\ndef _(x: int): return V", "f(x)", "1", "2"),
    "partial function": ("f = partial(V)", "f(x)", "one", "two"),
    "partial argument": ("f = partial(one, V)", "f(x)", "1", "2"),
    "partial keyword": ("f = partial(one, y=V)", "f(x)", "1", "2"),
    "getter": ("f = operator.itemgetter(V)", "f(x)", "1", "2"),
    "bound method": ("f = {V: 1}.get", "f(x)", "1", "2"),
    "method of a class": ("f = V", "f(x)", "str.lower", "str.upper"),
    "function of a package": ("from math import V as f", "f(x)", "sin", "cos"),
    "module of a package": ("import V as m", "m.sqrt(x)", "math", "cmath"),
    "value of an enum": ("class Mode(Enum):\n  FAST = V", "Mode.FAST.value", "1", "2"),
    "member of an enum": ("class Mode(Enum):\n  A = 1\n  B = 2\nMODE = Mode.V", "MODE", "A", "B"),
    "method of an enum": ("class Mode(Enum):\n  A = 1\n  def f(self): return V", "Mode.A.f()", "1", "2"),
    "member of an integer enum": ("class Mode(IntEnum):\n  A = 1\n  B = 2\nMODE = (Mode.V,)", "MODE", "A", "B"),
    "dict": ("T = {'a': V}", "T", "1", "2"),
    "key": ("T = {V: 1}", "T", "1", "2"),
    "order of a dict": ("T = V", "T", "{1: 1, 2: 2}", "{2: 2, 1: 1}"),
    "functions of a dict": ("T = {'a': one, 'b': V}; U = (one, two)", "(T, U)", "one", "two"),
    "lambda of a dict": ("T = {'a': lambda x: V}", "T", "x + 1", "x + 2"),
    "swapped lambdas": ("T = [lambda x: V]", "T", "x + 1, lambda x: x + 2", "x + 2, lambda x: x + 1"),
    "deep list": ("T = [[{'a': (V,)}]]", "T", "1", "2"),
    "kind of container": ("T = V", "T", "(1,)", "[1]"),
    "number or text": ("T = V", "T", "[1]", "['1']"),
    "set": ("T = {V}", "T", "1", "2"),
    "counter": ("T = Counter(V)", "T", "'aab'", "'abb'"),
    "default of a dict": ("T = defaultdict(lambda: V)", "T", "1", "2"),
    "view": ("T = MappingProxyType({1: V})", "T", "1", "2"),
    "deque": ("T = deque([V])", "T", "1", "2"),
    "named tuple": ("T = namedtuple('T', 'a')(V)", "T", "1", "2"),
    "pattern": ("T = re.compile('a' * 300 + 'V')", "T", "x", "y"),
    "flags of a pattern": ("T = re.compile('a', V)", "T", "0", "re.I"),
    "path": ("T = Path('V')", "T", "one", "two"),
    "range": ("T = range(V)", "T", "1", "2"),
    "dtype": ("T = torch.V", "T", "float32", "float64"),
    "large number": ("T = V", "T", "10 ** 5000", "10 ** 5001"),
    "frozen dataclass": ("T = Setting(V)", "T", "1", "2"),
    "frozen dataclass deep inside": ("T = [Setting({1: Setting(V)})]", "T", "1", "2"),
    "dataclass": ("T = Loose(V)", "T", "1", "2"),
    "class of an object": ("class K:\n  def f(self): return V\nT = K()", "T.f()", "1", "2"),
    "factory of a field": ("@dataclass\nclass K:\n  a: list = field(default_factory=lambda: [V])", "K()", "1", "2"),
    "default of a field with slots": ("@dataclass(slots=True)\nclass K:\n  a: int = V", "K()", "1", "2"),
    "written __init__ of a dataclass": ("@dataclass\nclass K:\n  def __init__(self): self.a = V", "K()", "1", "2"),
    "attribute of a class": ("class K:\n  a = [V]", "K.a", "1", "2"),
    "base of a package": ("class K(V): pass", "K()", "dict", "OrderedDict"),
    "property": ("class K:\n  @property\n  def a(self): return V", "K().a", "1", "2"),
    "setter": ("class K:\n  a = property()\n  @a.setter\n  def a(self, x): self.b = V", "K()", "1", "2"),
    "cached property": ("class K:\n  @cached_property\n  def a(self): return V", "K().a", "1", "2"),
    "static method": ("class K:\n  @staticmethod\n  def a(): return V", "K.a()", "1", "2"),
    "class method": ("class K:\n  @classmethod\n  def a(cls): return V", "K.a()", "1", "2"),
    "cached class method": ("class K:\n  @classmethod\n  @lru_cache\n  def a(cls): return V", "K.a()", "1", "2"),
    "cached call": ("class K:\n  @lru_cache\n  def __call__(self): return V", "K()()", "1", "2"),
    "decorated call": ("class K:\n  @bare\n  def __call__(self): return V", "K()()", "1", "2"),
    "partial method": ("class K:\n  def f(self, x): pass\n  a = partialmethod(f, V)", "K().a()", "1", "2"),
    "dispatched method": ("class K:\n  @singledispatchmethod\n  def a(self, x): return V", "K().a(1)", "1", "2"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_noticed_in_whatever_the_code_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, use, one, two = EDITS[name]
    one, two, again = (
        code_digest(run_source(PRELUDE + before.replace("V", value) + USE.format(use), monkeypatch).Mine)
        for value in (one, two, one)
    )
    assert one != two
    assert one == again


SAME = {
    "object": "T = object()",
    "objects in containers": "T = {'a': [object(), {Plain(1)}]}",
    "object that holds an address": "T = Plain(object())",
    "cycle": "T = [1]; T.append(T); S = Setting(T); T.append(S)",
    "functions that call each other": "def f(): return T\ndef g(): return f\ndef h(): return g\nT = {f, g, h}",
    "generator": "T = (x for x in ())",
    "function of a package": "T = math.sin",
    "tensor": "T = torch.ones(2)",
    "abstract base": "class B(ABC):\n  @abstractmethod\n  def f(self): pass\nT = B",
}


@pytest.mark.parametrize("name", SAME)
def test_addresses_do_not_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = PRELUDE + SAME[name] + USE.format("T")
    kept = [run_source(source, monkeypatch) for _ in range(3)]
    assert len({code_digest(module.Mine) for module in kept}) == 1


def test_two_equal_things_count_like_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = ["T = [[1, one]] * 2", "T = [[1, one], [1, one]]"]
    digests = {code_digest(run_source(PRELUDE + each + USE.format("T"), monkeypatch).Mine) for each in sources}
    assert len(digests) == 1


def test_an_attribute_with_the_name_of_a_global_does_not_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [PRELUDE + f"table = {value}" + USE.format("x.table") for value in (1, 2)]
    assert len({code_digest(run_source(each, monkeypatch).Mine) for each in sources}) == 1


@pytest.mark.parametrize("part", ["limit", "table", "inner.limit", "cached"])
def test_what_is_read_from_a_module_of_the_users_counts(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for value in (1, 2, 1):
        tools = ModuleType("tools")
        inner = ModuleType("tools.inner")
        for module in (tools, inner):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        chosen = {name: value if name == part else 0 for name in ("limit", "table", "inner.limit", "cached")}
        cached = f"from functools import lru_cache\n@lru_cache\ndef cached(): return {chosen['cached']}"
        exec(f"limit = {chosen['limit']}; table = {{1: {chosen['table']}}}\n{cached}", vars(tools))
        exec(f"limit = {chosen['inner.limit']}", vars(inner))
        vars(tools)["inner"] = inner
        use = USE.format("(tools.limit, tools.table, tools.inner.limit, tools.cached())")
        digests.append(code_digest(run_source("import tools" + use, monkeypatch).Mine))
    assert digests[0] == digests[2] != digests[1]


def test_the_first_instance_of_a_protocol_does_not_change_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from typing import Protocol\nclass P(Protocol):\n  def f(self): ...\nclass K(P):\n  def f(self): pass"
    before, after = (run_source(source + USE.format("K()"), monkeypatch) for _ in range(2))
    after.K()
    assert code_digest(before.Mine) == code_digest(after.Mine)


HASHED = """
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from heedful.store.recipe import Recipe, code_digest
WORDS = frozenset({"never", "no", "not", "nothing", "hardly", "nor"})
PAIRS = (1, (frozenset({"a", "b", "c", "d"}), 2.5))
LISTED = {"x": [{"e", "f", "g", "h"}], frozenset({"i", "j", "k", "l"}): 1}
def left(): return 1
def right(): return 2
CALLS = {left, right, len}
class ByGlobal:
    def __call__(self): return WORDS
class ByTuple:
    def __call__(self): return PAIRS
class ByAttribute:
    words = frozenset({"never", "no", "not", "nothing", "hardly", "nor"})
class ByDefault:
    def __call__(self, words=frozenset({"never", "no", "not", "nothing", "hardly", "nor"})): return words
class ByContainer:
    def __call__(self): return LISTED
class ByFunctions:
    def __call__(self): return CALLS
class ByMembership:
    def __call__(self, x): return x in {"never", "no", "not", "nothing", "hardly", "nor"}
class Base(Recipe):
    @abstractmethod
    def one(self): ...
    @abstractmethod
    def two(self): ...
    @abstractmethod
    def three(self): ...
    @abstractmethod
    def four(self): ...
class ByBase(Base): pass
for name, kind in list(globals().items()):
    if name.startswith("By"):
        print(name, code_digest(kind))
"""


def test_digests_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", HASHED],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for seed in ("1", "2", "3")
    ]
    assert len(told[0]) == 8
    assert [one for one, *others in zip(*told, strict=True) if {one} != set(others)] == []


def test_what_python_writes_into_a_class_does_not_count() -> None:
    names = ("__firstlineno__", "__static_attributes__", "__annotations__", "__annotations_cache__", "__orig_bases__")
    kinds = [type("Mine", (), dict.fromkeys(names, (value,))) for value in (1, 2)]
    assert len({code_digest(kind) for kind in kinds}) == 1


@pytest.mark.parametrize("head", ["", "@dataclass(frozen=True)\n", "@dataclass(frozen=True, slots=True, order=True)\n"])
def test_comments_above_classes_do_not_count(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [f"{PRELUDE}{comment}{head}class K:\n    a: int = 1\n" for comment in ("", "# said\n# more\n")]
    digests = {code_digest(run_source(each + USE.format("K()"), monkeypatch).Mine) for each in sources}
    assert len(digests) == 1


def test_order_in_which_fields_are_declared_does_not_matter() -> None:
    one = make_dataclass("Plan", [("a", int), ("b", str)], frozen=True)
    other = make_dataclass("Plan", [("b", str), ("a", int)], frozen=True)
    assert fingerprint(Compare(note=one(a=1, b="x")), DATA) == fingerprint(Compare(note=other(a=1, b="x")), DATA)


def test_every_nested_change_gives_another_fingerprint() -> None:
    start = Compare(rest=(Grow(2),), loan=Borrowed(Grow(3)), note=(1, "1", Path("a/b")))
    variants = [
        start,
        replace(start, first=Grow(5)),
        replace(start, first=Grow(1, Rate(0.25))),
        replace(start, first=Grow(1, Rate(0.5, 0.0))),
        replace(start, rest=(Grow(4),)),
        replace(start, rest=(Grow(2), Grow(2))),
        replace(start, loan=Borrowed(Grow(4))),
        replace(start, loan=None),
        *(replace(start, note=n) for n in [None, True, 1, 1.0, "1", (1,), (), "", 0, False, Colour.RED]),
        *(replace(start, note=n) for n in [float("inf"), float("-inf"), float("nan"), "inf", 0.1 + 0.2, 0.3]),
    ]
    assert len({fingerprint(each, DATA) for each in variants}) == len(variants)


def test_two_classes_with_the_same_fields_differ() -> None:
    twin = make_dataclass("Twin", [("start", float, 0.5), ("floor", float, None)], frozen=True)
    assert fingerprint(Compare(note=Rate()), DATA) != fingerprint(Compare(note=twin()), DATA)


def test_revision_of_a_nested_recipe_counts_at_any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = Compare(loan=Borrowed(Compare(rest=(Grow(9),), first=Compare(first=Compare()))))
    before = fingerprint(deep, DATA)
    monkeypatch.setattr(Grow, "revision", 2)
    assert fingerprint(deep, DATA) != before
    monkeypatch.setattr(Grow, "revision", 1)
    assert fingerprint(deep, DATA) == before


def test_revision_of_something_that_is_no_recipe_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(Grow(), DATA)
    monkeypatch.setattr(Rate, "revision", 2, raising=False)
    assert fingerprint(Grow(), DATA) != before


def test_whole_number_in_a_float_field_means_the_float() -> None:
    assert fingerprint(Grow(rate=Rate(1)), DATA) == fingerprint(Grow(rate=Rate(1.0)), DATA)
    assert fingerprint(Grow(rate=Rate(floor=0)), DATA) == fingerprint(Grow(rate=Rate(floor=0.0)), DATA)
    assert fingerprint(Grow(rate=Rate(numpy.float64(0.5))), DATA) == fingerprint(Grow(rate=Rate(0.5)), DATA)
    assert fingerprint(Grow(rate=Rate(True)), DATA) != fingerprint(Grow(rate=Rate(1.0)), DATA)


def test_content_of_a_corpus_counts_and_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "notebook.txt").write_text("one fine day")
    recipe = Read((Notebook(), Notebook(), Notebook(lower=False)))
    before = fingerprint(recipe, tmp_path)
    assert (tmp_path / "asked").read_text() == "xx"
    (tmp_path / "notebook.txt").write_text("one fine dax")
    assert fingerprint(recipe, tmp_path) != before
    (tmp_path / "notebook.txt").write_text("one fine day")
    assert fingerprint(recipe, tmp_path) == before
    expected = hashlib.sha256(b"one fine day").hexdigest()
    assert canonical_json(Notebook(), tmp_path) == {
        "type": f"{__name__}.Notebook",
        "code": code_digest(Notebook),
        "lower": True,
        "content": expected,
    }


@pytest.mark.parametrize("alien", [[1], {"a": 1}, {1}, b"x", numpy.int64(1), object(), Grow, len])
def test_what_cannot_be_written_canonically_is_refused_by_field(alien: object) -> None:
    with pytest.raises(TypeError, match=r"^Compare\.note\[1\]: a recipe cannot hold a "):
        fingerprint(Compare(note=(0, alien)), DATA)


def test_recipe_that_is_not_frozen_is_refused_with_the_remedy(tmp_path: Path) -> None:
    @dataclass
    class Loose(Recipe):
        items: list[int] = field(default_factory=list)

        def make(self, workspace: Workspace) -> Artefact:
            return Artefact()

    class Bare(Recipe):
        def make(self, workspace: Workspace) -> Artefact:
            return Artefact()

    for recipe in (Loose(), Bare(), Compare(first=Loose()), Compare(rest=(Bare(),))):
        with pytest.raises(TypeError, match=r"(Loose|Bare) .*@dataclass\(frozen=True\)"):
            Workspace(tmp_path).get(recipe)
    for alien in (Rate(), Grow, None):
        with pytest.raises(TypeError, match=r"is not a recipe.*frozen dataclass that inherits from Recipe"):
            Workspace(tmp_path).get(alien)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_field_that_would_hide_the_class_name_is_refused() -> None:
    sly = make_dataclass("Sly", [("type", str)], frozen=True)
    with pytest.raises(TypeError, match=r"Compare\.note\.type: .*rename"):
        fingerprint(Compare(note=sly("Rate")), DATA)


def test_needs_are_the_recipes_in_fields_tuples_and_dataclasses_but_not_theirs() -> None:
    inner = Compare(first=Grow(7))
    recipe = Compare(first=inner, rest=(Grow(2), Grow(3)), loan=Borrowed(Grow(4)), note=((Grow(5),), "x"))
    assert recipe.dependencies == (inner, Grow(2), Grow(3), Grow(4), Grow(5))
    assert Grow().dependencies == ()


@given(st.lists(st.integers() | st.text(), max_size=4), st.lists(st.integers() | st.text(), max_size=4))
def test_derived_seeds_fit_a_generator_and_differ_with_any_part(one: list[int | str], two: list[int | str]) -> None:
    assert 0 <= derive_seed(*one) < 2**63
    assert (derive_seed(*one) == derive_seed(*two)) == (one == two)


def test_derived_seed_is_the_head_of_a_hash_written_out_here() -> None:
    assert derive_seed(3, "r-1") == int.from_bytes(hashlib.sha256(b'[3,"r-1"]').digest()[:8], "big") // 2


def test_a_closure_over_an_unbound_name_has_a_digest() -> None:
    def make() -> type:
        class Lazy:
            def call(self) -> object:
                return later

        digest = code_digest(Lazy)
        later = 1
        assert (len(digest), later) == (64, 1)
        return Lazy

    assert make().__name__ == "Lazy"


def test_values_become_json_with_undefined_numbers_as_null_and_others_are_refused() -> None:
    given = {"a": (1, 2.5, float("inf"), float("nan")), 3: [None, True, "x"]}
    assert to_json(given) == {"a": [1, 2.5, None, None], "3": [None, True, "x"]}
    for alien in (b"x", {1}, object()):
        with pytest.raises(TypeError, match="cannot be written as JSON"):
            to_json([alien])


CHANGED = """
from dataclasses import dataclass
from heedful.store.recipe import Recipe

SEEN = []

@dataclass(frozen=True)
class First(Recipe):
    def make(self, workspace):
        SEEN.append(1)

@dataclass(frozen=True)
class Second(Recipe):
    def make(self, workspace):
        return SEEN
"""


def test_what_one_recipe_changes_while_it_is_made_does_not_rename_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is asked about the second class when the first recipe is made; the driver about both before."""
    driver, worker = (run_source(CHANGED, monkeypatch) for _ in range(2))
    expected = code_digest(driver.Second)
    monkeypatch.setitem(sys.modules, worker.__name__, worker)
    code_digest(worker.First)
    worker.SEEN.append(1)
    assert code_digest(worker.Second) == expected
