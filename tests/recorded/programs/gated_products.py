from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(X: T.Buffer((512, 512), "float32"), W: T.Buffer((512, 512), "float32"), U: T.Buffer((512, 512), "float32"), O: T.Buffer((512, 512), "float32")):
    G = T.sblock_alloc_buffer((512, 512), "float32")
    H = T.sblock_alloc_buffer((512, 512), "float32")
    for i, j, k in T.grid(512, 512, 512):
        with T.sblock("G"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                G[vi, vj] = T.float32(0)
            G[vi, vj] = G[vi, vj] + X[vi, vk] * W[vj, vk]
    for i, j, k in T.grid(512, 512, 512):
        with T.sblock("H"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                H[vi, vj] = T.float32(0)
            H[vi, vj] = H[vi, vj] + X[vi, vk] * U[vj, vk]
    for i, j in T.grid(512, 512):
        with T.sblock("O"):
            vi, vj = T.axis.remap("SS", [i, j])
            O[vi, vj] = G[vi, vj] * (T.float32(1) / (T.float32(1) + T.exp(T.float32(0) - G[vi, vj]))) * H[vi, vj]
