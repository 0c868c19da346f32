"""Asks nvMatmulHeuristics for its first choice of each product: a request as JSON on standard input, an answer a line."""
import json
import os
import sys

request = json.load(sys.stdin)
sys.path.insert(0, request["folder"])
import nvMatmulHeuristics as nv


def answer(library, problem):
    layout = nv.NvMatmulHeuristicsMatmulLayout[problem["layout"]]
    shape = library.makeNvMatmulHeuristicsProblem(problem["m"], problem["n"], problem["k"], layout, problem["batch"])
    found = library.get(shape, 1, precision=problem["precision"])
    if not found:
        return {"none": True}
    kernel, seconds = found[0]["kernel"], found[0]["runtime"]
    return {
        "tile": [kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k],
        "warp": [kernel.warp_tile_m, kernel.warp_tile_n],
        "stages": kernel.stages,
        "split_k": kernel.split_k,
        "cluster": [kernel.cluster_m, kernel.cluster_n],
        "estimated_ms": seconds * 1e3,
    }


library = nv.NvMatmulHeuristicsInterfaceEx(
    backend=nv.NvMatmulHeuristicsTarget[request["target"]],
    flags=nv.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
    gpu=nv.NvMatmulHeuristicsNvidiaGpu[request["gpu"]],
)
for problem in request["problems"]:
    print("answer " + json.dumps(answer(library, problem)), flush=True)
# The library may crash when it is torn down; all has been said.
os._exit(0)
