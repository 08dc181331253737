"""ctypes structures made of a C header's own declarations, so that a program
that calls a library through ctypes cannot have yesterday's fields.

Knows what our headers write: one declaration a statement, scalars, pointers,
arrays, enums, structs of the same headers. Anything else is an error, never a
guess. tests/integration/test_structs.py holds it against the C compiler.
"""
import ctypes
import re

SCALAR = {"bool": ctypes.c_bool, "char": ctypes.c_char, "int": ctypes.c_int,
          "float": ctypes.c_float, "double": ctypes.c_double,
          "size_t": ctypes.c_size_t}
SCALAR.update((f"{u}int{n}_t", getattr(ctypes, f"c_{u}int{n}"))
              for u in ("", "u") for n in (8, 16, 32, 64))


def number(text, known):
    """Of an array: numbers, known names, + - and *."""
    def value(word):
        m = re.fullmatch(r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*", word)
        if m:
            return str(int(m[1], 0))
        if word not in known:
            raise ValueError(f"unknown size {word!r} in [{text}]")
        return str(number(known[word], known))

    words = re.findall(r"\w+|[^\w\s]", text)
    for w in words:
        if not re.fullmatch(r"\w+|[-+*()]", w):
            raise ValueError(f"{w!r} in the size [{text}]")
    return eval("".join(value(w) if re.match(r"\w", w) else w for w in words))


class Headers:
    """The structs of these headers, by name: Headers(..)["dcpg_attend"]. Of
    those that use each other, in any order; made when they are asked for."""

    def __init__(self, *paths):
        self.known, self.enums, self.text, self.made = {}, set(), {}, {}
        for path in paths:
            with open(path) as f:
                text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", f.read(), flags=re.S)
            if re.search(r"^[ \t]*#[ \t]*pragma", text, re.M):
                raise ValueError(f"{path}: a #pragma may change how structs "
                                 "are laid out")
            # Only numbers can be sizes; others are found when they are used.
            for m in re.finditer(r"^#define[ \t]+(\w+)[ \t]+(.+)$", text, re.M):
                self.known[m[1]] = m[2].strip()
            for m in re.finditer(r"\benum\s+(\w+)\s*\{([^}]*)\}", text):
                self.enums.add(m[1])
                self.known.update(re.findall(r"(\w+)\s*=\s*(\w+)", m[2]))
            for m in re.finditer(r"\bstruct\s+(\w+)\s*\{", text):
                self.text[m[1]] = self.body(text, m.end())

    @staticmethod
    def body(text, at):
        """To the ; behind its }: what stands before that can be packed."""
        depth, end = 1, at
        while depth or text[end] != ";":
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        return text[at:end].rstrip()

    def names(self):
        return list(self.text)

    def number(self, name):
        """Of a macro or an enumerator."""
        return number(name, self.known)

    def __getitem__(self, name):
        if name not in self.made:
            if name not in self.text:
                raise ValueError(f"no struct {name} in the headers")
            body = self.text[name]
            if set("{}#") & set(body[:-1]):
                raise ValueError(f"{name}: a struct or union within, #if, or "
                                 "an attribute: none is known here")
            fields = [f for line in body[:-1].split(";") if line.strip()
                      for f in self.fields(name, " ".join(line.split()))]
            self.made[name] = type(name, (Struct,), {"_fields_": fields})
        return self.made[name]

    def fields(self, name, line):
        """[(field, type)] of one declaration: type a, *b, c[N]"""
        m = re.fullmatch(r"(?:const )?(?:(struct|enum) )?(\w+) ?"
                         r"((?:[*]|\b)[^;]*)", line)
        if not m:
            raise ValueError(f"{name}: not understood: {line!r}")
        for d in m[3].split(","):
            f = re.fullmatch(r"([*]*)(\w+)((?:\[[^\]]+\])*)", d.strip())
            if not f:
                raise ValueError(f"{name}: not understood: {d!r} in {line!r}")
            t = ctypes.c_void_p if f[1] else self.base(name, m[1], m[2])
            for size in reversed(re.findall(r"\[([^\]]+)\]", f[3])):
                t = t * number(size, self.known)
            yield f[2], t

    def base(self, name, kind, word):
        if kind == "struct":
            return self[word]
        if kind == "enum" and word in self.enums:
            return ctypes.c_int
        if not kind and word in SCALAR:
            return SCALAR[word]
        raise ValueError(f"{name}: unknown type {kind or ''} {word}")


class Struct(ctypes.Structure):
    """By name, as C's designated initialisers: what is not said is 0, a field
    that is not there an error."""

    def __init__(self, **values):
        known = {f[0] for f in self._fields_}
        if not set(values) <= known:
            raise TypeError(f"{type(self).__name__} has no "
                            f"{', '.join(sorted(set(values) - known))}")
        super().__init__(**values)
