# from tvm.script import tirx as T
# from tvm.tirx.layout import Axis

@T.prim_func(s_tir=True)
def main(A: T.Buffer((128, 192), "float16"), B: T.Buffer((64, 192), "float16"), C: T.Buffer((128, 64), "float32")):
    T.func_attr({"tirx.noalias": True})
    # with T.sblock("root"):
    C_warp = T.sblock_alloc_buffer((8, 8, 32, 4), scope="warp")
    A_shared = T.sblock_alloc_buffer((128, 192), "float16", scope="shared")
    A_shared_warp = T.sblock_alloc_buffer((8, 12, 32, 8), "float16", scope="warp")
    B_shared = T.sblock_alloc_buffer((64, 192), "float16", scope="shared")
    for i_0 in T.thread_binding(2, thread="blockIdx.y"):
        for j_0 in T.thread_binding(1, thread="blockIdx.x"):
            for i_1 in T.thread_binding(1, thread="threadIdx.y"):
                for i_2_init, j_1_init in T.grid(1, 1):
                    with T.sblock("C_init_o"):
                        vi_o = T.axis.spatial(2, i_0 + i_1 + i_2_init)
                        vj_o = T.axis.spatial(1, j_0 + j_1_init)
                        T.reads()
                        T.writes(C_warp[vi_o * 4:vi_o * 4 + 4, 0:8, 0:32, 0:4])
                        C_1 = T.match_buffer(C_warp[vi_o * 4:vi_o * 4 + 4, 0:8, 0:32, 0:4], (4, 8, 32, 4), scope="warp", offset_factor=4)
                        for tx in T.thread_binding(128, thread="threadIdx.x"):
                            for t, r in T.grid(8, 4):
                                C_1[tx // 32, t, tx % 32, r] = T.float32(0.0)
                for k_0 in T.serial(3, annotations={"satune.eager_release": 1, "software_pipeline_async_stages": [0], "software_pipeline_order": [0, 1, 2], "software_pipeline_stage": [0, 0, 1]}):
                    for ax0, ax1 in T.grid(64, 64):
                        with T.sblock("A_shared"):
                            v0 = T.axis.spatial(128, i_0 * 64 + ax0)
                            v1 = T.axis.spatial(192, k_0 * 64 + ax1)
                            T.reads(A[v0, v1])
                            T.writes(A_shared[v0, v1])
                            T.sblock_attr({"satune.tma": 1})
                            A_shared[v0, v1] = A[v0, v1]
                    for ax0, ax1 in T.grid(64, 64):
                        with T.sblock("B_shared"):
                            v0 = T.axis.spatial(64, ax0)
                            v1 = T.axis.spatial(192, k_0 * 64 + ax1)
                            T.reads(B[v0, v1])
                            T.writes(B_shared[v0, v1])
                            T.sblock_attr({"satune.tma": 1})
                            B_shared[v0, v1] = B[v0, v1]
                    for k_1 in range(4):
                        for ax0, ax1 in T.grid(64, 16):
                            with T.sblock("A_shared_warp"):
                                v0 = T.axis.spatial(128, i_0 * 64 + ax0)
                                v1 = T.axis.spatial(192, k_0 * 64 + k_1 * 16 + ax1)
                                T.reads(A_shared[v0, v1])
                                T.writes(A_shared_warp[v0 // 16, v1 // 16, v0 % 8 * 4 + v1 % 8 // 2, v1 % 16 // 8 * 4 + v0 % 16 // 8 * 2 + v1 % 2])
                                A_shared_warp[v0 // 16, v1 // 16, v0 % 8 * 4 + v1 % 8 // 2, v1 % 16 // 8 * 4 + v0 % 16 // 8 * 2 + v1 % 2] = A_shared[v0, v1]
                        for i_2, j_1 in T.grid(1, 1):
                            with T.sblock("C_update_o"):
                                vi_o = T.axis.spatial(2, i_0 + i_1 + i_2)
                                vj_o = T.axis.spatial(1, j_0 + j_1)
                                vk_o = T.axis.reduce(12, k_0 * 4 + k_1)
                                T.reads(C_warp[vi_o * 4:vi_o * 4 + 4, 0:8, 0:32, 0:4], A_shared_warp[vi_o * 4:vi_o * 4 + 4, vk_o, 0:32, 0:8], B_shared[0:64, vk_o * 16:vk_o * 16 + 16])
                                T.writes(C_warp[vi_o * 4:vi_o * 4 + 4, 0:8, 0:32, 0:4])
                                A_1 = T.match_buffer(A_shared_warp[vi_o * 4:vi_o * 4 + 4, vk_o, 0:32, 0:8], (4, 1, 32, 8), "float16", scope="warp", offset_factor=8)
                                B_1 = T.match_buffer(B_shared[0:64, vk_o * 16:vk_o * 16 + 16], (64, 16), "float16", strides=("b0", "b1"), scope="shared", offset_factor=1)
                                C_1 = T.match_buffer(C_warp[vi_o * 4:vi_o * 4 + 4, 0:8, 0:32, 0:4], (4, 8, 32, 4), scope="warp", offset_factor=4)
                                for tx in T.thread_binding(128, thread="threadIdx.x"):
                                    T.call_extern("int32", "wgmma.mma_async.sync.aligned.m64n64k16.f16f16f32.rt", C_1.data, C_1.elem_offset + tx * 32, A_1.data, A_1.elem_offset + tx * 8, T.tvm_access_ptr(T.type_annotation("float16"), B_1.data, B_1.elem_offset, B_1.strides[0] * 64, 1), B_1.strides[0])
                for ax0, ax1 in T.grid(64, 64):
                    with T.sblock("C_warp"):
                        v0 = T.axis.spatial(128, i_0 * 64 + ax0)
                        v1 = T.axis.spatial(64, ax1)
                        T.reads(C_warp[v0 // 16, v1 // 8, v0 % 8 * 4 + v1 % 8 // 2, v0 % 16 // 8 * 2 + v1 % 2])
                        T.writes(C[v0, v1])
                        C[v0, v1] = C_warp[v0 // 16, v1 // 8, v0 % 8 * 4 + v1 % 8 // 2, v0 % 16 // 8 * 2 + v1 % 2]
