"""The config's JSON Schema, for editors: they complete keys, show descriptions and mark what is wrong.

It takes all that the loader takes, and more: what only the loader can know, such as two keys that exclude each other.
"""

from collections.abc import Callable
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from chunkvisor.config.model import Config
from chunkvisor.config.values import empty, env_value, list_of_one, number, seconds, size_bytes

_DIGITS = r"^[-+]?[0-9][0-9_]*(\.[0-9]*)?([eE][-+]?[0-9]+)?"

_ALSO: dict[Callable[..., Any], JsonSchemaValue] = {
    number: {"type": "string", "pattern": _DIGITS + "$"},
    seconds: {"type": "string", "pattern": _DIGITS + " ?[smhd]?$"},
    size_bytes: {"type": "string", "pattern": _DIGITS + " ?([kKmMgGtT][iI]?)?[bB]?$"},
    env_value: {"type": "number"},
    empty: {"type": "null"},
}
"""What a value may be besides its type, by the function of `values` that turns the one into the other."""


def config_schema() -> dict[str, Any]:
    """The schema as plain values (JSON Schema, draft 2020-12)."""
    schema = Config.model_json_schema(schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, "title": "chunkvisor config", **schema}


class _Generator(GenerateJsonSchema):
    """pydantic's own generator, made to agree with the loader."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        """Never: "Batch Size" says no more than the key `batch_size` above it."""
        return False

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """What comes out of the function, or what it also takes."""
        result = super().function_before_schema(schema)
        function = schema["function"]["function"]
        also = result.get("items") if function is list_of_one else _ALSO.get(function)
        return {"anyOf": [result, also]} if also else result

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """A section; one whose keys are all commented out is null in YAML, which is right where none is required."""
        result = super().model_schema(schema)
        del result["title"]
        if "required" not in result:
            result["type"] = ["object", "null"]
        return result

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """A mapping; where its names have a pattern, any other name is wrong."""
        result = super().dict_schema(schema)
        if "patternProperties" in result:
            result["additionalProperties"] = False
        return result

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """A value with its default; that of a whole section stands in the section already."""
        result = super().default_schema(schema)
        if isinstance(result.get("default"), dict):
            del result["default"]
        return result
