"""Templates of pages: texts are escaped, and an undefined name is an error."""

from functools import cache
from importlib.resources import files
from typing import Any


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

    # Undefined names are errors, because a missing figure would otherwise be an empty text.
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
