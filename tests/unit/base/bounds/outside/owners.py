"""Whose attribute it is that code asks, by the classes that the source names: names of classes are
unique in the tree, and attributes called `rates` are not."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Assigned = tuple[ast.expr, ast.expr | None, ast.expr | None]
"""Target, value and annotation."""


@dataclass
class _Class:
    bases: list[str]
    types: dict[str, str] = field(default_factory=dict)
    """Class of each attribute, and of what each method returns; of a container, that of what is in
    it."""


@dataclass(frozen=True)
class _Function:
    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: str
    """Empty: a module."""
    assigned: list[_Assigned]


class Owners:
    """Of all modules together. What it cannot follow is nobody's."""

    def __init__(self, modules: Iterable[ast.Module]) -> None:
        trees = list(modules)
        nodes = [node for tree in trees for node in ast.walk(tree)]
        of_ours = [node for node in nodes if isinstance(node, ast.ClassDef)]
        self._classes = {node.name: _Class(list(map(_last, node.bases))) for node in of_ours}
        self._aliases = dict(self._named_types(trees))
        self._returned = {
            node.name: self._named(node.returns) for node in nodes if isinstance(node, _FUNCTIONS)
        }
        """By the name of a function."""
        self._methods: set[tuple[str, str]] = set()
        holders: list[tuple[str, list[ast.stmt]]] = [
            *((node.name, node.body) for node in of_ours),
            *(("", tree.body) for tree in trees),
        ]
        self._functions = [
            _Function(each, owner, list(_assigned(each)))
            for owner, body in holders
            for each in body
            if isinstance(each, _FUNCTIONS)
        ]
        for node in of_ours:
            self._declare(node)
        for _ in range(2):  # one may be made of what another has
            for function in self._functions:
                self._learn(function)

    def _named_types(self, trees: list[ast.Module]) -> Iterator[tuple[str, str]]:
        """Names that modules give to types."""
        for tree in trees:
            for node in tree.body:
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value):
                        yield name, self._named(value, {})

    def _named(self, annotation: ast.expr | None, aliases: dict[str, str] | None = None) -> str:
        """The first class of ours in an annotation; empty: none."""
        if annotation is None:
            return ""
        known = self._aliases if aliases is None else aliases
        for node in ast.walk(annotation):
            name = _last(node)
            if name in self._classes:
                return name
            if known.get(name):
                return known[name]
        return ""

    def _declare(self, node: ast.ClassDef) -> None:
        types = self._classes[node.name].types
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                types[each.target.id] = self._named(each.annotation)
            if isinstance(each, _FUNCTIONS):
                types[each.name] = self._named(each.returns)
                self._methods.add((node.name, each.name))

    def _learn(self, function: _Function) -> None:
        """Of what class the attributes are that it assigns to."""
        mine = [
            (target.attr, value, annotation)
            for target, value, annotation in function.assigned
            if isinstance(target, ast.Attribute) and _last(target.value) == "self"
        ]
        if function.owner and mine:
            within, types = self._known_in(function), self._classes[function.owner].types
            for name, value, annotation in mine:
                found = self._named(annotation) or self._type(value, within)
                types[name] = found or types.get(name, "")

    def _known_in(self, function: _Function) -> dict[str, str]:
        """Classes of its names."""
        given = function.node.args
        within = {
            each.arg: self._named(each.annotation)
            for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)
        }
        within["self"] = within["cls"] = function.owner
        for target, value, annotation in function.assigned:
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and not within.get(name.id):
                    within[name.id] = self._named(annotation) or self._type(value, within)
        return within

    def _type(self, node: ast.expr | None, within: dict[str, str]) -> str:
        match node:
            case ast.Name(id=name):
                return within.get(name, "")
            case ast.Attribute(value=value, attr=attr):
                return self._attribute(self._type(value, within), attr)
            case ast.Call(func=ast.Name(id=name)) if name in self._classes:
                return name
            case ast.Call(func=ast.Name(id=name)) if name in self._returned:
                return self._returned[name]
            case ast.Call(func=ast.Subscript(value=value)):
                return self._named(value)
            case ast.Call(func=ast.Attribute(value=value, attr=attr)):
                owner = self._type(value, within)
                # Of a container: what is in it.
                return self._attribute(owner, attr) if self.owner(owner, attr) else owner
            case ast.Call(args=[first, *_]):
                return self._type(first, within)
            case ast.Subscript(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                return self._type(value, within)
            case ast.BoolOp(values=values):
                return next(filter(None, (self._type(each, within) for each in values)), "")
            case ast.IfExp(body=body, orelse=other):
                return self._type(body, within) or self._type(other, within)
            case ast.Dict(values=[value, *_]) | ast.List(elts=[value, *_]):
                return self._type(value, within)
            case ast.Tuple(elts=[value, *_]):
                return self._type(value, within)
        return ""

    def _attribute(self, owner: str, attr: str) -> str:
        found = self.owner(owner, attr)
        return self._classes[found].types[attr] if found else ""

    def owner(self, name: str, attr: str) -> str:
        """The class, of it and of those that it is made of, which has the attribute."""
        known = self._classes.get(name)
        if known is None:
            return ""
        if attr in known.types:
            return name
        return next(filter(None, (self.owner(each, attr) for each in known.bases)), "")

    def attributes(self) -> dict[tuple[str, str], str]:
        """Class and name of each attribute that is of a class which is known, and that class."""
        return {
            (name, attr): found
            for name, each in self._classes.items()
            for attr, found in each.types.items()
            if found and (name, attr) not in self._methods
        }

    def asked(self, names: set[str]) -> set[tuple[str, str, str]]:
        """Class and name of each attribute with one of these names of which a method is called,
        with its name, or that is gone through, waited for or handed on, with none."""
        return {
            found
            for function in self._functions
            if any(
                isinstance(n, ast.Attribute) and n.attr in names for n in ast.walk(function.node)
            )
            for found in self._asked_in(function, names)
        }

    def _asked_in(self, function: _Function, names: set[str]) -> Iterator[tuple[str, str, str]]:
        within = self._known_in(function)
        called: dict[str, list[ast.expr]] = {}
        for target, value, _ in function.assigned:
            if isinstance(target, ast.Name) and value is not None:
                called.setdefault(target.id, []).append(value)
        for node in ast.walk(function.node):
            for part, method in _worked_with(node, called):
                for each in ast.walk(part):
                    if isinstance(each, ast.Attribute) and each.attr in names:
                        owner = self.owner(self._type(each.value, within), each.attr)
                        yield owner, each.attr, method


def _worked_with(
    node: ast.AST, called: dict[str, list[ast.expr]]
) -> Iterator[tuple[ast.expr, str]]:
    """`called`: what names of the function stand for."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if name in called:
            yield from ((each, method) for each in called[name])
        case ast.Call(func=ast.Attribute(value=within, attr=method)):
            yield within, method
        case ast.comprehension(iter=within) | ast.For(iter=within):
            yield within, ""
        case ast.withitem(context_expr=within):
            yield within, ""
    if isinstance(node, ast.Call):
        yield from ((each, "") for each in node.args if isinstance(each, ast.Attribute))


def _assigned(function: ast.AST) -> Iterator[_Assigned]:
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield target, value, None
            case ast.AnnAssign(target=target, value=value, annotation=annotation):
                yield target, value, annotation
            case ast.NamedExpr(target=target, value=value):
                yield target, value, None
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                yield target, value, None
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                yield target, value, None


def _last(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _last(value)
        case ast.Constant(value=str() as text):
            return text
    return ""
