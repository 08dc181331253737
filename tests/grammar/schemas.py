"""Schemas for tests/grammar/test_schemas.py: by hand, as people write them, and
made at random; and such that must be refused, with a word of the reason.
"""
import random

S, I, N, B = ({"type": t} for t in ("string", "integer", "number", "boolean"))


def obj(required=None, **props):
    return {"type": "object", "properties": props, "additionalProperties":
            False, "required": list(props) if required is None else required}


def arr(items, **kw):
    return dict({"type": "array", "items": items}, **kw)


TREE = {"$ref": "#/$defs/node", "$defs": {"node": obj(
    ["value"], value=I, left={"$ref": "#/$defs/node"},
    right={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})}}
LIST = {"$defs": {"list": {"oneOf": [{"type": "null"}, obj(
    head=S, tail={"$ref": "#/$defs/list"})]}}, "$ref": "#/$defs/list"}
EXPR = {"$defs": {
    "expr": {"anyOf": [{"$ref": "#/$defs/num"}, {"$ref": "#/$defs/bin"}]},
    "num": obj(kind={"const": "num"}, value=N),
    "bin": obj(kind={"const": "bin"}, op={"enum": ["+", "-", "*", "/"]},
               a={"$ref": "#/$defs/expr"}, b={"$ref": "#/$defs/expr"})},
    "$ref": "#/$defs/expr"}

PATTERNS = [
    "^[a-z]+$", "^\\d{3}-\\d{4}$", "^(foo|bar)?baz$", "ab", "^a", "z$",
    "^[^0-9]{2,5}$", "^\\w+@\\w+\\.(com|org)$", "^$", "^.{3}$", "^\\S+$",
    "^[\\u00e9\\u4e2d-\\u4e2f]+$", "^\\\\x\"$", "^\\t\\n?$", "^(a|b)*abb$",
    "^[A-Z]{2}\\d{2}(?:[ ]?[A-Z0-9]{4}){2}$", "^\\d{4}-\\d{2}-\\d{2}$",
    "^(?:25[0-5]|2[0-4]\\d|1?\\d?\\d)(?:\\.(?:25[0-5]|2[0-4]\\d|1?\\d?\\d))"
    "{3}$", "^\U0001f350+$", "^[\\w.+-]+$", "^x{0,3}y{2,}$", "a|^b|c$",
    "^#[0-9a-fA-F]{6}$", "^(\\(\\d{3}\\))? ?\\d{3}-\\d{4}$", "[aeiou]{2}",
    "^[^\"\\\\]*$", "^\\/usr\\/", "^[a-c-]+[\\]x]$",
]
RANGES = [
    (0, 0), (0, 9), (1, 12), (-5, 5), (-100, -10), (7, 123), (99, 1001),
    (-1, 0), (0, 1), (10, 10), (-999, 1000000), (18, 65), (1900, 2100),
    (5, None), (None, 5), (-3, None), (None, -3), (1000000, None),
    (0.5, 2.5), (-0.001, 0.001), (3.14, 3.15), (-273.15, None), (None, 0.1),
    (99.5, 1000.25), (0, 1e-9), (123456.5, 123457), (-7.5, -7.25),
]


def numbers():
    for lo, hi in RANGES:
        for t in ("integer", "number"):
            if t == "integer" and (lo, hi) in (
                    (-7.5, -7.25), (3.14, 3.15)):
                continue        # no integer is there
            s = {"type": t}
            if lo is not None:
                s["minimum"] = lo
            if hi is not None:
                s["maximum"] = hi
            yield s
            if lo is not None and hi is not None and hi - lo > 1.5:
                yield {"type": t, "exclusiveMinimum": lo,
                       "exclusiveMaximum": hi}
            if t == "number" and lo != hi:
                if lo is not None:
                    yield {"type": t, "exclusiveMinimum": lo,
                           **({"maximum": hi} if hi is not None else {})}
                if hi is not None:
                    yield {"type": t, "exclusiveMaximum": hi,
                           **({"minimum": lo} if lo is not None else {})}


def strings():
    yield from (S, {"type": "string", "minLength": 3},
                {"type": "string", "maxLength": 4},
                {"type": "string", "minLength": 2, "maxLength": 2},
                {"type": "string", "maxLength": 0},
                {"type": "string", "minLength": 1, "maxLength": 300},
                {"type": "string", "format": "email"},
                {"type": "string", "pattern": "^[a-z]*$", "minLength": 2,
                 "maxLength": 5},
                {"type": "string", "pattern": "^(ab)*$", "minLength": 3,
                 "maxLength": 6},
                {"type": "string", "pattern": "^a+b?$", "maxLength": 3},
                {"type": "string", "pattern": "é", "minLength": 3})
    for p in PATTERNS:
        yield {"type": "string", "pattern": p}


def containers():
    yield from (
        {"type": "object"}, {"type": "array"}, True, {}, arr(I),
        arr(I, minItems=2), arr(I, maxItems=2), arr(S, minItems=3, maxItems=3),
        arr(B, maxItems=0), arr(arr(N, maxItems=2), minItems=1, maxItems=2),
        arr(I, minItems=20, maxItems=40),
        {"type": "array", "prefixItems": [I, S]},
        {"type": "array", "prefixItems": [I, S], "items": False},
        {"type": "array", "prefixItems": [I, S], "items": B, "minItems": 1},
        {"type": "array", "prefixItems": [B, B, B], "minItems": 3,
         "items": {"type": "null"}, "maxItems": 5},
        obj(a=I), obj([], a=I, b=S), obj(["b"], a=I, b=S, c=B), obj(),
        obj(["c"], a=I, b=S, c=B, d=N),
        {"type": "object", "properties": {"a": I}},
        {"type": "object", "properties": {"a": I}, "additionalProperties": S},
        {"type": "object", "properties": {"aa": I, "ab": S, "é\"\n": B,
                                          "a": I}, "required": ["ab"],
         "additionalProperties": N},
        {"type": "object", "additionalProperties": I},
        {"type": "object", "additionalProperties": obj(x=I, y=I)},
        {"type": "object", "required": ["x", "y"]},
        {"type": "object", "required": ["x"], "additionalProperties": I},
        {"type": "object", "properties": {"": I, " ": S}, "required": [""]},
        {"properties": {"a": I}, "required": ["a"]}, {"items": B},
        {"type": "object", "properties": {"a": True, "b": False}},
        obj(**{f"field_{i}": S if i % 2 else I for i in range(30)}),
        obj([], **{f"p{i}": B for i in range(60)}))


def combined():
    yield from (
        {"enum": ["a", "b", "a b", "ab"]}, {"enum": [1, 12, 123, "1"]},
        {"enum": [None, True, False, 0, -1.5, 1e3, ""]}, {"const": "x\ny"},
        {"const": {"a": [1, {"b": None}], "c": ""}}, {"const": []},
        {"enum": [[1], [1, 2], {"k": 1}, {}]}, {"const": 7},
        {"type": "string", "enum": ["a", 1, "b"]},
        {"type": "integer", "enum": [1, 2, 30], "minimum": 2},
        {"type": ["string", "null"]}, {"type": ["integer", "boolean"]},
        {"type": ["object", "array", "null"], "items": I},
        {"anyOf": [S, I, {"type": "null"}]},
        {"anyOf": [obj(a=I), obj(a=S, b=I), obj(c=B)]},
        {"anyOf": [arr(I, minItems=1), arr(S, minItems=1)]},
        {"anyOf": [arr(arr(I)), arr(arr(S, minItems=1)), S]},
        {"oneOf": [obj(type={"const": "a"}, x=I),
                   obj(type={"const": "b"}, y=S)]},
        {"anyOf": [{"type": "string", "maxLength": 3}, {"const": "long text"}]},
        {"anyOf": [{"type": "integer", "minimum": 10, "maximum": 20},
                   {"type": "integer", "minimum": 1000}]},
        {"type": "object", "properties": {"k": S}, "required": ["k"],
         "anyOf": [{"properties": {"v": I}, "required": ["v"]},
                   {"properties": {"w": S}, "required": ["w"]}]},
        {"allOf": [obj_open(a=I), obj_open(b=S)]},
        {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 5}]},
        {"allOf": [{"type": ["string", "integer"]},
                   {"type": ["integer", "null"]}]},
        {"allOf": [{"enum": [1, 2, 3, "x"]}, {"enum": ["x", 3, 4]}]},
        {"allOf": [{"$ref": "#/$defs/base"}, obj_open(extra=S)],
         "$defs": {"base": obj_open(id=I)}},
        {"$ref": "#/$defs/s", "maxLength": 5, "$defs": {"s": {
            "type": "string", "minLength": 2}}},
        {"allOf": [{"anyOf": [I, S]}, {"anyOf": [S, B]}]},
        {"$defs": {"a~b/c": I}, "type": "array",
         "items": {"$ref": "#/$defs/a~0b~1c"}, "maxItems": 3},
        {"definitions": {"p": obj(x=N, y=N)},
         "type": "array", "items": {"$ref": "#/definitions/p"}, "maxItems": 3},
        TREE, LIST, EXPR, {"$ref": "#/properties/a", "properties": {"a": I}},
        {"type": "object", "properties": {"self": {"$ref": "#"}, "n": I},
         "additionalProperties": False},
        {"type": "array", "items": {"$ref": "#"}})


def obj_open(**props):
    return {"type": "object", "properties": props, "required": list(props)}


def as_people_write():
    """Pydantic models, tool arguments, extraction tasks."""
    yield from (
        {"title": "Answer", "type": "object", "properties": {
            "reasoning": {"title": "Reasoning", "type": "string",
                          "description": "why", "maxLength": 60},
            "answer": {"title": "Answer", "type": "integer"},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1}},
         "required": ["reasoning", "answer", "confidence"],
         "additionalProperties": False},
        {"$defs": {"Item": {"properties": {
            "name": {"type": "string", "maxLength": 20},
            "price": {"anyOf": [{"type": "number"}, {"type": "null"}],
                      "default": None}}, "required": ["name"],
            "title": "Item", "type": "object"}},
         "properties": {"items": {"items": {"$ref": "#/$defs/Item"},
                                  "type": "array", "maxItems": 3}},
         "required": ["items"], "title": "Order", "type": "object"},
        obj(city={"type": "string", "maxLength": 20},
            unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
            days={"type": "integer", "minimum": 1, "maximum": 14}),
        obj(name={"type": "string", "maxLength": 30},
            email={"type": "string", "pattern": "^[a-z0-9.]+@[a-z]+\\.[a-z]+$"},
            age={"type": "integer", "minimum": 0, "maximum": 150},
            address=obj(["street", "zip"], street={"type": "string",
                                                   "maxLength": 30},
                        zip={"type": "string", "pattern": "^[0-9]{5}$"},
                        country={"enum": ["de", "fr", "it"]})),
        obj(steps=arr(obj(explanation={"type": "string", "maxLength": 30},
                          output={"type": "string", "maxLength": 30}),
                      maxItems=3), final_answer={"type": "string",
                                                 "maxLength": 10}),
        {"type": "object", "properties": {
            "sentiment": {"enum": ["positive", "negative", "neutral"]},
            "scores": {"type": "object", "additionalProperties": {
                "type": "number", "minimum": 0, "maximum": 1}}},
         "required": ["sentiment", "scores"]})


def random_schema(r, depth=0):
    kind = r.choice("sinbeaooau" if depth < 3 else "sinbe")
    if kind == "s":
        s = {"type": "string"}
        if r.random() < .5:
            s["maxLength"] = r.randrange(1, 9)
        if r.random() < .3:
            s["minLength"] = r.randrange(0, s.get("maxLength", 6) + 1)
        return s
    if kind in "in":
        s = {"type": "integer" if kind == "i" else "number"}
        lo = r.randrange(-2000, 2000) / (1 if kind == "i" else 8)
        if r.random() < .4:
            s["minimum"] = int(lo) if kind == "i" else lo
        if r.random() < .4:
            s["maximum"] = s.get("minimum", 0) + r.randrange(0, 500)
        return s
    if kind == "b":
        return {"type": r.choice(["boolean", "null", ["boolean", "null"]])}
    if kind == "e":
        pool = ["red", "green", "reddish", 1, 2.5, None, True, "", "\\", [1],
                {"a": 1}]
        return {"enum": r.sample(pool, r.randrange(1, 6))}
    if kind == "a":
        s = arr(random_schema(r, depth + 1), maxItems=r.randrange(1, 4))
        if r.random() < .3:
            s["minItems"] = r.randrange(0, s["maxItems"] + 1)
        if r.random() < .3:
            s["prefixItems"] = [random_schema(r, depth + 1)
                                for _ in range(r.randrange(1, 3))]
        return s
    if kind == "u":
        return {r.choice(["anyOf", "anyOf", "oneOf"]): [
            random_schema(r, depth + 1) for _ in range(r.randrange(2, 4))]}
    names = r.sample(["a", "b", "ab", "name", "id", "x y", "ä", "a\"b"],
                     r.randrange(0, 5))
    s = {"type": "object", "properties": {
        n: random_schema(r, depth + 1) for n in names}}
    s["required"] = [n for n in names if r.random() < .5]
    extra = r.random()
    if extra < .4:
        s["additionalProperties"] = False
    elif extra < .6:
        s["additionalProperties"] = random_schema(r, depth + 1)
    return s


def good(seed=1, n=200):
    yield from numbers()
    yield from strings()
    yield from containers()
    yield from combined()
    yield from as_people_write()
    r = random.Random(seed)
    for _ in range(n):
        yield random_schema(r)


def nested(n, inner=True):
    s = inner
    for _ in range(n):
        s = {"type": "array", "items": s}
    return s


# (schema, a word of the error)
BAD = [
    (5, "want a schema"), ([], "want a schema"), ("x", "want a schema"),
    ({"type": "strin"}, "type \"strin\" is unknown"),
    ({"type": 5}, "type: want"), ({"type": [5]}, "type: want"),
    ({"not": I}, "\"not\" is not supported"),
    (obj(a=obj(b={"if": True})), "#/properties/a/properties/b: \"if\""),
    ({"type": "object", "patternProperties": {"a": I}}, "patternProperties"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": I}, "contains"),
    ({"type": "integer", "multipleOf": 3}, "multipleOf"),
    ({"type": "object", "minProperties": 1}, "minProperties"),
    ({"type": "object", "propertyNames": {}}, "propertyNames"),
    ({"made_up": 1}, "made_up"), ({"properties": []}, "properties: want"),
    ({"required": "a"}, "required: want"), ({"required": [1]}, "required:"),
    ({"enum": []}, "enum: want"), ({"enum": 5}, "enum: want"),
    ({"anyOf": []}, "anyOf: want"), ({"anyOf": {}}, "anyOf: want"),
    ({"allOf": 1}, "allOf: want"), ({"items": [I]}, "prefixItems"),
    ({"prefixItems": 1}, "prefixItems: want"), ({"items": 5}, "#/items"),
    ({"minItems": -1}, "minItems: want"), ({"maxLength": 1.5}, "maxLength"),
    ({"minItems": 3, "maxItems": 2}, "above maxItems"),
    ({"minLength": 3, "maxLength": 2}, "above maxLength"),
    ({"minimum": "x"}, "minimum: want"),
    ({"type": "integer", "minimum": 2, "maximum": 1}, "no integer"),
    ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, "no integer"),
    ({"type": "number", "minimum": 2, "maximum": 1}, "no number"),
    ({"type": "number", "minimum": 0.12345678901234567}, "15 digits"),
    ({"$ref": "other.json"}, "$ref: want"), ({"$ref": 1}, "$ref: want"),
    ({"$ref": "#/$defs/no"}, "leads nowhere"),
    ({"$ref": "#/a~1b"}, "leads nowhere"),
    ({"$ref": "#"}, "no value satisfies"),
    ({"allOf": [{"$ref": "#"}]}, "lead on for ever"),
    (obj(self={"$ref": "#"}), "requires itself"),
    ({"allOf": [S, I]}, "no value satisfies"), (False, "no value satisfies"),
    ({"allOf": [{"const": 1}, {"const": 2}]}, "enum: want"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "\"pattern\" cannot"),
    ({"type": "string", "pattern": "("}, "not closed"),
    ({"type": "string", "pattern": "a{2,1}"}, "m above n"),
    ({"type": "string", "pattern": "[z-a]"}, "backwards"),
    ({"type": "string", "pattern": "(?=a)"}, "looking ahead"),
    ({"type": "string", "pattern": "(a)\\1"}, "escape"),
    ({"type": "string", "pattern": "\\bx"}, "escape"),
    ({"type": "string", "pattern": "a^b"}, "edges"),
    ({"type": "string", "pattern": "*a"}, "nothing to repeat"),
    ({"type": "string", "pattern": 5}, "pattern: want"),
    ({"type": "string", "pattern": "^a$", "minLength": 2}, "no string has"),
    # These would become huge.
    ({"type": "string", "pattern": "(a|b)*a(a|b){20}"}, "more than"),
    ({"type": "string", "pattern": "((a{1000}){1000}){1000}"}, "more than"),
    ({"type": "string", "pattern": "(" * 500 + ")" * 500}, "too deep"),
    ({"type": "string", "pattern": "a{2000}"}, "1000 repetitions"),
    (nested(80), "nested more than"),
    ({"type": "object", "properties": {f"p{i}": I for i in range(2000)}},
     "more than 1024 properties"),
    ({"enum": [f"v{i}" for i in range(9000)]}, "more than 8192"),
    ({"allOf": [{"anyOf": [{"minimum": i} for i in range(100)]},
                {"anyOf": [{"maximum": i} for i in range(100)]}]},
     "too many to merge"),
    ({"$defs": {f"d{i}": {"allOf": [
        {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}},
        {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"},
                        "b": {"$ref": f"#/$defs/d{i + 1}"}}}]}
        for i in range(40)}, "$ref": "#/$defs/d0"}, "#"),
    ({"description": "x" * 300000}, "bytes, at most"),
    ({"$defs": {"big": {"properties": {f"p{i}": I for i in range(1000)}}},
      "allOf": [{"$ref": "#/$defs/big"}] * 5000}, "more than"),
    ({"anyOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{8}}{i}"}
                for i in range(2000)]}, "pattern"),
    ({"$defs": dict({f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 50}
                     for i in range(20)}, d20=I), "$ref": "#/$defs/d0"},
     "more than"),
]
