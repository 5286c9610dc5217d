"""Report on the house: the size of rooms and files, long functions, and imports that break the order in docs/architecture.md.

It fails if it finds a fault or if the drawing of the imports is out of date. With --update it draws them again.
Lines are shown and never limited: growth with a feature is right, and a ceiling only buys code golf.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT, LAB = "chronograd", "chronograd_lab"
MAX_LINES, MAX_PARAMETERS, MAX_COMPLEXITY = 60, 8, 20  # of a function
NUM_SHOWN = 8  # worst rows per fault, largest files
UNITS = ("_S", "_BYTES", "_W", "_USD")  # that a name ends with
DRAWING = re.compile(r"(?<=<!-- drawn by tools/house.py -->\n```text\n).*?(?=```)", re.DOTALL)


def imports_of(tree: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the modules that a file of a package imports by statements, absolute and relative, and by calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(named := node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield from [str(named.value)] if called in ("import_module", "__import__") else []


def modules_in_strings(tree: ast.AST) -> Iterator[str]:
    """Yield names of our modules that are full strings, as in `python -m NAME`: they run in another process."""
    values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return (value for value in values if isinstance(value, str) and re.fullmatch(rf"{PRODUCT}(_lab)?(\.\w+)+", value))


def room_of(module: str) -> str:
    """Return `predict` for chronograd.predict.step, `chronograd_lab.common` for chronograd_lab.common.rows, '' outside
    rooms.
    """
    package, room, *_ = *module.split("."), ""
    return {PRODUCT: room, LAB: room and f"{LAB}.{room}"}.get(package, "").removesuffix("__main__")


def rooms_in(block: str, prefix: str = "") -> list[list[str]]:
    """Return the rooms of each line of a list in docs/architecture.md."""
    lines = (re.findall(r"([a-z_]+)(?:/|\.py)(?=\s|$)", line.split("  ")[0]) for line in block.splitlines())
    return [[prefix + name for name in line] for line in lines if line]


def mixed_constants(tree: ast.Module) -> Iterator[ast.Assign]:
    """Yield assignments of several constants of a module whose types or units differ, or that take several lines."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                names = [target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()]
                units = {name.rpartition("_")[2] if name.endswith(UNITS) else "" for name in names}
                is_mixed = len({*map(_type_of, values)}) > 1 or len(units) > 1 or node.end_lineno != node.lineno
                is_constant = not any(isinstance(part, ast.Call | ast.Subscript) for part in ast.walk(node.value))
                if len(names) == len(targets) and is_constant and is_mixed:
                    yield node


def _type_of(value: ast.expr) -> str:
    """Return the type of a constant: `float` for 1 / 8 and 2 * 1.5."""
    match value:
        case ast.Constant():
            return type(value.value).__name__
        case ast.UnaryOp():
            return _type_of(value.operand)
        case ast.BinOp():
            left, right = _type_of(value.left), _type_of(value.right)
            return "float" if isinstance(value.op, ast.Div) or right == "float" else left
        case _:
            return type(value).__name__


class House:
    """The modules of product and lab with their imports, and the rooms in the order of docs/architecture.md."""

    def __init__(self, root: Path = ROOT) -> None:
        self.source, self.page = root / "src", root / "docs/architecture.md"
        product, lab, *_ = re.findall(r"```text\n(.*?)```", self.page.read_text().split("## The rooms")[1], re.DOTALL)
        self.lines = [*rooms_in(product), *rooms_in(lab, f"{LAB}.")]
        self.rank = {room: number for number, room in enumerate(chain(*self.lines))}
        self.modules = {self.module(path): path for path in sorted(self.source.rglob("*.py"))}
        self.trees = {name: ast.parse(path.read_text()) for name, path in self.modules.items()}
        parts = (path.relative_to(self.source).parent.parts for path in self.modules.values())
        self.imports = {n: set(imports_of(self.trees[n], p)) for n, p in zip(self.trees, parts, strict=True)}

    def module(self, path: Path) -> str:
        return ".".join(path.relative_to(self.source).with_suffix("").parts).removesuffix(".__init__")

    def upward(self, name: str) -> list[str]:
        """Return modules that a module names although their rooms are listed below its room, and the lab in the product."""
        others, own = self.imports[name].union(modules_in_strings(self.trees[name])), self.rank.get(room_of(name), 999)
        return sorted(m for m in others if self.rank.get(room_of(m), 0) > own or (m == LAB and LAB not in name))

    def circular(self) -> list[str]:
        """Return modules that import each other over any number of steps, including imports for types."""
        left = {
            name: {m for m in imported if m in self.modules} - {name, PRODUCT}
            for name, imported in self.imports.items()
        }
        # Remove modules without imports or importers until only cycles and the paths between them remain.
        while ends := left.keys() - set().union(*left.values()) | {name for name in left if not left[name]}:
            left = {name: found - ends for name, found in left.items() if name not in ends}
        return sorted(left)

    def drawing(self) -> str:
        """Return a matrix: the rooms of a line import those of the marked columns."""
        line = {room: n for n, rooms in enumerate(self.lines) for room in rooms}
        pairs = {(line.get(room_of(a)), line.get(room_of(b))) for a, found in self.imports.items() for b in found}
        names = [" ".join(rooms).replace(f"{LAB}.", "lab ") for rooms in self.lines]
        rows = ("".join("■" if (a, b) in pairs else "·" for b in range(a)) + "╲" for a in range(len(names)))
        return "".join(f"{name:>{max(map(len, names))}} {row}\n" for name, row in zip(names, rows, strict=True))

    def sizes(self) -> tuple[Counter[str], Counter[str]]:
        """Return the lines of each room and of each module."""
        modules = Counter({name: len(path.read_text().splitlines()) for name, path in self.modules.items()})
        rooms = Counter[str]()
        for name, lines in modules.items():
            rooms[room_of(name) or name] += lines
        return rooms, modules

    def faults(self) -> dict[str, list[tuple[int, str]]]:
        """Return the rows of each kind of fault, the worst first."""
        functions, classes = [], defaultdict(list)
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    functions.append(((node.end_lineno or 0) - node.lineno + 1, f"{name}.{node.name}"))
                elif isinstance(node, ast.ClassDef):
                    classes[node.name].append(name)
        faults = {
            "functions too long": [row for row in functions if row[0] > MAX_LINES],
            "functions with too many parameters": self._ruff("PLR0913", f"lint.pylint.max-args={MAX_PARAMETERS}"),
            "functions too complex": self._ruff("C901", f"lint.mccabe.max-complexity={MAX_COMPLEXITY}"),
            "different constants in one assignment": [
                (node.lineno, name) for name, tree in self.trees.items() for node in mixed_constants(tree)
            ],
            "class names used twice": [(len(m), f"{n}: {', '.join(m)}") for n, m in classes.items() if len(m) > 1],
            "upward imports": [(1, f"{name} imports {other}") for name in self.modules for other in self.upward(name)],
            "modules in circles": [(1, name) for name in self.circular()],
        }
        return {name: sorted(rows, reverse=True) for name, rows in faults.items()}

    def _ruff(self, rule: str, limit: str) -> list[tuple[int, str]]:
        command = f"ruff check --isolated --no-cache --ignore-noqa --exit-zero --output-format=json --config={limit} --select={rule}"
        text = subprocess.check_output([sys.executable, "-m", *command.split(), self.source])
        rows = ((row, self.module(Path(row["filename"]))) for row in json.loads(text))
        return [(int(row["message"].split("(")[1].split()[0]), f"{m}:{row['location']['row']}") for row, m in rows]


def listed(title: str, rows: Iterable[tuple[int, str]]) -> str:
    return "\n".join((title, *(f"  {number:>6,}  {text}" for number, text in rows)))


def main(root: Path = ROOT, *, is_update: bool = False) -> int:
    house = House(root)
    rooms, modules = house.sizes()
    total = sum(modules.values())
    lab = sum(lines for room, lines in rooms.items() if room.startswith(LAB))
    print(
        listed(f"lines: {total - lab:,} in the product, {lab:,} in the lab", ((n, r) for r, n in rooms.most_common()))
    )
    print(listed("largest files:", ((n, m) for m, n in modules.most_common(NUM_SHOWN))))
    faults = house.faults()
    for name, rows in faults.items():
        print(listed(f"{name}: {len(rows)}", rows[:NUM_SHOWN]))
    if is_update:
        house.page.write_text(DRAWING.sub(house.drawing(), house.page.read_text()))
    is_drawn = house.drawing() in house.page.read_text()
    if not is_drawn:
        print("docs/architecture.md does not show today's imports: run `python tools/house.py --update`")
    if is_sound := is_drawn and not any(faults.values()):
        print("The house is in order.")
    return not is_sound


if __name__ == "__main__":
    sys.exit(main(is_update="--update" in sys.argv[1:]))
