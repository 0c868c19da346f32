//! cuBLASLt: products by the first choices of its heuristic, and those in fp8, which cuBLAS itself does not have.
use super::blas::{Gemm, HALVES};
use super::{Buffer, Error, Gpu};
use cudarc::cublaslt::{result, sys};
use satune_ir::DType;
use std::ffi::c_void;

/// Bytes of workspace that it may use: what cuBLAS takes by itself on sm_90 (cuBLAS documentation, cublasSetWorkspace).
const WORKSPACE: u64 = 32 << 20;
/// How many of the heuristic's choices are tried.
const CHOICES: usize = 8;

impl From<result::CublasError> for Error {
    fn from(error: result::CublasError) -> Error {
        match error.0 {
            sys::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => Error::Memory(format!("cuBLASLt: {error:?}")),
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED | sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE => {
                Error::Unsupported(format!("cuBLASLt does not have this product ({:?})", error.0))
            }
            _ => Error::Driver(format!("cuBLASLt: {error:?}")),
        }
    }
}

/// A batch of column-major products, with scales 1, and the algorithms that the library would choose, best first.
pub(in crate::device::cuda) struct Lt {
    handle: sys::cublasLtHandle_t,
    product: sys::cublasLtMatmulDesc_t,
    /// Of the first factor, the second, and the result.
    layouts: Vec<sys::cublasLtMatrixLayout_t>,
    preference: sys::cublasLtMatmulPreference_t,
    algorithms: Vec<sys::cublasLtMatmulAlgo_t>,
    workspace: Buffer,
    /// Type of the scalars.
    scale: sys::cudaDataType,
}

fn data(dtype: DType) -> Result<sys::cudaDataType, Error> {
    use sys::cudaDataType as Data;
    match dtype {
        DType::F8E4M3 => Ok(Data::CUDA_R_8F_E4M3),
        DType::F8E5M2 => Ok(Data::CUDA_R_8F_E5M2),
        DType::F16 => Ok(Data::CUDA_R_16F),
        DType::BF16 => Ok(Data::CUDA_R_16BF),
        DType::F32 | DType::TF32 => Ok(Data::CUDA_R_32F),
        DType::F64 => Ok(Data::CUDA_R_64F),
        DType::I8 => Ok(Data::CUDA_R_8I),
        DType::I32 => Ok(Data::CUDA_R_32I),
        other => Err(Error::Unsupported(format!("cuBLASLt is not asked for products of {other:?}"))),
    }
}

impl Lt {
    /// Whether the library is there.
    pub fn present() -> bool {
        // SAFETY: looks for the library by name; loading it runs its initialisers, which is what we want.
        unsafe { sys::is_culib_present() }
    }

    /// Describes a product, and asks for its algorithms; `fast`: sums in fp8 are not promoted on the way.
    pub fn open(gpu: &Gpu, gemm: &Gemm<'_>, fast: bool) -> Result<Lt, Error> {
        use sys::cublasComputeType_t as Compute;
        let [factor, out] = [data(gemm.dtypes[0])?, data(gemm.dtypes[1])?];
        let (compute, scale) = match gemm.dtypes {
            [DType::F16, _] if gemm.f16_sums => (Compute::CUBLAS_COMPUTE_16F, sys::cudaDataType::CUDA_R_16F),
            [DType::I8, _] => (Compute::CUBLAS_COMPUTE_32I, sys::cudaDataType::CUDA_R_32I),
            [_, DType::F64] => (Compute::CUBLAS_COMPUTE_64F, sys::cudaDataType::CUDA_R_64F),
            [DType::F32, _] if gemm.tf32 => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, sys::cudaDataType::CUDA_R_32F),
            _ => (Compute::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F),
        };
        let workspace = gpu.alloc(WORKSPACE)?;
        let handle = result::create_handle()?;
        let mut lt = Lt {
            handle,
            product: std::ptr::null_mut(),
            layouts: Vec::new(),
            preference: std::ptr::null_mut(),
            algorithms: Vec::new(),
            workspace,
            scale,
        };
        lt.product = result::create_matmul_desc(compute, scale)?;
        use sys::cublasLtMatmulDescAttributes_t as Of;
        for (attribute, transposed) in
            [Of::CUBLASLT_MATMUL_DESC_TRANSA, Of::CUBLASLT_MATMUL_DESC_TRANSB].into_iter().zip(gemm.transposed)
        {
            if transposed {
                lt.set(attribute, &cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_T)?;
            }
        }
        if fast {
            lt.set(Of::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &1_i8)?;
        }
        let [m, n, k] = gemm.shape.map(|e| u64::from(e.unsigned_abs()));
        let turned = |transposed: bool, rows, columns| if transposed { (columns, rows) } else { (rows, columns) };
        let shapes = [turned(gemm.transposed[0], m, k), turned(gemm.transposed[1], k, n), (m, n)];
        for ((dtype, (rows, columns)), (_, lead, distance)) in
            [factor, factor, out].into_iter().zip(shapes).zip(gemm.operands)
        {
            let layout = result::create_matrix_layout(dtype, rows, columns, i64::from(lead))?;
            lt.layouts.push(layout);
            if gemm.batch > 1 {
                use sys::cublasLtMatrixLayoutAttribute_t as Is;
                // SAFETY: the layout was just made; the values outlive the calls and have the sizes that are said.
                unsafe {
                    let (count, step) = (std::ptr::from_ref(&gemm.batch), std::ptr::from_ref(&distance));
                    let of = Is::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
                    result::set_matrix_layout_attribute(layout, of, count.cast(), 4)?;
                    let of = Is::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
                    result::set_matrix_layout_attribute(layout, of, step.cast(), 8)?;
                }
            }
        }
        lt.preference = result::create_matmul_pref()?;
        let most = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes = lt.workspace.bytes() as usize;
        let [a, b, c] = lt.layouts[..] else { return Err(Error::Driver("cuBLASLt: no layouts".into())) };
        let mut found = [std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed(); CHOICES];
        let mut count = 0;
        // SAFETY: everything was made above and lives; the value outlives the call and has the size that is said; the list
        // has room for as many results as are asked for.
        unsafe {
            let size = std::mem::size_of_val(&bytes);
            result::set_matmul_pref_attribute(lt.preference, most, std::ptr::from_ref(&bytes).cast(), size)?;
            let list = found.as_mut_ptr().cast();
            let asked = CHOICES as i32;
            sys::cublasLtMatmulAlgoGetHeuristic(
                lt.handle,
                lt.product,
                a,
                b,
                c,
                c,
                lt.preference,
                asked,
                list,
                &mut count,
            )
            .result()?;
        }
        let count = usize::try_from(count).unwrap_or(0).min(CHOICES);
        // SAFETY: the library has filled in as many results as it says.
        lt.algorithms = found[..count].iter().map(|f| unsafe { f.assume_init_ref() }.algo).collect();
        if lt.algorithms.is_empty() {
            return Err(Error::Unsupported("cuBLASLt does not have this product (it knows no algorithm)".into()));
        }
        Ok(lt)
    }

    /// Sets an attribute of the product.
    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<(), Error> {
        // SAFETY: the descriptor was made by `open`; the value outlives the call and has the size that is said.
        Ok(unsafe {
            let size = std::mem::size_of::<T>();
            result::set_matmul_desc_attribute(self.product, attribute, std::ptr::from_ref(value).cast(), size)
        }?)
    }

    /// Algorithms that there are.
    pub fn choices(&self) -> usize {
        self.algorithms.len()
    }

    /// Queues it, by one of the algorithms.
    pub fn run(&self, choice: usize, [a, b, c]: [&Buffer; 3]) -> Result<(), Error> {
        let (one64, zero64, one32, zero32, one, zero) = (1.0_f64, 0.0_f64, 1.0_f32, 0.0_f32, 1_i32, 0_i32);
        let scalar = |wide: &f64, narrow: &f32, whole: &i32, half: &u16| -> *const c_void {
            match self.scale {
                sys::cudaDataType::CUDA_R_16F => std::ptr::from_ref(half).cast(),
                sys::cudaDataType::CUDA_R_64F => std::ptr::from_ref(wide).cast(),
                sys::cudaDataType::CUDA_R_32I => std::ptr::from_ref(whole).cast(),
                _ => std::ptr::from_ref(narrow).cast(),
            }
        };
        let (Some(algorithm), [of_a, of_b, of_c]) = (self.algorithms.get(choice), &self.layouts[..]) else {
            return Err(Error::Driver("cuBLASLt: no algorithm".into()));
        };
        // SAFETY: all was made by `open` and lives; the scalars outlive the call; the buffers hold the matrices that the
        // layouts describe, which the caller took from the problem that they were made for.
        let queued = unsafe {
            result::matmul(
                self.handle,
                self.product,
                scalar(&one64, &one32, &one, &HALVES[1]),
                scalar(&zero64, &zero32, &zero, &HALVES[0]),
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
