//! From a program to the contraction that it computes: a product as it stands, or a convolution brought to one.
use super::encode::{product, Combined, EncodeError};
use super::gather;
use super::nests::{block_of, parts};
use satune_ir::term::tensor::Gemm;
use satune_ir::term::Contraction;
use satune_ir::{DType, Program};

/// Reads the contraction off a program: of one block, of one and a chain of elementwise blocks after it, or of a convolution
/// with its padding and such a chain.
///
/// # Errors
/// When the program is something else; the message says what does not fit.
pub fn contraction(program: &Program) -> Result<Contraction, EncodeError> {
    let error = match product(program) {
        Ok(found) => return Ok(for_tensor_cores(program, &found).unwrap_or(found)),
        Err(error) => error,
    };
    // Of a program without a sum of products there is nothing more to say than why the block that reduces is none.
    if !gather::sums_products(program) {
        return Err(reducing(program).unwrap_or(error));
    }
    gather::read(program).map_err(|reason| EncodeError::Convolution { product: Box::new(error), reason })
}

/// A product that tensor cores multiply but for where its matrices lie (heads between rows and columns, sums over two axes): brought to
/// matrices as a convolution is.
fn for_tensor_cores(program: &Program, found: &Contraction) -> Option<Contraction> {
    // Sums of f32 are for single threads first: a product in tf32 is another one.
    let meant = Gemm::multiplied(found) && found.a.dtype != DType::F32 && Gemm::of(found).is_err();
    let gathered = meant.then(|| gather::read(program).ok())??;
    Gemm::of(&gathered).is_ok().then_some(gathered)
}

/// Why the only block of several that reduces is no sum of products.
fn reducing(program: &Program) -> Option<EncodeError> {
    let blocks = parts(program).into_iter().map(|p| block_of(program, p)).collect::<Result<Vec<_>, _>>().ok()?;
    let mut reduce = blocks.into_iter().filter(|b| b.init.is_some());
    let (block, None) = (reduce.next()?, reduce.next()) else { return None };
    let reason = Combined::of(program, block).err()?;
    Some(EncodeError::NotContraction { block: block.name.clone(), reason })
}
