#!/usr/bin/python3
"""What tests/lib/structs.py makes of a header is what the C compiler makes of
it, and what it does not know it refuses. tests/gpu/torch_check.py, which needs
a GPU to run, fills fields that dcpg.h has."""
import ast
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import types

SRC = os.path.abspath(os.environ.get("srcdir", "."))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(SRC, "tests/lib"))
sys.path.insert(0, os.path.join(SRC, "tests/gpu"))
import suite  # noqa: E402
from structs import Headers  # noqa: E402

CC = os.environ.get("CC", "gcc").split()
HEADERS = ["kernels/kernels.h", "kernels/cuda/dcpg.h"]
# Pairs that fill or do not fill padding, in every form that is read.
FORMS = """
#define N 3u
#define M (2 * N + 1)	/* of an array */
enum some { SOME = 7 };
struct inner { bool a; uint16_t b[M]; };
struct forms {
	char c;			/* ; { not code } */
	const struct inner *one, *two[N];
	struct inner in, ins[2][N];
	enum some e;
	bool x, y;
	double d;	// and a comment of C++
	size_t n; int8_t i8; int64_t i64; uint8_t last;
};
"""


def offsets(made, names):
    return [f"{s} {f} {getattr(made[s], f).offset} {getattr(made[s], f).size}"
            for s in names for f, _ in made[s]._fields_] + \
        [f"{s} {ctypes.sizeof(made[s])}" for s in names]


def as_compiled(made, names, code, work):
    """The same lines from a C program."""
    lines = [f'P("{s} {f} %zu %zu\\n", offsetof(struct {s}, {f}), '
             f'sizeof(((struct {s} *)0)->{f}));'
             for s in names for f, _ in made[s]._fields_] + \
        [f'P("{s} %zu\\n", sizeof(struct {s}));' for s in names]
    exe = os.path.join(work, "offsets")
    with open(exe + ".c", "w") as f:
        f.write("#include <stdbool.h>\n#include <stddef.h>\n#include "
                "<stdint.h>\n#include <stdio.h>\n#define P printf\n" + code +
                "\nint main(void) {\n" + "\n".join(lines) + "\n}\n")
    subprocess.run([*CC, "-I" + SRC, exe + ".c", "-o", exe], check=True)
    return subprocess.run([exe], check=True, capture_output=True,
                          text=True).stdout.splitlines()


def read(text, work):
    path = os.path.join(work, "some.h")
    with open(path, "w") as f:
        f.write(text)
    return Headers(path)


def every_struct_of_dcpg_h_is_laid_out_as_compiled(work):
    made = Headers(*[os.path.join(SRC, h) for h in HEADERS])
    names = [s for s in made.names() if s.startswith("dcpg_")]
    assert len(names) > 15 and "dcpg_attend" in names, names
    code = "".join(f'#include "{h}"\n' for h in HEADERS)
    assert offsets(made, names) == as_compiled(made, names, code, work)
    assert made.number("DCPK_KV_FP8") == 2 == made.number("DCPK_KV_BF16") + 1


def every_form_of_a_field_is_laid_out_as_compiled(work):
    made = read(FORMS, work)
    want = as_compiled(made, ["inner", "forms"], FORMS, work)
    assert offsets(made, ["inner", "forms"]) == want, want
    assert made["forms"]._fields_[-1][0] == "last", made["forms"]._fields_


def what_is_not_known_is_refused(work):
    for field in ("half x", "enum none x", "struct none x", "uint32_t x : 3",
                  "unsigned int x", "_Alignas(16) char x", "int (*x)(void)",
                  "volatile int x", "int x[NONE]", "int x[sizeof(int)]",
                  "union { int x; }", "\n#if N\n\tint x"):
        try:
            made = read(f"struct s {{\n\tint a;\n\t{field};\n}};\n", work)["s"]
        except ValueError:
            continue
        raise AssertionError(f"{field!r} was taken as {made._fields_}")
    try:
        read("struct s { int a; } __attribute__((packed));", work)["s"]
    except ValueError:
        return
    raise AssertionError("packed was not seen")


def torch_check_fills_fields_that_are_there(_):
    sys.modules["torch"] = types.SimpleNamespace(float8_e4m3fn=None)
    import torch_check
    with open(torch_check.__file__) as f:
        calls = [c for c in ast.walk(ast.parse(f.read()))
                 if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)
                 and c.func.id in ("Attend", "Score", "Select")]
    assert len(calls) == 3, calls
    for c in calls:
        getattr(torch_check, c.func.id)(**{k.arg: 0 for k in c.keywords})
        assert not c.args, ast.unparse(c)


if __name__ == "__main__":
    if not shutil.which(CC[0]):
        print(f"SKIP: no {CC[0]}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        suite.run(folder, every_struct_of_dcpg_h_is_laid_out_as_compiled,
                  every_form_of_a_field_is_laid_out_as_compiled,
                  what_is_not_known_is_refused,
                  torch_check_fills_fields_that_are_there)
