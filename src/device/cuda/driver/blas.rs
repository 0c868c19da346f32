//! cuBLAS: products of matrices, and of a matrix and a vector.
use super::{Buffer, Error, Gpu};
use cudarc::cublas::{result, sys};
use satune_ir::DType;
use std::ffi::c_void;

impl From<result::CublasError> for Error {
    fn from(error: result::CublasError) -> Error {
        match error.0 {
            sys::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => Error::Memory(format!("cuBLAS: {error:?}")),
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => {
                Error::Unsupported("cuBLAS does not have this product (CUBLAS_STATUS_NOT_SUPPORTED)".into())
            }
            _ => Error::Driver(format!("cuBLAS: {error:?}")),
        }
    }
}

/// cuBLAS. It rounds nothing to TF32 but where a call says so.
pub(in crate::device::cuda) struct Blas {
    handle: sys::cublasHandle_t,
    _gpu: Gpu,
}

/// A strided batched product of column-major matrices, as cuBLAS takes it.
#[derive(Clone, Copy)]
pub(in crate::device::cuda) struct Gemm<'b> {
    /// Whether each factor is transposed.
    pub transposed: [bool; 2],
    /// m, n, k.
    pub shape: [i32; 3],
    /// Factors and result: memory, leading dimension, distance between the batch's matrices.
    pub operands: [(&'b Buffer, i32, i64); 3],
    /// Type of the factors, type of the result.
    pub dtypes: [DType; 2],
    /// Matrices.
    pub batch: i32,
    /// Factors in f32 may be rounded to tf32.
    pub tf32: bool,
    /// Products of f16 are added up in f16.
    pub f16_sums: bool,
}

/// 0 and 1 in f16, by their bits.
pub(super) const HALVES: [u16; 2] = [0, 0x3c00];

impl Blas {
    fn present() -> bool {
        // SAFETY: looks for the library by name; loading it runs its initialisers, which is what we want.
        unsafe { sys::is_culib_present() }
    }

    /// Its version, if it is there and comes up.
    pub fn version() -> Option<String> {
        if !Blas::present() {
            return None;
        }
        let handle = result::create_handle().ok()?;
        let mut version = 0;
        // SAFETY: the handle was just made; `version` outlives the call.
        let got = unsafe { sys::cublasGetVersion_v2(handle, &mut version) };
        // SAFETY: made here, destroyed once.
        let _ = unsafe { result::destroy_handle(handle) };
        let text = format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100);
        got.result().ok().map(|()| text)
    }

    /// The library, if it is there.
    pub fn open(gpu: &Gpu) -> Result<Option<Blas>, Error> {
        if !Blas::present() {
            return Ok(None);
        }
        Ok(Some(Blas { handle: result::create_handle()?, _gpu: gpu.clone() }))
    }

    /// Queues a product by `cublasGemmStridedBatchedEx`.
    pub fn strided(&self, gemm: &Gemm<'_>) -> Result<(), Error> {
        let of = Terms::of(gemm)?;
        let [a, b, c] = gemm.operands;
        let [m, n, k] = gemm.shape;
        // SAFETY: the handle lives; the scalars outlive the call; the buffers hold the matrices that shape, leading
        // dimensions and distances describe, which the caller computed from the problem that they were made for.
        let queued = unsafe {
            result::gemm_strided_batched_ex(
                self.handle,
                of.operations[0],
                of.operations[1],
                m,
                n,
                k,
                of.one(),
                a.0.pointer as *const c_void,
                of.factor,
                a.1,
                a.2,
                b.0.pointer as *const c_void,
                of.factor,
                b.1,
                b.2,
                of.zero(),
                c.0.pointer as *mut c_void,
                of.sum,
                c.1,
                c.2,
                gemm.batch,
                of.compute,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        Ok(queued?)
    }

    /// Queues a product without a batch by `cublasGemmEx`.
    pub fn single(&self, gemm: &Gemm<'_>) -> Result<(), Error> {
        let of = Terms::of(gemm)?;
        let [a, b, c] = gemm.operands;
        let [m, n, k] = gemm.shape;
        // SAFETY: as of `strided`.
        let queued = unsafe {
            sys::cublasGemmEx(
                self.handle,
                of.operations[0],
                of.operations[1],
                m,
                n,
                k,
                of.one(),
                a.0.pointer as *const c_void,
                of.factor,
                a.1,
                b.0.pointer as *const c_void,
                of.factor,
                b.1,
                of.zero(),
                c.0.pointer as *mut c_void,
                of.sum,
                c.1,
                of.compute,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        Ok(queued.result()?)
    }
}

/// A product in cuBLAS's terms.
struct Terms {
    operations: [sys::cublasOperation_t; 2],
    factor: sys::cudaDataType_t,
    sum: sys::cudaDataType_t,
    compute: sys::cublasComputeType_t,
}

impl Terms {
    fn of(gemm: &Gemm<'_>) -> Result<Terms, Error> {
        use sys::{cublasComputeType_t as Compute, cublasOperation_t as Operation, cudaDataType_t as Data};
        let data = |dtype| match dtype {
            DType::F16 => Ok(Data::CUDA_R_16F),
            DType::BF16 => Ok(Data::CUDA_R_16BF),
            DType::F32 => Ok(Data::CUDA_R_32F),
            DType::F64 => Ok(Data::CUDA_R_64F),
            DType::I8 => Ok(Data::CUDA_R_8I),
            DType::I32 => Ok(Data::CUDA_R_32I),
            other => Err(Error::Unsupported(format!("cuBLAS is not asked for products of {other:?}"))),
        };
        // Sums, and the scalars, in the type that the problem asks for.
        let compute = match gemm.dtypes {
            [DType::F16, _] if gemm.f16_sums => Compute::CUBLAS_COMPUTE_16F,
            [DType::I8, _] => Compute::CUBLAS_COMPUTE_32I,
            [_, DType::F64] => Compute::CUBLAS_COMPUTE_64F,
            [DType::F32, _] if gemm.tf32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => Compute::CUBLAS_COMPUTE_32F,
        };
        Ok(Terms {
            operations: gemm.transposed.map(|t| if t { Operation::CUBLAS_OP_T } else { Operation::CUBLAS_OP_N }),
            factor: data(gemm.dtypes[0])?,
            sum: data(gemm.dtypes[1])?,
            compute,
        })
    }

    fn one(&self) -> *const c_void {
        self.scalar(&1.0, &1.0, &1, &HALVES[1])
    }

    fn zero(&self) -> *const c_void {
        self.scalar(&0.0, &0.0, &0, &HALVES[0])
    }

    fn scalar(
        &self,
        wide: &'static f64,
        narrow: &'static f32,
        whole: &'static i32,
        half: &'static u16,
    ) -> *const c_void {
        match self.compute {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_16F => std::ptr::from_ref(half).cast(),
            sys::cublasComputeType_t::CUBLAS_COMPUTE_64F => std::ptr::from_ref(wide).cast(),
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32I => std::ptr::from_ref(whole).cast(),
            _ => std::ptr::from_ref(narrow).cast(),
        }
    }
}

impl Blas {
    /// Queues the product of a matrix in f32, stored by rows without gaps, and a vector.
    pub fn rows(&self, [rows, columns]: [i32; 2], [matrix, vector, out]: [&Buffer; 3]) -> Result<(), Error> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        // Stored by columns it is the transposed matrix.
        // SAFETY: the handle lives; the scalars outlive the call; the buffers hold a matrix and vectors of these sizes,
        // which the caller took from the problem that they were made for.
        let queued = unsafe {
            sys::cublasSgemv_v2(
                self.handle,
                sys::cublasOperation_t::CUBLAS_OP_T,
                columns,
                rows,
                &one,
                matrix.pointer as *const f32,
                columns,
                vector.pointer as *const f32,
                1,
                &zero,
                out.pointer as *mut f32,
                1,
            )
        };
        Ok(queued.result()?)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made here, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
