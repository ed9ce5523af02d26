/* Stands in for cuBLAS and cublasLt: no function computes but cublasSgemm, which the doctor's product of ones needs. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

#define ENTER(does)                                     \
    do {                                                \
        int code_ = enter(__func__, BLAS | does, NULL); \
        if (code_) return code_;                        \
    } while (0)

extern void note_launch(void);

static int make_handle(const char *name, int does, void **handle) {
    int code = enter(name, BLAS | does, NULL);
    if (code == 0) *handle = calloc(1, 256);
    return code;
}

int cublasCreate_v2(void **handle) { return make_handle(__func__, NEEDS_CONTEXT, handle); }

int cublasDestroy_v2(void *handle) {
    ENTER(NEEDS_CONTEXT);
    free(handle);
    return 0;
}

int cublasGetMathMode(void *handle, int *mode) {
    (void)handle;
    *mode = 0;
    return 0;
}

int cublasGetPointerMode_v2(void *handle, int *mode) {
    (void)handle;
    *mode = 0;
    return 0;
}

/* C = alpha op(A) op(B) + beta C, by columns; operations: 0 = as it is, else transposed. */
int cublasSgemm_v2(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha, const float *a, int lda,
                   const float *b, int ldb, const float *beta, float *c, int ldc) {
    (void)handle;
    ENTER(NEEDS_CONTEXT | LAUNCHES);
    note_launch();
    if ((int64_t)m * n * k > 1 << 20) return 0;
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            float sum = 0;
            for (int i = 0; i < k; i++)
                sum += a[op_a ? row * lda + i : i * lda + row] * b[op_b ? i * ldb + column : column * ldb + i];
            float *place = &c[column * ldc + row];
            *place = *alpha * sum + (*beta != 0 ? *beta * *place : 0);
        }
    return 0;
}

size_t cublasLtGetVersion(void) { return 130000; }

/* cublasLtMatmulDescOpaque_t, cublasLtMatrixLayoutOpaque_t, cublasLtMatmulPreferenceOpaque_t are 256 bytes at most. */
int cublasLtMatmulDescCreate(void **handle) { return make_handle(__func__, NEEDS_DRIVER, handle); }
int cublasLtMatrixLayoutCreate(void **handle) { return make_handle(__func__, NEEDS_DRIVER, handle); }
int cublasLtMatmulPreferenceCreate(void **handle) { return make_handle(__func__, NEEDS_DRIVER, handle); }

static int drop(void *handle) {
    free(handle);
    return 0;
}
int cublasLtMatmulDescDestroy(void *handle) { return drop(handle); }
int cublasLtMatrixLayoutDestroy(void *handle) { return drop(handle); }
int cublasLtMatmulPreferenceDestroy(void *handle) { return drop(handle); }

/* cublasLtMatmulHeuristicResult_t: {algo: 8 × uint64, workspaceSize: size_t, state: int, wavesCount: float, …}, 96 bytes */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *results, int *found) {
    (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)d, (void)preference;
    ENTER(NEEDS_CONTEXT);
    memset(results, 0, (size_t)wanted * 96);
    *found = 1;
    return 0;
}
