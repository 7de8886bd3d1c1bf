"""Rules of the house that no linter knows: circles, full folders, classes that are two classes."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TypeGuard

import msgspec
import pytest

from limpet.cli.owners import owners
from limpet.linux.owned import Owned

CHECKOUT = Path(__file__).parents[2]
SOURCE = CHECKOUT / "src" / "limpet"
TESTS = CHECKOUT / "tests"
MOST_FILES = 12
"""Of a folder, its `__init__` left out; above it there is a second noun."""
FULLER = {
    *("base", "cli/commands", "cli/install", "cni", "datapath/tunnel"),
    "lab/world",
}
"""Folders of one noun that has more parts, up to `FULL` (docs/decisions/rooms.md)."""
FULLER_BESIDE = {"tests/cli/install", "tests/fuzz/targets"}
"""The same, of tests, bench and release."""
FULL = 14
MOST_LINES = 400
LONGER = {
    "paths/ladder/ladder.py": 452,
    "relay/client/choice.py": 431,
}
"""Files of one noun that has no second one in it. They grow no more."""
MOST_LINES_OF_TESTS = 700
OWN_ALARMS = {
    "limpet.base.timer",
    "limpet.cloud.publisher",
    "limpet.cloud.second_road.api_server",
    "limpet.cluster.datagrams.udp_sockets",
    "limpet.dns.server",
    "limpet.paths.probe.port",
    "limpet.relay.server.service",
}
"""Modules that ask the event loop for a time themselves: for something that is done once and never
called off, or of so many that a `Timer` costs too much. The reason stands where they ask."""
MOST_FIELDS = 12
MOST_ARGUMENTS = 8
FORMATS = {
    "limpet.cluster.kinds.grant.Grant",
    "limpet.cluster.kinds.network.Network",
    "limpet.kubernetes.kinds.objects.Metadata",
    "limpet.kubernetes.kinds.services.ServiceSpecView",
}
"""What a signed document says, and what every object of an API server has: the fields are those of
the format."""


SHOWN = (
    *("limpet.agent.policies.said", "limpet.agent.status", "limpet.picture"),
    *("limpet.cli.answers", "limpet.controller.admin.answers"),
    *("limpet.dns.status.answers", "limpet.lab.measure.shown", "limpet.relay.status"),
    *("limpet.cluster.exchange.messages", "limpet.relay.messages", "limpet.relay.stream.codec"),
)
"""What is shown to people has the name of what it shows, and what is said between nodes has the
protocol's, by which it is counted too."""
OF_EACH = {"Admin", "Metrics", "PutTable"}
"""What each process has: its verbs for administrators, its figures; and a change that each part of
the datapath with a table makes to its own."""
RIDDLE = re.compile(r"\s*(Of|That|Which|Whose)\b")
"""A docstring that begins so leans on the name above it."""
QUOTED = {
    "limpet.agent.policies.said.PodPolicies",
    "limpet.cli.commands.cluster.pod_list",
    "limpet.cli.commands.cluster.segment_list",
    "limpet.cluster.kinds.network.Encryption",
    "limpet.cluster.kinds.network.ServicesMode",
}
"""Docstrings that docs/reference has below a heading or a name of its own."""


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def modules() -> dict[str, ast.Module]:
    """Every module by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = parsed(path.read_text(encoding="utf-8"))
    return found


@cache
def nodes_of(module: ast.Module) -> tuple[ast.AST, ...]:
    """All that is in it, walked once for all who look."""
    return tuple(ast.walk(module))


@cache
def imports_of(name: str) -> set[str]:
    """Modules of ours that it imports anywhere: at the top, in a function, for types only."""
    found = set()
    for node in nodes_of(modules()[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return (found & modules().keys()) - {name, "limpet"}


def circles() -> Iterator[list[str]]:
    """Groups of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(imports_of(name)):
            if other not in index:
                yield from visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group: list[str] = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                yield sorted(group)

    for name in sorted(modules()):
        if name not in index:
            yield from visit(name)


def arrows() -> set[tuple[str, str]]:
    """From room to room, as imported; what another arrow's end imports anyway is left out."""
    direct: dict[str, set[str]] = {}
    for name in modules():
        room = name.split(".")[1:2]
        others = {other.split(".")[1] for other in imports_of(name)}
        if room and room != ["__main__"]:
            direct.setdefault(room[0], set()).update(others - set(room))

    def below(room: str) -> set[str]:
        return direct[room].union(*map(below, direct[room]))

    return {
        (room, other)
        for room, others in direct.items()
        for other in others - set().union(*map(below, others))
    }


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for name, tree in modules().items():
        for node in nodes_of(tree):
            if isinstance(node, ast.ClassDef):
                yield f"{name}.{node.name}", node


def fields_of(node: ast.ClassDef) -> int:
    """Declared in its body, or assigned in `__init__`."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            declared |= {
                each.attr
                for each in ast.walk(method)
                if isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and isinstance(each.value, ast.Name)
                and each.value.id == "self"
            }
    return len(declared)


FLAT = {
    *(
        f"limpet.agent.status.cluster.{name}"
        for name in ("ClusterStatus", "Member", "TunnelStatus")
    ),
    "limpet.agent.status.node.Status",
    *(f"limpet.agent.status.paths.{name}" for name in ("Leg", "LegWay", "PeerStatus")),
    *(f"limpet.controller.admin.answers.{name}" for name in ("Heard", "NodeLine", "NodeShown")),
    *(f"limpet.controller.admin.answers.{name}" for name in ("NetworkChanged", "NetworkShown")),
}
"""Answers to people: cut along their nouns into bases, and one flat object in JSON, whose schema is
published."""


def fields_with_bases(name: str, node: ast.ClassDef) -> int:
    found: object = import_module(name.removesuffix(f".{node.name}"))
    found = getattr(found, node.name, None)
    if not isinstance(found, type):
        return 0  # a class in a class, which has no bases here
    if issubclass(found, msgspec.Struct):
        return len(found.__struct_fields__)
    return len(dataclasses.fields(found)) if dataclasses.is_dataclass(found) else 0


def arguments_of(node: ast.ClassDef) -> int:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            arguments = method.args
            return len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs) - 1
    return 0


def test_no_modules_import_each_other_in_a_circle_wherever_the_import_stands() -> None:
    assert list(circles()) == []


def test_every_folder_says_what_it_is_for_and_has_room() -> None:
    for folder in sorted({path.parent for path in SOURCE.rglob("*.py")}):
        face = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert face, f"{folder}: its __init__ does not say what it is for"
        files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        name = str(folder.relative_to(SOURCE))
        most = FULL if name in FULLER else MOST_FILES
        assert len(files) <= most, f"{folder}: {len(files)} files, look for a second noun"


@pytest.mark.parametrize("beside", ["tests", "bench", "release"])
def test_folders_beside_the_source_have_room_as_well(beside: str) -> None:
    """`conftest` is left out like `__init__`: pytest says where it stands."""
    for folder in sorted({path.parent for path in (CHECKOUT / beside).rglob("*.py")}):
        names = {path.name for path in folder.glob("*.py")} - {"__init__.py", "conftest.py"}
        most = FULL if str(folder.relative_to(CHECKOUT)) in FULLER_BESIDE else MOST_FILES
        assert len(names) <= most, f"{folder}: {len(names)} files, look for a second noun"


@pytest.mark.parametrize("beside", ["bench", "release"])
def test_every_folder_of_the_bench_and_of_releases_says_what_it_is_for(beside: str) -> None:
    for folder in sorted({path.parent for path in (CHECKOUT / beside).rglob("*.py")}):
        face = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert face, f"{folder}: its __init__ does not say what it is for"


def test_no_file_is_two_files() -> None:
    bounds = {
        **dict.fromkeys(SOURCE.rglob("*.py"), MOST_LINES),
        **dict.fromkeys(TESTS.rglob("*.py"), MOST_LINES_OF_TESTS),
        **{SOURCE / name: most for name, most in LONGER.items()},
    }
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in bounds}
    large = [f"{path}: {count} lines" for path, count in lengths.items() if count > bounds[path]]
    assert not large, "\n".join(large)


@pytest.mark.parametrize(
    ("what", "count", "most"),
    [("fields", fields_of, MOST_FIELDS), ("arguments", arguments_of, MOST_ARGUMENTS)],
)
def test_no_class_is_two_classes(
    what: str, count: Callable[[ast.ClassDef], int], most: int
) -> None:
    large = {
        f"{name}: {count(node)} {what}"
        for name, node in classes()
        if count(node) > most and name not in FORMATS
    }
    assert not large, "\n".join(sorted(large))


def test_the_picture_of_the_rooms_shows_what_they_import() -> None:
    text = (SOURCE.parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    picture = text.partition("```mermaid")[2].partition("```")[0]
    drawn = re.findall(r"^ *(\w+) --> (\w+)$", picture, re.MULTILINE)
    assert sorted(drawn) == sorted(arrows())


def decodes_by_type(node: ast.AST) -> bool:
    """Whether it asks msgspec what a type holds; `decode` does where it is given one."""
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        return (node.module or "").partition(".")[0] == "msgspec" and bool(
            names & {"convert", "json", "msgpack", "Decoder", "decode"}
        )
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    called = node.func
    by_type = called.attr in ("convert", "Decoder") or (
        called.attr == "decode" and any(each.arg == "type" for each in node.keywords)
    )
    return by_type and ast.unparse(called).startswith("msgspec.")


def test_only_one_module_decodes_by_type() -> None:
    """Two threads that use a type first at once crash msgspec; there they wait for each other."""
    found = [
        name
        for name, module in modules().items()
        if name != "limpet.base.decoding" and any(map(decodes_by_type, nodes_of(module)))
    ]

    assert found == []


def test_only_the_wiring_of_an_agent_takes_the_clusters_news() -> None:
    """Everybody else has `hear`, so that one place says who hears what, in which order."""
    found = {
        name
        for name, module in modules().items()
        for each in nodes_of(module)
        if isinstance(each, ast.Attribute)
        and each.attr == "subscribe"
        and ast.unparse(each.value).endswith(("membership", "replica"))
    }

    # A membership is a typed face of its own replica; policies are there without a cluster, too.
    assert found == {"limpet.agent.main", "limpet.agent.wiring", "limpet.cluster.membership"}


def test_a_name_is_of_one_class() -> None:
    found: dict[str, list[str]] = {}
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not name.startswith(SHOWN):
                found.setdefault(node.name, []).append(name)
    several = {
        name: where
        for name, where in found.items()
        if len(where) > 1 and not name.startswith("_") and name not in OF_EACH
    }

    assert several == {}


def test_all_else_that_is_done_later_is_a_timers() -> None:
    found = {
        name
        for name, module in modules().items()
        for node in nodes_of(module)
        if isinstance(node, ast.Attribute) and node.attr in ("call_later", "call_at")
    }

    assert found == OWN_ALARMS


def local_imports_without_a_reason(source: str) -> Iterator[int]:
    """Lines of imports in functions with no comment on them, directly above, or above the imports
    that they follow."""
    lines = ["", *source.splitlines()]
    within = (
        node
        for function in nodes_of(parsed(source))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    reasoned_to = 0
    for node in sorted(within, key=lambda each: each.lineno):
        end = node.end_lineno or node.lineno
        above = lines[node.lineno - 1].strip()
        if (
            above.startswith("#")
            or any("#" in line for line in lines[node.lineno : end + 1])
            or not "".join(lines[reasoned_to + 1 : node.lineno]).strip()
        ):
            reasoned_to = end
        else:
            yield node.lineno


def test_an_import_in_a_function_says_why_it_stands_there() -> None:
    """But for the command line, where each command imports what it alone needs."""
    assert list(local_imports_without_a_reason(UNREASONED)) == [3, 11]
    found = [
        f"{path}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in ("cli", "__main__.py")
        for line in local_imports_without_a_reason(path.read_text(encoding="utf-8"))
    ]
    assert not found, "imports in functions without a comment: " + " ".join(found)


def test_an_import_for_types_alone_says_why_it_is_none_otherwise() -> None:
    found = [
        f"{path}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in type_imports_without_a_reason(path.read_text(encoding="utf-8"))
    ]
    assert not found, "imports for types alone without a comment: " + " ".join(found)


def type_imports_without_a_reason(source: str) -> list[int]:
    """Lines of `if TYPE_CHECKING` with no comment on them and none directly above."""
    lines = ["", *source.splitlines()]
    return [
        node.lineno
        for node in nodes_of(parsed(source))
        if isinstance(node, ast.If)
        and ast.unparse(node.test).endswith("TYPE_CHECKING")
        and "#" not in lines[node.lineno]
        and not lines[node.lineno - 1].strip().startswith("#")
    ]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("if TYPE_CHECKING:\n    import a", [1]),
        ("if typing.TYPE_CHECKING:\n    import a", [1]),
        ("if TYPE_CHECKING:  # it is large\n    import a", []),
        ("# It is large.\nif TYPE_CHECKING:\n    import a", []),
    ],
)
def test_an_import_for_types_alone_without_a_reason_is_found(source: str, found: list[int]) -> None:
    assert type_imports_without_a_reason(source) == found


UNREASONED = """
def one():
    import a
    import b  # it is large
    import c

def two():
    # Only here.
    from d import (e, f)
    g()
    import h
"""


def test_no_class_gets_more_fields_than_that_from_its_bases() -> None:
    large = {name for name, node in classes() if fields_with_bases(name, node) > MOST_FIELDS}
    assert large - FORMATS == FLAT


def test_no_lambda_waits_for_what_is_made_further_below() -> None:
    assert lambdas_ahead(ast.parse(AHEAD).body[0]) == ["later"]
    early = {f"{name}: {found}" for name, node in classes() for found in lambdas_ahead(node)}
    assert not early, "a lambda that names what does not exist yet: " + "; ".join(sorted(early))


SWITCHES = {
    "onward": "where packets of a relay's end go now: another with each way of its pair",
    "close": "who ends a visitor's connection: another with each hand that it is passed to",
    "excepthook": "Python's own",
}
"""Attributes that another sets again and again, so that no constructor can take it, and why."""


def test_nobody_puts_what_is_to_be_called_into_another() -> None:
    assert [line for line, _ in put_into_others(ast.parse(PUT))] == [2, 3, 4, 5, 6, 7]
    put = {
        f"{name}, line {line}: {attribute}"
        for name, module in modules().items()
        for line, attribute in put_into_others(module)
        if attribute not in SWITCHES
    }
    assert not put, f"what is called is put into another's attribute: {sorted(put)}"


AHEAD = """
class Weld:
    def __init__(self):
        self.now = 1
        self.one = lambda: self.now + self.later
        self.later = 2
"""


PUT = """
other.call = lambda: 1
self.other.call = lambda: self.later
other.call = partial(print, 1)
other.call = self.hear
other.call = free
self.other.hears.append(self.hear)
self.call = lambda: 1
self.hears.append(self.hear)
other.call = self.known
class Weld:
    def hear(self):
        self.known = 1
def free():
    pass
"""


def put_into_others(module: ast.Module) -> list[tuple[int, str]]:
    """Lines that put something to be called into an attribute of anybody but `self`, or into a list
    there, and its name: a constructor takes such a thing."""
    held = {
        id(e) for found in nodes_of(module) if isinstance(found, ast.ClassDef) for e in found.body
    }
    free, methods = set[str](), set[str]()
    for each in nodes_of(module):
        if isinstance(each, ast.FunctionDef) and not each.decorator_list:
            (methods if id(each) in held else free).add(each.name)

    def is_called(value: ast.expr) -> bool:
        return (
            isinstance(value, ast.Lambda)
            or (isinstance(value, ast.Call) and ast.unparse(value.func) == "partial")
            or (isinstance(value, ast.Name) and value.id in free)
            or (isinstance(value, ast.Attribute) and value.attr in methods)
        )

    put: list[tuple[int, ast.expr]] = []
    for each in nodes_of(module):
        match each:
            case ast.Assign(targets, value) if is_called(value):
                put += [(each.lineno, to) for to in targets]
            case ast.Call(ast.Attribute(to, "append" | "add"), [value]) if is_called(value):
                put.append((each.lineno, to))
    return [
        (line, to.attr) for line, to in put if isinstance(to, ast.Attribute) and not is_of_self(to)
    ]


def lambdas_ahead(node: ast.stmt) -> list[str]:
    """Attributes of `self` that a lambda of `__init__` names, and that are assigned below it."""
    found = []
    for method in ast.walk(node):
        if not isinstance(method, ast.FunctionDef) or method.name != "__init__":
            continue
        made: dict[str, int] = {}
        for each in ast.walk(method):
            if is_of_self(each) and isinstance(each.ctx, ast.Store):
                made[each.attr] = min(each.lineno, made.get(each.attr, each.lineno))
        for outer in ast.walk(method):
            if isinstance(outer, ast.Lambda):
                named = {each.attr for each in ast.walk(outer) if is_of_self(each)}
                found += [name for name in sorted(named) if made.get(name, 0) > outer.lineno]
    return found


def is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def test_what_a_part_or_a_module_owns_is_among_what_uninstall_asks() -> None:
    folder = Path("/nonexistent")
    parts = [
        getattr(import_module(name.removesuffix(f".{node.name}")), node.name).owned(folder)
        for name, node in classes()
        if any(ast.unparse(base).startswith("Part[") for base in node.bases)
    ]
    others = [
        import_module(name).OWNED
        for name, tree in modules().items()
        for each in tree.body
        if isinstance(each, ast.Assign | ast.AnnAssign) and "OWNED" in names_of(each)
    ]
    assert len(parts) >= 6
    assert len(others) >= 3
    asked = {_marks(each) for each in owners(folder)}
    assert {_marks(each) for each in (*parts, *others)} == asked


def _marks(owned: Owned) -> tuple[object, ...]:
    """What tells it from others': `ends` are made anew each time."""
    sysctls = tuple(sorted(map(str, owned.sysctls)))
    return owned.links, owned.tables, sysctls, owned.deletions


def docstrings(name: str, node: ast.AST) -> Iterator[tuple[str, str]]:
    """Each with its module, class or function; below an assignment, with the line as well."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    own = node.body[:1] if isinstance(node, documented) else []
    for each in ast.iter_child_nodes(node):
        match each:
            case ast.Expr(ast.Constant(str(text))):
                yield (name if each in own else f"{name}, line {each.lineno}"), text
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from docstrings(f"{name}.{each.name}", each)
            case ast.stmt() | ast.excepthandler():
                yield from docstrings(name, each)


def test_a_docstring_stands_by_itself() -> None:
    riddles = {
        f"{place}: {text.strip().splitlines()[0]}"
        for name, tree in modules().items()
        for place, text in docstrings(name, tree)
        if RIDDLE.match(text) and place not in QUOTED
    }
    assert not riddles, "\n".join(sorted(riddles))


@pytest.mark.parametrize(
    "source",
    [
        '"""Of a module."""',
        'class A:\n    """Whose it is."""',
        'class A:\n    def f(self):\n        """Which one."""',
        'x = 1\n"""That is one.\n\nMore.\n"""',
        'class A:\n    def __init__(self):\n        self.x = 1\n        """Of it."""',
    ],
)
def test_a_riddle_is_found_wherever_it_stands(source: str) -> None:
    assert [bool(RIDDLE.match(text)) for _, text in docstrings("m", ast.parse(source))] == [True]


def names_of(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {each.id for each in targets if isinstance(each, ast.Name)}


PAIRS = {
    ("agent", "agent.answers"),
    ("agent", "agent.answers.picture"),
    ("agent", "agent.figures"),
    ("agent", "agent.happenings"),
    ("agent", "agent.names"),
    ("agent", "agent.policies"),
    ("agent.answers", "agent.answers.picture"),
    ("cli", "cli.usage"),
    ("cli.doctor", "cli.doctor.cluster"),
    ("cli.doctor", "cli.doctor.firewall"),
    ("cli.doctor", "cli.doctor.installed"),
    ("cli.doctor", "cli.doctor.machine"),
    ("cli.doctor", "cli.doctor.names"),
    ("cli.doctor", "cli.doctor.pods"),
    ("cli.doctor", "cli.install"),
    ("cli.doctor.cluster", "cli.install"),
    ("cli.install", "cli.install.flannel"),
    ("cli.install", "cli.install.units"),
    ("cloud", "cloud.second_road"),
    ("cluster", "cluster.exchange"),
    ("cluster", "cluster.kinds"),
    ("cluster", "cluster.snapshot"),
    ("cluster", "cluster.topology"),
    ("cluster.datagrams", "cluster.exchange"),
    ("controller", "controller.orchestrator"),
    ("controller", "controller.state"),
    ("controller.api", "controller.state"),
    ("controller.communities", "controller.state"),
    ("controller.orchestrator", "controller.orchestrator.node_keeper"),
    ("controller.orchestrator.node_keeper", "controller.state"),
    ("controller.picture", "controller.state"),
    ("datapath.node", "datapath.node.pod"),
    ("datapath.node.pod", "datapath.node.ports"),
    ("datapath.overlay", "datapath.overlay.filter"),
    ("datapath.services", "datapath.services.sockets"),
    ("datapath.tunnel", "datapath.tunnel.ipsec"),
    ("datapath.tunnel", "datapath.tunnel.wireguard"),
    ("dns", "dns.forward"),
    ("lab", "lab.measure"),
    ("lab", "lab.needs"),
    ("lab", "lab.world"),
    ("lab.kube", "lab.needs"),
    ("lab.kube", "lab.world"),
    ("lab.measure", "lab.world"),
    ("lab.needs", "lab.world"),
    ("paths.ladder", "paths.probe"),
}
"""A module at the top of a folder puts together what is below (`main`, `wiring`, `doctor.doctor`,
`tunnel.setup`), and that takes values beside the top; or two nouns need a value of each other. No
circle of modules comes of it."""


def folder_of(module: str) -> str:
    """As it is named below `limpet`."""
    parts = module.split(".")
    is_folder = (SOURCE.parent / Path(*parts)).is_dir()
    return ".".join(parts[1:] if is_folder else parts[1:-1])


def pairs(imports: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Of folders, in the order of the alphabet."""
    return {(one, other) for one, other in imports if one < other and (other, one) in imports}


def test_a_folder_and_another_import_each_other_only_where_it_is_known() -> None:
    imports = {
        (folder_of(name), folder_of(other)) for name in modules() for other in imports_of(name)
    }

    assert pairs(imports) == PAIRS


def test_a_pair_is_found_by_both_its_imports() -> None:
    assert pairs({("a", "b"), ("b", "a"), ("b", "c"), ("c", "c")}) == {("a", "b")}
