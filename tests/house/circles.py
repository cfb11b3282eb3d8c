"""No module imports itself by way of others, not even for type checking: a folder is read from its lowest module upwards."""

from __future__ import annotations

from collections.abc import Iterator

import grimp


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules each of which imports all others of its set, directly or by way of others, [[]] as the largest such sets.

    ``imports`` : of each module, the modules that it imports.
    """
    left = {module: set(others) for module, others in imports.items()}
    # What imports nothing that is left, or is imported by nothing that is left, is on no circle.
    while True:
        wanted = set().union(*left.values()) if left else set()
        out = {module for module, others in left.items() if not others & left.keys() or module not in wanted}
        if not out:
            break
        left = {module: others - out for module, others in left.items() if module not in out}
    reached = {module: _reached(module, left) for module in left}
    found: list[set[str]] = []
    for module in sorted(left):
        if module in reached[module] and not any(module in circle for circle in found):
            found.append({other for other in reached[module] if module in reached[other]})
    return found


def _reached(module: str, imports: dict[str, set[str]]) -> set[str]:
    seen, ahead = set[str](), [*imports[module]]
    while ahead:
        other = ahead.pop()
        if other not in seen and other in imports:
            seen.add(other)
            ahead += imports[other]
    return seen


def circles_of_package() -> Iterator[str]:
    """A finding for each circle in the package."""
    graph = grimp.build_graph("themis", exclude_type_checking_imports=False)
    for circle in circles({module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}):
        first, *others = sorted(circle)
        path = f"src/{first.replace('.', '/')}.py"
        yield f"{path}:1: imports itself by way of {', '.join(others)}; move what both need into a module below"
