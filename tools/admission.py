"""The isolation table as CEL: what the chart's admission policy holds pods against.

`charts/rlguard/templates/admission.yaml` defines the variables that these expressions use.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlguard.operator.reconcile.isolation import SHARED_KEYS, TABLE, On, Row, Test

#: The variable with the objects that rows are held against.
OBJECTS = {On.POD: "pods", On.VOLUME: "volumes", On.CONTAINER: "containers"}
_PARTS = "{}.split('/').filter(p, p != '' && p != '.')"


def validations() -> list[dict[str, str]]:
    """Build one validation for each row that holds for a pod which the operator has built."""
    return [_validation(row) for row in TABLE if not row.in_template]


def _validation(row: Row) -> dict[str, str]:
    objects, broken = f"variables.{OBJECTS[row.on]}", condition(row)
    where = "variables.relaxed || " + ("!variables.beside || " if row.beside else "")
    text = f"{' or '.join(row.paths)} {row.test.value}: {row.why} (isolation: {row.id})".replace("'", "\\'")
    named = (
        f"'{text}'"
        if row.on is On.POD
        else f"'{row.on.value} ' + {objects}.filter(c, {broken}).map(c, c.name).join(', ') + ': {text}'"
    )
    return {
        "expression": f"{where}!{objects}.exists(c, {broken})",
        "messageExpression": named,
        "reason": "Forbidden",
    }


def condition(row: Row) -> str:
    """Say in CEL that the object `c` breaks a row."""
    return " || ".join(_at("c", path.split("."), row) for path in row.paths)


def _at(value: str, path: list[str], row: Row) -> str:
    """Say that a value at this path, from an expression, breaks the row."""
    for index, name in enumerate(path):
        if name.endswith("[]"):
            item, rest = f"i{len(path) - index}", path[index + 1 :]
            inner = _at(item, rest, row) if rest else _broken(f"optional.of({item})", row)
            return f"{value}.?{name[:-2]}.orValue([]).exists({item}, {inner})"
        value = f"{value}.?{name}"
    return _broken(value, row)


def _broken(value: str, row: Row) -> str:
    """Say that a value, which is an optional one, breaks the row."""
    text = f"{value}.orValue('')"
    name = f"{value}.?name.orValue('')"
    cleaned = "'/' + " + _PARTS.format(f"{value}.value()") + ".map(p, p + '/').join()"
    return {
        Test.TRUE: f"{value}.orValue(false)",
        Test.SET: f"{value}.hasValue()",
        Test.ONE_OF: f"{text} in {texts(row.values)}",
        Test.STARTS_WITH: f"{texts(row.values)}.exists(s, {text}.startsWith(s))",
        Test.CAPABILITY: f"{text}.upperAscii().replace('CAP_', '', 1) in {texts(row.values)}",
        Test.CLAIM: f"{text} in variables.claims",
        Test.SECRET: f"{text} in variables.secrets",
        Test.SECRET_KEY: f"({name} in variables.secrets && !({name} == variables.support "
        f"&& {value}.?key.orValue('') in {texts(SHARED_KEYS)}))",
        Test.CONFIG_MAP: f"{text} in variables.configMaps",
        Test.ACCOUNT: f"{text} in variables.accounts",
        Test.NODE_DIRECTORY: f"({value}.hasValue() && ({value}.value().split('/').exists(p, p == '..') "
        f"|| [{cleaned}].exists(q, variables.nodeDirectories.exists(d, "
        "d.startsWith(q) || q.startsWith(d)))))",
        Test.API_TOKEN: f"({value}.hasValue() && !({value}.?audience.orValue('') "
        "in variables.tokenAudiences))",
    }[row.test]


def texts(values: Iterable[str]) -> str:
    """A list of strings as it stands in CEL."""
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"
