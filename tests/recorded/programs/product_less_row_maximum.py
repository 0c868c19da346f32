from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(A: T.Buffer((512, 64), "float32"), B: T.Buffer((512, 64), "float32"), D: T.Buffer((512, 512), "float32")):
    C = T.sblock_alloc_buffer((512, 512), "float32")
    M = T.sblock_alloc_buffer((512,), "float32")
    for i, j, k in T.grid(512, 512, 64):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vj, vk]
    for i, j in T.grid(512, 512):
        with T.sblock("M"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                M[vi] = T.min_value("float32")
            M[vi] = T.max(M[vi], C[vi, vj])
    for i, j in T.grid(512, 512):
        with T.sblock("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] - M[vi]
