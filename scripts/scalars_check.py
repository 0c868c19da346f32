"""Values of scalar operations by others: scalars_check.py TVM_FOLDER REQUESTS ANSWERS, files of JSON lines.

{"expression": tree, "inputs": [{"dtype", "bytes"}], "shape": [m, n]} is computed by numpy, whose rules docs/SEMANTICS.md keeps
where C leaves a result undefined. A tree is {"dtype", "load": input}, {"dtype", "axis": 0 or 1}, {"dtype", "bytes"} or
{"dtype", "op", "of": [trees]}. {"script": a PrimFunc, "inputs": [...], "outputs": [...]} is compiled by TVM's LLVM and run. The
answer is {"outputs": [bytes, ...]}.
"""
import json
import sys

sys.path.insert(0, sys.argv[1])

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402

FLOATS = {
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}


def dtype_of(name):
    return np.dtype(FLOATS.get(name, name))


def rounded(x, name):
    """float32 or float64 as another float type; types of 8 bits end at their largest number."""
    if name in ("float8_e4m3fn", "float8_e5m2"):
        most = float(ml_dtypes.finfo(FLOATS[name]).max)
        x = np.clip(x, -most, most)
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2") and x.dtype == np.float64:
        # By way of float32, rounded to odd, so that it is rounded once.
        y = x.astype(np.float32)
        inexact = np.isfinite(y) & (y.astype(np.float64) != x)
        y = np.where(inexact & (np.abs(y.astype(np.float64)) > np.abs(x)), np.nextafter(y, np.float32(0)), y)
        x = np.where(inexact, y.view(np.uint32) | 1, y.view(np.uint32)).astype(np.uint32).view(np.float32)
    return x.astype(FLOATS[name])


def cast(a, before, after):
    if after in FLOATS:
        if before in FLOATS:
            return a if before == after else rounded(a if before == "float64" else a.astype(np.float32), after)
        return a.astype(np.float64) if after == "float64" else rounded(a.astype(np.float32), after)
    if after == "bool" or before not in FLOATS:
        return a.astype(bool) if after == "bool" else a.astype(after)
    ends = np.iinfo(after)

    def whole(x):
        x = float(x)
        if np.isnan(x) or np.isinf(x):
            return 0 if np.isnan(x) else ends.max if x > 0 else ends.min
        return min(max(int(x), ends.min), ends.max)

    return np.array([whole(x) for x in a.ravel()], dtype=after).reshape(a.shape)


def less(x, y):
    return (x < y) | ((x == y) & np.signbit(x))


WHOLE = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.remainder, "T.truncmod": np.fmod,
    "T.min": np.minimum, "T.max": np.maximum, "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
    "<<": np.left_shift, ">>": np.right_shift,
}  # fmt: skip
REAL = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "T.fmod": np.fmod, "T.copysign": np.copysign,
    "T.min": lambda x, y: np.where(less(x, y) | np.isnan(y), x, y),
    "T.max": lambda x, y: np.where((~less(x, y) & ~np.isnan(x)) | np.isnan(y), x, y),
    "-x": np.negative, "T.abs": np.abs, "T.floor": np.floor, "T.ceil": np.ceil, "T.trunc": np.trunc,
    "T.nearbyint": np.rint, "T.sqrt": np.sqrt,
}  # fmt: skip
COMPARE = {"<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal}
BOOL = {"and": np.logical_and, "or": np.logical_or, "&": np.logical_and, "|": np.logical_or, "^": np.logical_xor,
        "T.min": np.logical_and, "T.max": np.logical_or}  # fmt: skip


def bits(x, name):
    return [int(v) & ((1 << (8 * dtype_of(name).itemsize)) - 1) for v in x.ravel()]


def truncdiv(x, y):
    # numpy rounds down; the quotient without its remainder is exact.
    return np.floor_divide(x - np.fmod(x, y), y)


def value(e, inputs, shape):
    t = e["dtype"]
    if "load" in e:
        return inputs[e["load"]]
    if "axis" in e:
        return np.indices(shape)[e["axis"]].astype(np.int32)
    if "bytes" in e:
        return np.full(shape, np.frombuffer(bytes(e["bytes"]), dtype_of(t))[0])
    op, of = e["op"], e["of"]
    args = [value(a, inputs, shape) for a in of]
    a, before = args[0], of[0]["dtype"]
    if op == "cast":
        return cast(a, before, t)
    if op == "reinterpret":
        return a.view(dtype_of(t))
    if op in ("if_then_else", "Select"):
        return np.where(a, args[1], args[2])
    if op in ("T.isnan", "T.isinf", "T.isfinite"):
        return getattr(np, op[2:])(a.astype(np.float64))
    if len(args) == 1 and before not in FLOATS:
        if op == "T.popcount":
            return np.array([b.bit_count() for b in bits(a, before)], dtype=t).reshape(shape)
        if op == "T.clz":
            width = 8 * dtype_of(before).itemsize
            return np.array([width - b.bit_length() for b in bits(a, before)], dtype=t).reshape(shape)
        if before == "bool":
            return np.logical_not(a)
        return {"-": np.negative, "~": np.invert, "T.abs": np.abs}[op](a)
    if op in COMPARE:
        return COMPARE[op](*args)
    if before == "bool":
        return BOOL[op](*args)
    if before in FLOATS:
        if before != "float64":
            args = [x.astype(np.float32) for x in args]
        out = REAL["-x" if op == "-" and len(args) == 1 else op](*args)
        # What chooses, changes a sign or rounds to a whole number leaves an infinity what it is, but in 8 bits.
        exact = len(args) == 1 and op != "T.sqrt" or op in ("T.min", "T.max", "T.copysign")
        exact = exact and t != "float8_e5m2"
        return out.astype(dtype_of(t)) if exact or t == "float64" else rounded(out, t)
    if op == "T.truncdiv":
        return truncdiv(*args)
    return WHOLE[op](*args)


def arrays(request):
    return [np.frombuffer(bytes(i["bytes"]), dtype_of(i["dtype"])) for i in request["inputs"]]


def by_numpy(request):
    shape = tuple(request["shape"])
    inputs = [a.reshape(shape) for a in arrays(request)]
    return [value(request["expression"], inputs, shape)]


def by_llvm(request):
    import tvm
    from tvm_source import program

    func = program(request["script"], tvm.tirx.PrimFunc)
    built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target={"kind": "llvm", "opt-level": 0})
    inputs = arrays(request)
    outputs = [np.zeros(inputs[0].shape, dtype_of(o)) for o in request["outputs"]]
    tensors = [tvm.runtime.tensor(x) for x in inputs + outputs]
    built["main"](*tensors)
    return [t.numpy() for t in tensors[len(inputs):]]


def main():
    np.seterr(all="ignore")
    with open(sys.argv[2]) as questions, open(sys.argv[3], "w") as answers:
        for line in questions:
            request = json.loads(line)
            found = by_llvm(request) if "script" in request else by_numpy(request)
            answers.write(json.dumps({"outputs": [list(np.ascontiguousarray(x).tobytes()) for x in found]}) + "\n")


main()
