// A cuBLAS that multiplies nothing: it notes what it is asked in the file SATUNE_FAKE_LOG.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int cublasSgemv_v2(void* handle, int t, int m, int n, const float* alpha, const float* a, int lda, const float* x, int incx,
                   const float* beta, float* y, int incy)
{
    const char* name = getenv("SATUNE_FAKE_LOG");
    FILE* file = name ? fopen(name, "a") : 0;
    if (file) {
        fprintf(file, "blas: rows %c %d x %d, leading %d, steps %d %d, scalars %g %g\n", t ? 'T' : 'N', m, n, lda, incx, incy,
                *alpha, *beta);
        fclose(file);
    }
    return 0;
}
int cublasCreate_v2(void** handle) { *handle = (void*)4; return 0; }
int cublasDestroy_v2(void* handle) { return 0; }
int cublasGetVersion_v2(void* handle, int* version) { *version = 130001; return 0; }
static void note(const char* door, int ta, int tb, int m, int n, int k, const void* alpha, int atype, int lda, int btype, int ldb,
                 const void* beta, int ctype, int ldc, int compute);
int cublasGemmEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int atype, int lda,
                 const void* b, int btype, int ldb, const void* beta, void* c, int ctype, int ldc, int compute, int algo)
{
    note("gemm", ta, tb, m, n, k, alpha, atype, lda, btype, ldb, beta, ctype, ldc, compute);
    return ctype == 10 && (lda % 4 || ldb % 4) ? 15 : 0;
}
int cublasGemmStridedBatchedEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int atype,
                               int lda, long long astride, const void* b, int btype, int ldb, long long bstride,
                               const void* beta, void* c, int ctype, int ldc, long long cstride, int batch, int compute,
                               int algo)
{
    note("blas", ta, tb, m, n, k, alpha, atype, lda, btype, ldb, beta, ctype, ldc, compute);
    // What the real one does not have either.
    if (ctype == 10 && (lda % 4 || ldb % 4)) return 15;
    return 0;
}
static void note(const char* door, int ta, int tb, int m, int n, int k, const void* alpha, int atype, int lda, int btype, int ldb,
                 const void* beta, int ctype, int ldc, int compute)
{
    const char* name = getenv("SATUNE_FAKE_LOG");
    FILE* file = name ? fopen(name, "a") : 0;
    // Sums of whole numbers have whole scalars, those in double precision wide ones.
    double one = compute == 72 ? *(const int*)alpha : compute == 70 ? *(const double*)alpha : *(const float*)alpha;
    double zero = compute == 72 ? *(const int*)beta : compute == 70 ? *(const double*)beta : *(const float*)beta;
    if (file) {
        fprintf(file, "%s: %c%c %d x %d x %d, types %d %d %d, leading %d %d %d, compute %d, scalars %g %g\n", door,
                ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, atype, btype, ctype, lda, ldb, ldc, compute, one, zero);
        fclose(file);
    }
}
