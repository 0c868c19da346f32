"""Compares with TVM: tvm_check.py TVM_FOLDER REQUESTS ANSWERS, files of JSON lines.

A request is {"expect": a program, "reference": another}: are both the same to TVM? Or {"expect": a program, "script": the
source program, "python": a function `schedule(sch)`}: does TVM run the function on the source, and is the result the
program expected? The answer is {"error": text or null}, for the latter also the trace that TVM recorded, as JSON ("json":
Trace.as_json, "graph": the same in TVM's own serialization) and as Python ("text",
null where TVM cannot print it), and the program as TVM prints it ("final"). With "verdict": true instead of "expect",
nothing is compared: "error" is TVM's short message, "class" the name of the exception.

Or {"schedule": a program, "by": "meta_schedule", "pipelined" (the same with software pipelines, of f16 with sums in f32, NN) or "dlight",
"arch": as "sm_70", "seed": a number}: how TVM's own rules for tensor cores schedule it. The answer has the program ("final"), null where none of the rules' schedules fits the GPU.
"""
import json
import sys

sys.path.insert(0, sys.argv[1])

import tvm  # noqa: E402
from tvm import s_tir, tirx  # noqa: E402
from tvm_source import load, program  # noqa: E402


def parse(text):
    found = program(text, (tvm.IRModule, tirx.PrimFunc))
    if isinstance(found, tirx.PrimFunc):
        found = tvm.IRModule({"main": found.with_attr("global_symbol", "main")})
    return found


def plain(value):
    """A trace as plain JSON: constants as numbers."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tvm.tirx.IntImm, tvm.tirx.FloatImm)):
        return value.value
    if hasattr(value, "items"):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value]


def difference(one, other):
    try:
        tvm.ir.assert_structural_equal(one, other, map_free_vars=True)
        return None
    except ValueError as error:
        return str(error)


def pipelined(rule):
    """TVM's default rule for wmma, with software pipelines."""
    wmma, shared = "16x16x16_f16", "shared_dyn"
    return rule.MultiLevelTilingTensorCore(
        intrin_groups=[
            {
                "init": "wmma_fill_16x16x16_f32",
                "load_a": f"wmma_load_{wmma}_a_{shared}",
                "load_b": f"wmma_load_{wmma}_b_{shared}",
                "compute": f"wmma_sync_{wmma}f16f32",
                "store": f"wmma_store_16x16x16_f32_{shared}",
            }
        ],
        structure="SSSRRSRS",
        tile_binds=["blockIdx.y", "blockIdx.x", "threadIdx.y"],
        max_innermost_factor=4,
        vector_load_lens=[1, 2, 3, 4, 8, 16],
        reuse_read=rule.ReuseType(req="must", levels=[4], scope="shared.dyn"),
        reuse_write=rule.ReuseType(req="must", levels=[2], scope="shared.dyn"),
        use_software_pipeline=True,
    )


def scheduled(request):
    """What TVM's rules for tensor cores make of a program."""
    from tvm.s_tir import dlight
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.tensor_intrin import cuda  # noqa: F401, registers the intrinsics

    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
    target = tvm.target.Target({"kind": "cuda", "arch": request["arch"], **limits})
    mod = parse(request["schedule"])
    if request["by"] == "dlight":
        with target:
            return dlight.ApplyDefaultSchedule(dlight.gpu.Matmul())(mod)
    rules = {"sch_rules": "cuda-tensorcore", "postprocs": "cuda-tensorcore", "mutator_probs": {}}
    if request["by"] == "pipelined":
        rules["sch_rules"] = [pipelined(ms.schedule_rule)]
    generator = ms.space_generator.PostOrderApply(**rules)
    context = ms.TuneContext(
        mod=mod, target=target, space_generator=generator, task_name="x", num_threads=1, rand_state=request["seed"]
    )
    for schedule in context.generate_design_space():
        if all(step.apply(schedule) for step in generator.postprocs):
            return schedule.mod
    return None


def check(request):
    if "schedule" in request:
        made = scheduled(request)
        return {"error": None, "final": None if made is None else made["main"].script()}
    answer = {"error": None}
    if "python" in request:
        verdict = request.get("verdict", False)
        level = "fast" if verdict else "detail"
        sch = s_tir.Schedule(parse(request["script"]), debug_mask="none", error_render_level=level)
        schedule = load(request["python"]).schedule
        try:
            schedule(sch)
        except Exception as error:
            if not verdict:
                raise
            return {"error": str(error), "class": type(error).__name__}
        result = sch.mod
        answer["final"] = result.script()
        answer["json"] = plain(sch.trace.as_json())
        answer["graph"] = tvm.ir.save_json(sch.trace.as_json())
        # TVM cannot print every trace (decompose_padding); where it cannot, it names the object.
        text = str(sch.trace)
        answer["text"] = None if text.startswith("Trace(") else text
        if verdict:
            return answer
    else:
        result = parse(request["reference"])
    expected = parse(request["expect"])
    error = difference(result, expected)
    if error is not None:
        # Some primitives leave one variable in two loops, which no text can say: compare what TVM prints.
        error = difference(parse(result.script()), expected)
    if error is not None:
        answer["error"] = f"the programs differ: {error}\n--- TVM's\n{result.script()}\n--- ours\n{request['expect']}"
    return answer


with open(sys.argv[2]) as requests, open(sys.argv[3], "w") as answers:
    for line in requests:
        try:
            answer = check(json.loads(line))
        except BaseException as error:  # TVM's parser exits on errors
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
