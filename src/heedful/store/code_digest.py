"""Digests of users' code: the sources of a module and of every local module that it imports, in functions as well.

Local modules are the user's own: neither heedful nor the standard library nor an installed package; a project installed
with `pip install --editable` is local. Imports are read from the syntax trees, and nothing is imported to find them.
Comments count, paths do not. In a notebook the cells count that define a class and the names they read.
"""

from __future__ import annotations

import ast
import hashlib
import multiprocessing
import os
import pkgutil
import sys
import sysconfig
import warnings
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name, spec_from_file_location
from itertools import accumulate
from pathlib import Path
from symtable import SymbolTable, symtable
from types import FunctionType

_PACKAGE = __name__.split(".")[0]
_MAIN = ("__main__", "__mp_main__")
_IMPORTERS = ("import_module", "__import__", "resolve_name", "importorskip")
_HIDING = (*_IMPORTERS, "run_path", "run_module", "spec_from_file_location", "SourceFileLoader")
"""Functions that run code under a name that the source need not contain."""
_EVALUATING = ("eval", "exec", "builtins.eval", "builtins.exec")


class UnseenCodeWarning(UserWarning):
    """Some of the user's code can change without being noticed."""


def code_digest(thing: type | FunctionType) -> str:
    """The `module_digest` of the module that defines a class or a function; empty if it has no source."""
    return module_digest(thing.__module__, thing.__qualname__.split(".")[0])


_digests: dict[str, tuple[dict[str, object], str]] = {}
"""The digest of each module, with the load state of the modules that it was computed from."""
_sources: dict[str, tuple[object, bytes | None]] = {}
"""The source of each module, with the load state of the module when the source was read."""


def module_digest(module: str, name: str = "") -> str:
    """A digest of the sources of a module and of the local modules that it imports; empty if it has no source.

    A source counts as it is when it is first read, until its module is reloaded. One warning names what is not seen.

    Args:
        name: in a notebook, the class or function whose cells count.
    """
    states, digest = _digests.get(module, ({}, ""))
    if states and all(_load_state(known) is state for known, state in states.items()):
        return digest
    digests: dict[str, str] = {}
    unseen: list[str] = []
    left = [module]
    while left:
        current = left.pop()
        source = _read_source(current, name)
        if source is not None and current not in digests:
            digests[current] = hashlib.sha256(source).hexdigest()
            imports, hidden = _scan(current, source)
            left.extend(imports)
            unseen.extend(f"{current}, {text}" for text in hidden)
    if module in digests:
        lines = [f"{'__main__' if local in _MAIN else local} {digests[local]}" for local in sorted(digests)]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    else:
        unseen.append(f"{module}, which has no source")
        digest = ""
    if not _cells(module):
        _digests[module] = {known: _load_state(known) for known in (module, *digests)}, digest
    if unseen and is_user_module(module) and multiprocessing.parent_process() is None:
        warnings.warn(
            f"cannot notice changes of the code behind {'; '.join(unseen)}: increase the `revision` of recipes that "
            "use it when it changes",
            UnseenCodeWarning,
            stacklevel=2,
        )
    return digest


def _load_state(module: str) -> object:
    """An object that is replaced when the module is loaded or reloaded."""
    loaded = sys.modules.get(module)
    return getattr(loaded, "__spec__", None) or loaded


def _read_source(module: str, name: str) -> bytes | None:
    """The source of a module, or the content of a compiled one; None if it has neither."""
    if cells := _cells(module):
        return _select_cells(cells, name).encode("utf-8", "surrogatepass")
    state = _load_state(module)
    if module not in _sources or _sources[module][0] is not state:
        spec = _find_spec(module)
        source = None
        if spec is not None and spec.origin is None and spec.submodule_search_locations is not None:
            source = b""  # a folder without __init__.py
        elif spec is not None and spec.origin is not None and os.path.isfile(spec.origin):
            source = Path(spec.origin).read_bytes()
        elif (read := getattr(getattr(spec, "loader", None), "get_source", None)) is not None:
            with suppress(Exception):  # an archive that is gone, or another loader
                source = read(module).encode("utf-8", "surrogatepass")
        _sources[module] = state, source
    return _sources[module][1]


@lru_cache(maxsize=4096)
def _scan(module: str, source: bytes) -> tuple[list[str], list[str]]:
    """The local modules that a source imports, and the lines that may run other code."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # a compiled module
        return [], []
    spec = _find_spec(module)
    package = (spec.parent or "") if spec is not None else ""
    names, words, hidden = _read_names(tree, package)
    imports = {module: None}
    for name, is_needed in names.items():
        steps = _local_steps(name)
        imports |= dict.fromkeys(steps)
        if is_needed and not steps and _find_spec(name.split(".")[0]) is None:
            hidden.append(f"import of {name}, which is not found")
    imports |= dict.fromkeys(_local_steps(module))
    for package_name in (name.removesuffix(".*") for name in names if name.endswith(".*")):
        imports |= dict.fromkeys(_submodules(package_name))
    if package == module and b"__getattr__" in source:  # submodules that are loaded when they are asked for
        imports |= dict.fromkeys(_submodules(module))
    left = [*imports]
    for imported in left:  # which grows: `import a`, then `a.b.c`
        mentioned = [inner for inner in _submodules(imported) if inner.rpartition(".")[2] in words]
        left += [inner for inner in mentioned if inner not in imports]
        imports |= dict.fromkeys(mentioned)
    return [*imports], hidden


def _read_names(tree: ast.Module, package: str) -> tuple[dict[str, bool], set[str], list[str]]:
    """Names that may be modules and whether they must be; attributes and texts; lines that may run other code.

    A star import of `a` is the name `a.*`. Imports under `try` and `if` may fail.
    """
    names: dict[str, bool] = {}
    words: set[str] = set()
    hidden: list[str] = []
    optional = {node for outer in ast.walk(tree) if isinstance(outer, ast.Try | ast.If) for node in ast.walk(outer)}
    literal: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name: node not in optional for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_name("." * node.level + (node.module or ""), package)
            names[base] = node not in optional
            for alias in node.names:
                names.setdefault(f"{base}.{alias.name}", False)
                if alias.name in _HIDING and alias.asname is not None:
                    hidden.append(f"line {node.lineno}: {alias.name}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _IMPORTERS:
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                name = node.args[0].value.replace(":", ".")
                names.setdefault(_absolute_name(name, package), node not in optional)
                literal.add(node.func)
        elif isinstance(node, ast.Name | ast.Attribute) and node not in literal:
            text = ast.unparse(node)
            if text in _EVALUATING or text.rpartition(".")[2] in _HIDING:
                hidden.append(f"line {node.lineno}: {text}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
        if isinstance(node, ast.Attribute):
            words.add(node.attr)
    return names, words, hidden


def _absolute_name(name: str, package: str) -> str:
    try:
        return resolve_name(name, package)
    except (ImportError, ValueError):  # above the top of the package: it fails when it is run
        return name.lstrip(".")


def _local_steps(name: str) -> list[str]:
    """Of the name `a.b.c` the local modules among `a`, `a.b` and `a.b.c`."""
    steps = accumulate(name.split("."), "{}.{}".format)
    return [module for module in steps if _find_spec(module) is not None and is_user_module(module)]


def _submodules(package: str) -> list[str]:
    spec = _find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return [f"{package}.{entry.name}" for entry in pkgutil.iter_modules(folders)] if folders else []


def _find_spec(module: str) -> ModuleSpec | None:
    """The specification of a module; unlike `importlib.util.find_spec` this does not import its package."""
    if (loaded := sys.modules.get(module)) is not None:
        spec, file = getattr(loaded, "__spec__", None), getattr(loaded, "__file__", None)
        return spec_from_file_location(module, file) if spec is None and isinstance(file, str) else spec
    folders = None
    if package := module.rpartition(".")[0]:
        above = _find_spec(package)
        folders = above.submodule_search_locations if above is not None else None
        if folders is None:
            return None
    for finder in sys.meta_path:
        with suppress(Exception):  # finders of other packages
            if (spec := finder.find_spec(module, folders)) is not None:
                return spec
    return None


def is_user_module(module: str) -> bool:
    """Whether a module is the user's own: neither heedful nor the standard library nor an installed package."""
    root = module.split(".")[0]
    if root in _MAIN or root == _PACKAGE:
        return root in _MAIN  # also in a worker, whose own main module is another
    for name in (module, root):  # a module made by code has no file: its package tells
        file = getattr(sys.modules.get(name), "__file__", None) or getattr(_find_spec(name), "origin", None)
        if isinstance(file, str) and os.path.isabs(file):
            return not _is_installed(file)
    return not is_standard(module)


def is_standard(module: str) -> bool:
    """Whether a module has the name of one of the standard library."""
    return module.split(".")[0] in sys.stdlib_module_names


@lru_cache(maxsize=2**16)
def _is_installed(file: str) -> bool:
    library = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
    return file.startswith(library) or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


# Notebooks


def _cells(module: str) -> list[str]:
    """The cells that a notebook has executed, in this order; empty if the module is not a notebook."""
    cells = getattr(sys.modules.get(module), "In", None) if module == "__main__" else None
    return cells if isinstance(cells, list) else []


def _select_cells(cells: list[str], name: str) -> str:
    """The cells that define a name and all names that these cells read, each by its latest definition."""
    latest = {bound: number for number, cell in enumerate(cells) for bound in _cell_names(cell)[0]}
    selected: set[int] = set()
    left = [name]
    while left:
        number = latest.get(left.pop())
        if number is not None and number not in selected:
            selected.add(number)
            left.extend(_cell_names(cells[number])[1])
    return "\n".join(cells[number] for number in sorted(selected))


@lru_cache(maxsize=4096)
def _cell_names(cell: str) -> tuple[frozenset[str], frozenset[str]]:
    """The global names that a cell binds, and those that it reads, also in functions."""
    try:
        table = symtable(cell, "cell", "exec")
    except (SyntaxError, ValueError):
        return frozenset(), frozenset()
    bound = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return frozenset(bound), frozenset(_names_read(table))


def _names_read(table: SymbolTable) -> set[str]:
    symbols = [symbol for symbol in table.get_symbols() if symbol.is_referenced()]
    names = {symbol.get_name() for symbol in symbols if symbol.is_global() or table.get_type() == "module"}
    return names.union(*map(_names_read, table.get_children()))
