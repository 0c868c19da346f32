from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(A: T.Buffer((512, 512), "float32"), C: T.Buffer((512,), "float32")):
    for j, i in T.grid(512, 512):
        with T.sblock("C"):
            vj, vi = T.axis.remap("SR", [j, i])
            with T.init():
                C[vj] = T.float32(0)
            C[vj] = C[vj] + A[vi, vj]
