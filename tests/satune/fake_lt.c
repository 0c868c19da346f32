// A cuBLASLt that multiplies nothing: it notes what it is asked in the file SATUNE_FAKE_LOG.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Layout { int type; unsigned long long rows, columns; long long lead; };
struct Product { int compute, scale, transposed, second, fast; };

int cublasLtCreate(void** handle) { *handle = (void*)5; return 0; }
int cublasLtDestroy(void* handle) { return 0; }
int cublasLtMatmulDescCreate(struct Product** out, int compute, int scale)
{
    *out = calloc(1, sizeof(struct Product));
    (*out)->compute = compute;
    (*out)->scale = scale;
    return 0;
}
int cublasLtMatmulDescDestroy(struct Product* p) { free(p); return 0; }
int cublasLtMatmulDescSetAttribute(struct Product* p, int what, const void* value, size_t bytes)
{
    // The factors transposed, and sums in fp8 that are not promoted; nothing else is asked.
    if ((what == 3 || what == 4) && bytes == 4) memcpy(what == 3 ? &p->transposed : &p->second, value, 4);
    else if (what == 25 && bytes == 1) p->fast = *(const char*)value;
    else return 7;
    return 0;
}
int cublasLtMatrixLayoutCreate(struct Layout** out, int type, uint64_t rows, uint64_t columns, int64_t lead)
{
    struct Layout made = {type, rows, columns, lead};
    *out = malloc(sizeof made);
    **out = made;
    return 0;
}
// The matrices of a batch and the distance between them.
int cublasLtMatrixLayoutSetAttribute(struct Layout* l, int what, const void* value, size_t bytes)
{
    return (what == 5 && bytes == 4) || (what == 6 && bytes == 8) ? 0 : 7;
}
int cublasLtMatrixLayoutDestroy(struct Layout* l) { free(l); return 0; }
int cublasLtMatmulPreferenceCreate(void** out) { *out = malloc(1); return 0; }
int cublasLtMatmulPreferenceDestroy(void* p) { free(p); return 0; }
int cublasLtMatmulPreferenceSetAttribute(void* p, int what, const void* value, size_t bytes)
{
    return what == 1 && bytes == 8 && *(const uint64_t*)value == 32u << 20 ? 0 : 7;
}
int cublasLtMatmulAlgoGetHeuristic(void* handle, struct Product* p, struct Layout* a, struct Layout* b, struct Layout* c,
                                   struct Layout* d, void* preference, int asked, void* results, int* found)
{
    // Of two factors in e5m2 the real one has no products either.
    if (a->type == 29 && b->type == 29) return 15;
    // It has two algorithms for everything.
    if (asked != 8) return 7;
    memset(results, 0, 2 * (64 + 8 + 4 + 4 + 16));
    *found = 2;
    return 0;
}
static double scalar(struct Product* p, const void* s)
{
    return p->scale == 10 ? *(const int*)s : p->scale == 1 ? *(const double*)s : *(const float*)s;
}
int cublasLtMatmul(void* handle, struct Product* p, const void* alpha, const void* a, struct Layout* la, const void* b,
                   struct Layout* lb, const void* beta, const void* c, struct Layout* lc, void* d, struct Layout* ld,
                   const void* algorithm, void* workspace, size_t bytes, void* stream)
{
    const char* name = getenv("SATUNE_FAKE_LOG");
    FILE* file = name ? fopen(name, "a") : 0;
    if (file) {
        fprintf(file, "lt: %c%s%s %llu x %llu, %llu x %llu, %llu x %llu, types %d %d %d, leading %lld %lld %lld, compute %d, scalars %g %g\n",
                p->transposed ? 'T' : 'N', p->second ? " T" : "", p->fast ? " fast" : "", la->rows, la->columns, lb->rows, lb->columns, lc->rows, lc->columns, la->type,
                lb->type, lc->type, la->lead, lb->lead, lc->lead, p->compute, scalar(p, alpha), scalar(p, beta));
        fclose(file);
    }
    return algorithm && workspace && bytes == 32u << 20 && c == d ? 0 : 7;
}
