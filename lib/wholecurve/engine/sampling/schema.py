"""JSON schemas for a grammar: what the compiler would pass over in silence is refused, and open ends are closed."""

from collections.abc import Iterator
from typing import Any

from wholecurve.engine.sampling.pattern import escaped_character
from wholecurve.errors import UserError

NEVER = {
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "additionalItems"),
    *("dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef"),
}
RULES = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("minItems", "maxItems", "items", "prefixItems", "unevaluatedItems"),
    "object": (
        *("minProperties", "maxProperties", "required", "properties", "patternProperties"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames"),
    ),
}
TYPE_OF = {rule: of_type for of_type, rules in RULES.items() for rule in rules}
# characters that JSON does not escape; ranges that are given keep xgrammar from accepting bytes that are no UTF-8
PLAIN = " !#-\\[\\]-\ud7ff\ue000-\U0010ffff"
IMPLY_TYPE = {"properties", "items", "prefixItems", "patternProperties", "additionalProperties", "format"}
WHOLE = ("enum", "const", "$ref", "anyOf", "oneOf", "allOf")  # each says all there is to say
ONE_BELOW = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames")
LISTS_BELOW = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMES_BELOW = ("properties", "patternProperties", "$defs", "definitions")


def prepared_schema(schema: Any, where: str = "#") -> Any:
    """A copy of a JSON schema that means what it says to xgrammar.

    An object with `properties` has no others unless the schema speaks of them. `format` beside another rule for a
    string is dropped: it may be taken as a remark (JSON Schema 2020-12, validation, section 7.2.1). A pattern is what
    the whole string must match, and where a pattern or a length rules, the string has no escapes. Branches of `oneOf`
    that overlap stay as they are, and count as `anyOf`. UserError, with the place, for what the grammar could not keep.
    """
    if not isinstance(schema, dict):
        return schema
    for problem in problems(schema):
        raise UserError(f"json_schema cannot be used: {problem} (at {where})")
    result = {key: below(key, value, f"{where}/{key}") for key, value in schema.items()}
    if "unevaluatedProperties" in result:  # with no branches beside it, it means the same
        result.setdefault("additionalProperties", result.pop("unevaluatedProperties"))
    if "properties" in result and "patternProperties" not in result:
        result.setdefault("additionalProperties", False)
    if {"minLength", "maxLength"} & result.keys():  # xgrammar lets control characters through there
        least, most = result.pop("minLength", 0), result.pop("maxLength", "")
        result["pattern"] = f"^[{PLAIN}]{{{least},{most}}}$"
    if "pattern" in result:
        result.pop("format", None)
    return result


def below(key: str, value: Any, where: str) -> Any:
    """The value of a keyword with the schemas in it prepared."""
    if key in ONE_BELOW:
        return prepared_schema(value, where)
    if key in LISTS_BELOW and isinstance(value, list):
        return [prepared_schema(entry, f"{where}/{i}") for i, entry in enumerate(value)]
    if key in NAMES_BELOW and isinstance(value, dict):
        return {name: prepared_schema(entry, f"{where}/{name}") for name, entry in value.items()}
    return value


def problems(schema: dict) -> Iterator[str]:
    """What the compiler does not keep of one schema, those below it apart."""
    for key in schema.keys() & NEVER:
        if schema[key] is not False:
            yield f"{key} is not supported"
    rules = schema.keys() & TYPE_OF.keys()
    for key in WHOLE:
        beside = (rules | (schema.keys() & set(WHOLE))) - {
            key,
            *(("enum", "const") if key in ("enum", "const") else ()),
        }
        if key in schema and beside:
            yield f"{key} beside {min(beside)} is not supported"
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        yield "allOf of several schemas is not supported"
    given = types_of(schema)
    if given is None:
        for key in sorted(rules - IMPLY_TYPE):
            if not any(TYPE_OF[other] == TYPE_OF[key] for other in rules & IMPLY_TYPE):
                yield f"{key} needs a type beside it"
    elif "number" in given and "multipleOf" in schema:
        yield "multipleOf of a number is not supported, of an integer it is"
    lengths = [schema[key] for key in ("minLength", "maxLength") if key in schema]
    if lengths and "pattern" in schema:
        yield "pattern beside minLength or maxLength is not supported"
    if not all(isinstance(length, int) and length >= 0 for length in lengths) or lengths != sorted(lengths):
        yield "minLength and maxLength must be whole numbers, 0 or more, the former not above the latter"
    properties = schema.get("patternProperties")
    for pattern in [schema.get("pattern"), *(properties if isinstance(properties, dict) else ())]:
        if isinstance(pattern, str) and (character := escaped_character(pattern)):
            yield f"pattern {pattern!r} holds {character!r}, which a string with a pattern cannot"
    yield from problems_of_values(schema, given)
    missing = [name for name in listed(schema, "required") if name not in (schema.get("properties") or {})]
    if missing:
        yield f"required names {missing[0]!r}, which is not among the properties"


def problems_of_values(schema: dict, given: set[str] | None) -> Iterator[str]:
    """What is wrong with listed values, and with a type beside branches."""
    values = listed(schema, "enum") + ([schema["const"]] if "const" in schema else [])
    if "enum" in schema and "const" in schema and schema["const"] not in listed(schema, "enum"):
        yield "const is not among the values of enum"
    if given is None:
        return
    for value in values:
        if not json_types(value) & given:
            yield f"value {value!r} is not of type {' or '.join(sorted(given))}"
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in listed(schema, key):
            if not isinstance(branch, dict) or not (types_of(branch) or {"any"}) <= given:
                yield f"type beside {key} is only supported where each branch has it too"
    if "$ref" in schema:
        yield "type beside $ref is not supported"


def listed(schema: dict, key: str) -> list:
    """The list at a keyword, empty where it is missing or no list."""
    return schema[key] if isinstance(schema.get(key), list) else []


def types_of(schema: dict) -> set[str] | None:
    """The types that a schema names, None where it names none."""
    named = schema.get("type")
    return {named} if isinstance(named, str) else set(map(str, named)) if isinstance(named, list) else None


def json_types(value: Any) -> set[str]:
    """The names that JSON Schema has for the type of a value."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    names = {int: {"integer", "number"}, str: {"string"}, list: {"array"}, dict: {"object"}, type(None): {"null"}}
    return names[type(value)]
