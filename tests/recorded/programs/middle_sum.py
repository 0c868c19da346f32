from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(A: T.Buffer((64, 512, 64), "float32"), C: T.Buffer((64, 64), "float32")):
    for a, b, i in T.grid(64, 64, 512):
        with T.sblock("C"):
            va, vb, vi = T.axis.remap("SSR", [a, b, i])
            with T.init():
                C[va, vb] = T.float32(0)
            C[va, vb] = C[va, vb] + A[va, vi, vb]
