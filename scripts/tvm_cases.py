"""Fresh cases of the kind of the shared verdicts: tvm_cases.py TVM_FOLDER PROGRAMS OUT SEED COUNT.

PROGRAMS: JSON lines with "name" and "script"; one name may stand there many times. OUT: random sequences of primitives on
them, each call with TVM's verdict, and TVM's final program. Judge them with

    SATUNE_CASES=OUT cargo test -p satune-rewrites --test rewrites -- --ignored other_cases --nocapture

TVM crashes on a few sequences: those are left out, and so are errors that are not ScheduleErrors.
"""
import json
import os
import random
import subprocess
import sys

TVM, PROGRAMS, OUT, SEED, COUNT = sys.argv[1:6]
# How often a primitive is tried.
WEIGHTS = {
    "split": 8, "bind": 5, "reorder": 5, "cache_write": 5, "decompose_reduction": 5, "fuse": 4, "cache_read": 5,
    "reverse_compute_at": 6, "compute_at": 6, "rfactor": 5, "reverse_compute_inline": 5, "compute_inline": 5,
    "storage_align": 2, "reindex": 4, "vectorize": 2, "blockize": 3, "unroll": 1, "parallel": 2, "set_scope": 2,
    "pad_einsum": 2, "transform_layout": 4, "add_unit_loop": 1, "annotate": 1, "loop_partition": 0.3,
    "decompose_padding": 0.3,
}
FACTORS = [[None, 2], [None, 4], [None, 8], [2, None], [None, 3], [4, 2], [None, 2, 2], [None, 5], [3, None, 4], [-1, 16],
           [16, 16], [0, None]]
MAPS = {
    1: ["lambda i: (i // 4, i % 4)", "lambda i: i", "lambda i: (i % 4, i // 4)"],
    2: ["lambda i, j: (j, i)", "lambda i, j: (i // 4, j, i % 4)", "lambda i, j: (i, j // 8, j % 8)",
        "lambda i, j: (i // 2, j // 4, i % 2, j % 4)"],
    3: ["lambda i, j, k: (i, k, j)", "lambda i, j, k: (i, j // 2, k, j % 2)"],
    4: ["lambda n, c, h, w: (n, h, w, c)", "lambda n, c, h, w: (n, c // 2, h, w, c % 2)"],
}
# Primitives that take a block and no loop.
OF_BLOCKS = {"cache_write", "cache_read", "reverse_compute_inline", "compute_inline", "storage_align", "reindex", "set_scope",
             "pad_einsum", "transform_layout"}


def block_names(node):
    """Names of the blocks below a statement, the root's left out."""
    kind = type(node).__name__
    if node is None:
        return []
    if "BlockRealize" in kind:
        return block_names(node.block)
    if "Block" in kind and hasattr(node, "name_hint"):
        return [n for n in [node.name_hint] if n != "root"] + block_names(node.body)
    if hasattr(node, "seq"):
        return [name for part in node.seq for name in block_names(part)]
    return [name for k in ("body", "then_case", "else_case") if hasattr(node, k) for name in block_names(getattr(node, k))]


class Case:
    """A schedule, and the calls that made it."""

    def __init__(self, function):
        self.function, self.calls, self.names = function, [], 0
        self.again()

    def again(self):
        """From the start: a call that failed may leave half of its work behind."""
        self.sch = s_tir.Schedule(self.function, debug_mask="all", error_render_level="fast")
        self.env = {}
        for call in self.calls:
            self.run(call)

    def fresh(self, stem):
        self.names += 1
        return f"{stem}{self.names}"

    def value(self, v):
        if isinstance(v, str) and v.startswith("$"):
            name, _, index = v[1:].partition("[")
            return self.env[name][int(index[:-1])] if index else self.env[name]
        if isinstance(v, dict):
            return eval(v["index_map"])
        if isinstance(v, list) and v and v[0] in ("read", "write"):
            return tuple(v)
        return [self.value(x) for x in v] if isinstance(v, list) else v

    def run(self, call):
        kwargs = {k: self.value(v) for k, v in call.get("kwargs", {}).items()}
        result = getattr(self.sch, call["op"])(*map(self.value, call["args"]), **kwargs)
        if "out" in call:
            self.env[call["out"]] = result

    def do(self, call):
        """Makes a call; TVM's verdict."""
        try:
            self.run(call)
        except Exception as error:
            return {"ok": False, "error_class": type(error).__name__, "fast": str(error).strip()}
        self.calls.append(call)
        return {"ok": True}

    def block(self, name):
        """A block and the number of its loops, under names; None where the name is not unique."""
        block, loops = self.fresh("b"), self.fresh("l")
        if not self.do({"op": "get_sblock", "args": [name], "out": block})["ok"]:
            return None
        self.do({"op": "get_loops", "args": ["$" + block], "out": loops})
        return block, loops, len(self.env[loops])


def random_call(r, case, name, names):
    """A primitive on the block of a name, with random arguments; None where it has no loops for it."""
    found = case.block(name)
    if found is None:
        return None
    block, loops, depth = found
    op = r.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    if op not in OF_BLOCKS and depth == 0:
        return None
    loop = lambda i=None: f"${loops}[{r.randrange(depth) if i is None else i}]"
    this, call = "$" + block, {"op": op}
    realized = case.sch.get(case.env[block])
    access = lambda: ["write", 0] if r.random() < 0.45 or not realized.reads else ["read", r.randrange(len(realized.reads))]
    if op == "split":
        call.update(args=[loop()], kwargs={"factors": r.choice(FACTORS)}, out=case.fresh("s"))
    elif op == "bind":
        tags = ["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "vthread.x"]
        call.update(args=[loop(), r.choice(tags)])
    elif op == "reorder":
        call.update(args=[loop(i) for i in r.sample(range(depth), r.randint(1, min(4, depth)))])
    elif op == "cache_write":
        call.update(args=[this, r.choice([0, 0, 0, 0, 1]), r.choice(["local", "shared", "global"])], out=case.fresh("c"))
    elif op == "cache_read":
        call.update(args=[this, r.choice([0, 0, 1, 1, 2]), r.choice(["local", "shared"])], out=case.fresh("c"))
        if r.random() < 0.25:
            call["kwargs"] = {"consumer_blocks": [this]}
    elif op in ("decompose_reduction", "decompose_padding"):
        call.update(args=[this, loop()], out=case.fresh("d"))
    elif op == "fuse":
        if depth < 2:
            return None
        first = r.randrange(depth - 1)
        chosen = list(range(first, min(depth, first + r.choice([2, 2, 2, 3]))))
        if r.random() < 0.15:
            r.shuffle(chosen)
        call.update(args=[loop(i) for i in chosen], out=case.fresh("f"))
    elif op in ("compute_at", "reverse_compute_at"):
        other = case.block(r.choice([n for n in names if n != name] or names))
        if other is None or other[2] == 0:
            return None
        call.update(args=[this, f"${other[1]}[{r.randrange(other[2])}]"])
        if r.random() < 0.25:
            call["kwargs"] = {"preserve_unit_loops": True}
        elif r.random() < 0.15:
            call["kwargs"] = {"index": r.choice([-1, -2, 0])}
    elif op == "rfactor":
        call.update(args=[loop(), r.choice([0, 0, 0, 1, -1, 2, 5])], out=case.fresh("r"))
    elif op in ("compute_inline", "reverse_compute_inline"):
        call.update(args=[this])
    elif op == "storage_align":
        call.update(args=[this, 0, r.choice([-1, -2, 0, 1]), r.choice([32, 16]), r.choice([8, 4, 1])])
    elif op == "reindex":
        call.update(args=[this, access()], out=case.fresh("x"))
    elif op in ("vectorize", "unroll", "parallel"):
        call.update(args=[loop()])
    elif op == "blockize":
        call.update(args=[loop()], out=case.fresh("k"))
    elif op == "set_scope":
        call.update(args=[this, r.choice([0, 0, 0, 1]), r.choice(["shared", "local", "shared.dyn"])])
    elif op == "pad_einsum":
        call.update(args=[this, [r.choice([1, 1, 4, 8, 16]) for _ in realized.iter_vars]])
    elif op == "transform_layout":
        kind, index = which = access()
        regions = realized.writes if kind == "write" else realized.reads
        maps = MAPS.get(len(regions[index].region)) if index < len(regions) else None
        if maps is None:
            return None
        call.update(args=[this, which, {"index_map": r.choice(maps)}])
        if r.random() < 0.2:
            call["kwargs"] = {"pad_value": 0.0}
    elif op == "add_unit_loop":
        call.update(args=[loop() if r.random() < 0.7 else this], out=case.fresh("u"))
    elif op == "annotate":
        call.update(args=[loop() if r.random() < 0.7 else this, "pragma_auto_unroll_max_step", 64])
    elif op == "loop_partition":
        call.update(args=[loop(), r.choice([[4, None], [None, 2], [2, 3, None], [None, 8]])], out=case.fresh("p"))
    return call


def make(programs, seed):
    """One case; None where it came to nothing."""
    r = random.Random(seed)
    name = r.choice(sorted(programs))
    case, last = Case(programs[name][1]), None
    steps = r.randint(1, 9)
    for step in range(steps):
        names = block_names(case.sch.mod["main"].body)
        call = random_call(r, case, r.choice(names), names)
        if call is None:
            continue
        verdict = case.do(call)
        if verdict["ok"]:
            continue
        if verdict["error_class"] == "ScheduleError" and (r.random() < 0.3 or step == steps - 1):
            last = (call, verdict)
            break
        case.again()
    calls = case.calls + ([last[0]] if last else [])
    expected = [{"ok": True}] * len(case.calls) + ([last[1]] if last else [])
    out = {"name": f"{name}-{SEED}-{seed}", "script": programs[name][0], "calls": calls, "expected": expected}
    if not last:
        out["final_script"] = case.sch.mod.script()
    return out if calls else None


def child(start):
    scripts = {}
    with open(PROGRAMS) as lines:
        for entry in map(json.loads, lines):
            key = entry["name"]
            scripts.setdefault(key if key.startswith("hand") else key.split("-")[0], entry["script"])
    programs = {name: (script, program(script, (tvm.IRModule, tirx.PrimFunc))) for name, script in scripts.items()}
    with open(OUT, "a") as out:
        for i in range(start, int(COUNT)):
            print(i, flush=True)
            case = make(programs, int(SEED) * 1000003 + i)
            if case:
                out.write(json.dumps(case) + "\n")
                out.flush()
    print("done", flush=True)


if "SATUNE_START" in os.environ:
    sys.path.insert(0, TVM)
    import tvm
    from tvm import s_tir, tirx
    from tvm_source import program

    child(int(os.environ["SATUNE_START"]))
else:
    open(OUT, "w").close()
    start = crashes = 0
    while True:
        env = {**os.environ, "SATUNE_START": str(start)}
        run = subprocess.run([sys.executable] + sys.argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines = run.stdout.split()
        if "done" in lines:
            break
        if not lines:
            sys.exit("TVM does not start, or the programs are not read")
        start, crashes = int(lines[-1]) + 1, crashes + 1
    print(f"{crashes} sequences stopped TVM")
