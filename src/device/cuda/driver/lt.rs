//! cuBLASLt: products in fp8, which cuBLAS itself does not have.
use super::{Buffer, Error, Gpu};
use cudarc::cublaslt::{result, sys};
use satune_ir::DType;
use std::ffi::c_void;

/// Bytes of workspace that it may use: what cuBLAS takes by itself on sm_90 (cuBLAS documentation, cublasSetWorkspace).
const WORKSPACE: u64 = 32 << 20;

impl From<result::CublasError> for Error {
    fn from(error: result::CublasError) -> Error {
        match error.0 {
            sys::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => Error::Memory(format!("cuBLASLt: {error:?}")),
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => {
                Error::Unsupported("cuBLASLt does not have this product (CUBLAS_STATUS_NOT_SUPPORTED)".into())
            }
            _ => Error::Driver(format!("cuBLASLt: {error:?}")),
        }
    }
}

/// One product: C' = B A' in columns, of matrices that both run along k (the only order that it has in fp8), with scales 1.
/// The algorithm is its first choice.
pub(in crate::device::cuda) struct Lt {
    handle: sys::cublasLtHandle_t,
    product: sys::cublasLtMatmulDesc_t,
    /// Of the first factor, the second, and the result.
    layouts: Vec<sys::cublasLtMatrixLayout_t>,
    preference: sys::cublasLtMatmulPreference_t,
    algorithm: Option<sys::cublasLtMatmulAlgo_t>,
    workspace: Buffer,
}

fn data(dtype: DType) -> Result<sys::cudaDataType, Error> {
    use sys::cudaDataType as Data;
    match dtype {
        DType::F8E4M3 => Ok(Data::CUDA_R_8F_E4M3),
        DType::F8E5M2 => Ok(Data::CUDA_R_8F_E5M2),
        DType::F16 => Ok(Data::CUDA_R_16F),
        DType::BF16 => Ok(Data::CUDA_R_16BF),
        DType::F32 => Ok(Data::CUDA_R_32F),
        other => Err(Error::Unsupported(format!("cuBLASLt is not asked for products of {other:?}"))),
    }
}

impl Lt {
    /// Whether the library is there.
    pub fn present() -> bool {
        // SAFETY: looks for the library by name; loading it runs its initialisers, which is what we want.
        unsafe { sys::is_culib_present() }
    }

    /// Makes a product of m x n x k, column-major, without gaps: factors k x m (transposed) and k x n, result m x n.
    pub fn open(gpu: &Gpu, [m, n, k]: [u64; 3], [factor, out]: [DType; 2]) -> Result<Lt, Error> {
        if !Lt::present() {
            return Err(Error::Unsupported("cuBLASLt, which has the products in fp8, is not to be found".into()));
        }
        let (factor, out) = (data(factor)?, data(out)?);
        let workspace = gpu.alloc(WORKSPACE)?;
        let handle = result::create_handle()?;
        let mut lt = Lt {
            handle,
            product: std::ptr::null_mut(),
            layouts: Vec::new(),
            preference: std::ptr::null_mut(),
            algorithm: None,
            workspace,
        };
        lt.product =
            result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F)?;
        let transposed = cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_T;
        let transa = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        // SAFETY: the descriptor was just made; the value outlives the call and has the size that is said.
        unsafe {
            let size = std::mem::size_of_val(&transposed);
            result::set_matmul_desc_attribute(lt.product, transa, std::ptr::from_ref(&transposed).cast(), size)?;
        }
        for (dtype, rows, columns) in [(factor, k, m), (factor, k, n), (out, m, n)] {
            let lead = i64::try_from(rows).unwrap_or(i64::MAX);
            lt.layouts.push(result::create_matrix_layout(dtype, rows, columns, lead)?);
        }
        lt.preference = result::create_matmul_pref()?;
        let most = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes = lt.workspace.bytes() as usize;
        let [a, b, c] = lt.layouts[..] else { return Err(Error::Driver("cuBLASLt: no layouts".into())) };
        // SAFETY: everything was made above and lives; the value outlives the call and has the size that is said.
        let found = unsafe {
            let size = std::mem::size_of_val(&bytes);
            result::set_matmul_pref_attribute(lt.preference, most, std::ptr::from_ref(&bytes).cast(), size)?;
            result::get_matmul_algo_heuristic(lt.handle, lt.product, a, b, c, c, lt.preference)?
        };
        lt.algorithm = Some(found.algo);
        Ok(lt)
    }

    /// Queues it.
    pub fn run(&self, [a, b, c]: [&Buffer; 3]) -> Result<(), Error> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        let (Some(algorithm), [of_a, of_b, of_c]) = (&self.algorithm, &self.layouts[..]) else {
            return Err(Error::Driver("cuBLASLt: no algorithm".into()));
        };
        // SAFETY: all was made by `open` and lives; the scalars outlive the call; the buffers hold the matrices that the
        // layouts describe, which the caller took from the problem that they were made for.
        let queued = unsafe {
            result::matmul(
                self.handle,
                self.product,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&zero).cast(),
                a.pointer as *const c_void,
                *of_a,
                b.pointer as *const c_void,
                *of_b,
                c.pointer as *const c_void,
                *of_c,
                c.pointer as *mut c_void,
                *of_c,
                algorithm,
                self.workspace.pointer as *mut c_void,
                self.workspace.bytes,
                std::ptr::null_mut(),
            )
        };
        Ok(queued?)
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        // SAFETY: made by `open`, destroyed once; what was not made is null or not in the list.
        unsafe {
            for layout in self.layouts.drain(..) {
                let _ = result::destroy_matrix_layout(layout);
            }
            if !self.preference.is_null() {
                let _ = result::destroy_matmul_pref(self.preference);
            }
            if !self.product.is_null() {
                let _ = result::destroy_matmul_desc(self.product);
            }
            let _ = result::destroy_handle(self.handle);
        }
    }
}
