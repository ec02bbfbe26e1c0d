"""Templates of pages: texts are escaped, and an undefined name is an error.

Control characters are escaped too, because names of agents and texts of models may turn the direction of writing.
The value of a field in a form keeps them with the filter `e`, because it is sent again.
"""

from functools import cache
from importlib.resources import files
from typing import Any

from agentic_trading.operate.lines import printable_lines


@cache
def packaged(package: str, name: str, *, folder: str = "templates") -> str:
    """Return the text of a file in a folder of a package. Blocks."""
    return files(package).joinpath(folder).joinpath(name).read_text(encoding="utf-8")


def rendered(template: str, **values: object) -> str:
    """Return the text of a template. Blocks.

    Args:
        template: `PACKAGE/FILE`, a file in the folder `templates` of a package. The same names are used in
            `extends`, `include` and `import` of a template.
        **values: The values of its names.

    """
    return str(_environment().get_template(template).render(**values))


@cache
def _environment() -> Any:
    import jinja2  # noqa: PLC0415 - a run without a page does not need it

    def load(template: str) -> str:
        package, _, name = template.partition("/")
        return packaged(package, name)

    def legible(value: object) -> object:
        is_text = isinstance(value, str) and not hasattr(value, "__html__")  # HTML has been escaped before
        return printable_lines(str(value)) if is_text else value

    # Undefined names are errors, because a missing figure would otherwise be an empty text.
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=legible,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
