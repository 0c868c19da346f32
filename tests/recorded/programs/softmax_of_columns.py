from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(A: T.Buffer((512, 512), "float32"), O: T.Buffer((512, 512), "float32")):
    M = T.sblock_alloc_buffer((512,), "float32")
    S = T.sblock_alloc_buffer((512,), "float32")
    for j, i in T.grid(512, 512):
        with T.sblock("M"):
            vj, vi = T.axis.remap("SR", [j, i])
            with T.init():
                M[vj] = T.min_value("float32")
            M[vj] = T.max(M[vj], A[vi, vj])
    for j, i in T.grid(512, 512):
        with T.sblock("S"):
            vj, vi = T.axis.remap("SR", [j, i])
            with T.init():
                S[vj] = T.float32(0)
            S[vj] = S[vj] + T.exp(A[vi, vj] - M[vj])
    for i, j in T.grid(512, 512):
        with T.sblock("O"):
            vi, vj = T.axis.remap("SS", [i, j])
            O[vi, vj] = T.exp(A[vi, vj] - M[vj]) / S[vj]
