# from tvm.script import tirx as T
# from tvm.tirx.layout import Axis

@T.prim_func(s_tir=True)
def main(A: T.Buffer((256, 192), "float16"), B: T.Buffer((128, 192), "float16"), C: T.Buffer((256, 128), "float32")):
    T.func_attr({"tirx.noalias": True})
    # with T.sblock("root"):
    C_warp = T.sblock_alloc_buffer((16, 16, 32, 4), scope="warp")
    A_shared = T.sblock_alloc_buffer((256, 192), "float16", scope="shared")
    B_shared = T.sblock_alloc_buffer((128, 192), "float16", scope="shared")
    for i_0 in T.thread_binding(2, thread="blockIdx.y"):
        for j_0 in T.thread_binding(2, thread="blockIdx.x"):
            for i_1 in T.thread_binding(2, thread="threadIdx.y"):
                for i_2_init, j_1_init in T.grid(1, 1):
                    with T.sblock("C_init_o"):
                        vi_o = T.axis.spatial(4, i_0 * 2 + i_1 + i_2_init)
                        vj_o = T.axis.spatial(2, j_0 + j_1_init)
                        T.reads()
                        T.writes(C_warp[vi_o * 4:vi_o * 4 + 4, vj_o * 8:vj_o * 8 + 8, 0:32, 0:4])
                        C_1 = T.match_buffer(C_warp[vi_o * 4:vi_o * 4 + 4, vj_o * 8:vj_o * 8 + 8, 0:32, 0:4], (4, 8, 32, 4), scope="warp", offset_factor=4)
                        for tx in T.thread_binding(128, thread="threadIdx.x"):
                            for t, r in T.grid(8, 4):
                                C_1[tx // 32, t, tx % 32, r] = T.float32(0.0)
                for k_0 in T.serial(3, annotations={"software_pipeline_async_stages": [0], "software_pipeline_order": [0, 1, 2], "software_pipeline_stage": [0, 0, 2]}):
                    for ax0_ax1_fused_0 in range(4):
                        for ax0_ax1_fused_1 in T.thread_binding(2, thread="threadIdx.y"):
                            for ax0_ax1_fused_2 in T.thread_binding(128, thread="threadIdx.x"):
                                for ax0_ax1_fused_3 in T.vectorized(8):
                                    with T.sblock("A_shared"):
                                        v0 = T.axis.spatial(256, i_0 * 128 + (ax0_ax1_fused_0 * 2048 + ax0_ax1_fused_1 * 1024 + ax0_ax1_fused_2 * 8 + ax0_ax1_fused_3) // 64)
                                        v1 = T.axis.spatial(192, k_0 * 64 + (ax0_ax1_fused_0 * 2048 + ax0_ax1_fused_1 * 1024 + ax0_ax1_fused_2 * 8 + ax0_ax1_fused_3) % 64)
                                        T.reads(A[v0, v1])
                                        T.writes(A_shared[v0, v1])
                                        A_shared[v0, v1] = A[v0, v1]
                    for ax0_ax1_fused_0 in range(2):
                        for ax0_ax1_fused_1 in T.thread_binding(2, thread="threadIdx.y"):
                            for ax0_ax1_fused_2 in T.thread_binding(128, thread="threadIdx.x"):
                                for ax0_ax1_fused_3 in T.vectorized(8):
                                    with T.sblock("B_shared"):
                                        v0 = T.axis.spatial(128, j_0 * 64 + (ax0_ax1_fused_0 * 2048 + ax0_ax1_fused_1 * 1024 + ax0_ax1_fused_2 * 8 + ax0_ax1_fused_3) // 64)
                                        v1 = T.axis.spatial(192, k_0 * 64 + (ax0_ax1_fused_0 * 2048 + ax0_ax1_fused_1 * 1024 + ax0_ax1_fused_2 * 8 + ax0_ax1_fused_3) % 64)
                                        T.reads(B[v0, v1])
                                        T.writes(B_shared[v0, v1])
                                        B_shared[v0, v1] = B[v0, v1]
                    for k_1, i_2, j_1 in T.grid(4, 1, 1):
                        with T.sblock("C_update_o"):
                            vi_o = T.axis.spatial(4, i_0 * 2 + i_1 + i_2)
                            vj_o = T.axis.spatial(2, j_0 + j_1)
                            vk_o = T.axis.reduce(12, k_0 * 4 + k_1)
                            T.reads(C_warp[vi_o * 4:vi_o * 4 + 4, vj_o * 8:vj_o * 8 + 8, 0:32, 0:4], A_shared[vi_o * 64:vi_o * 64 + 64, vk_o * 16:vk_o * 16 + 16], B_shared[vj_o * 64:vj_o * 64 + 64, vk_o * 16:vk_o * 16 + 16])
                            T.writes(C_warp[vi_o * 4:vi_o * 4 + 4, vj_o * 8:vj_o * 8 + 8, 0:32, 0:4])
                            A_1 = T.match_buffer(A_shared[vi_o * 64:vi_o * 64 + 64, vk_o * 16:vk_o * 16 + 16], (64, 16), "float16", strides=("a0", "a1"), scope="shared", offset_factor=1)
                            B_1 = T.match_buffer(B_shared[vj_o * 64:vj_o * 64 + 64, vk_o * 16:vk_o * 16 + 16], (64, 16), "float16", strides=("b0", "b1"), scope="shared", offset_factor=1)
                            C_1 = T.match_buffer(C_warp[vi_o * 4:vi_o * 4 + 4, vj_o * 8:vj_o * 8 + 8, 0:32, 0:4], (4, 8, 32, 4), scope="warp", offset_factor=4)
                            for tx in T.thread_binding(128, thread="threadIdx.x"):
                                T.call_extern("int32", "wgmma.mma_async.sync.aligned.m64n64k16.f16f16f32.nt", C_1.data, C_1.elem_offset + tx * 32, T.tvm_access_ptr(T.type_annotation("float16"), A_1.data, A_1.elem_offset, A_1.strides[0] * 64, 1), A_1.strides[0], T.tvm_access_ptr(T.type_annotation("float16"), B_1.data, B_1.elem_offset, B_1.strides[0] * 64, 1), B_1.strides[0])
                for ax0, ax1 in T.grid(64, 64):
                    with T.sblock("C_warp"):
                        v0 = T.axis.spatial(256, i_0 * 128 + i_1 * 64 + ax0)
                        v1 = T.axis.spatial(128, j_0 * 64 + ax1)
                        T.reads(C_warp[v0 // 16, v1 // 8, v0 % 8 * 4 + v1 % 8 // 2, v0 % 16 // 8 * 2 + v1 % 2])
                        T.writes(C[v0, v1])
                        C[v0, v1] = C_warp[v0 // 16, v1 // 8, v0 % 8 * 4 + v1 % 8 // 2, v0 % 16 // 8 * 2 + v1 % 2]
