"""YAML that people and other programs wrote, with one error for whatever is wrong with it."""

from __future__ import annotations

from typing import Any


def parse_yaml(text: str | bytes) -> list[Any]:
    """Its documents, of plain values. Raises: ValueError in words.

    The library's own errors are for what breaks YAML's grammar; a tag that does not fit its value
    (`!!timestamp x`, `!!bool x`, `!!int ""`) ends in whatever the code that meets it raises.
    """
    # Only here: an agent that reads no YAML has no library for it in memory.
    import yaml

    try:
        return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"a tag in it does not fit its value ({error!r})") from error
    except RecursionError as error:
        raise ValueError("it has too many levels") from error
