//! A launch in words: `grid=8x2, block=256, args=(x: in f32[1024], y: out f32[1024], n: i32 1024)`.
use super::inputs::size;
use satune_ir::DType;
use std::str::FromStr;

/// What a kernel does with an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It only reads it: a write is a fault.
    In,
    /// It writes all of it: what is left unwritten is a fault, and so is reading it before.
    Out,
    /// It reads and writes it.
    InOut,
    /// It may write it, and reads only what it wrote.
    Scratch,
}

/// An argument.
#[derive(Clone, Debug, PartialEq)]
pub enum ArgumentWords {
    /// A pointer to an array.
    Array {
        /// What is done with it.
        role: Role,
        /// Type of its elements.
        dtype: DType,
        /// How many.
        elements: u64,
        /// Integers are from 0 to below this, where it is given.
        below: Option<i64>,
    },
    /// A tensor map, passed by value.
    Map {
        /// The array below it where it is its own, and what is done with that.
        own: Option<Role>,
        /// Else the argument whose array it is on.
        of: String,
        /// Type of its elements.
        dtype: DType,
        /// Elements along each dimension, the contiguous one last.
        shape: Vec<u64>,
        /// Elements of a box along each dimension, in the same order.
        tile: Vec<u32>,
        /// Bytes of a row within which chunks are permuted; 0: none.
        swizzle: u32,
    },
    /// A number.
    Number(Vec<u8>),
}

/// A launch.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchWords {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u64,
    /// The kernel's name, where the text has several.
    pub kernel: Option<String>,
    /// Arguments: names, and what they are.
    pub arguments: Vec<(String, ArgumentWords)>,
}

/// What is wrong with the words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--launch: {what}; an example: \"{EXAMPLE}\"")]
pub struct WordsError {
    what: String,
}

const EXAMPLE: &str = "grid=8, block=256, args=(x: in f32[2048], y: out f32[2048], n: i32 2048)";
/// Most bytes of all arrays together.
const MOST: u64 = 1 << 32;

fn refuse<T>(what: impl Into<String>) -> Result<T, WordsError> {
    Err(WordsError { what: what.into() })
}

impl FromStr for LaunchWords {
    type Err = WordsError;

    fn from_str(text: &str) -> Result<LaunchWords, WordsError> {
        let mut words = LaunchWords { grid: [1; 3], block: [0; 3], shared: 0, kernel: None, arguments: Vec::new() };
        for part in split(text)? {
            let Some((key, value)) = part.split_once('=') else {
                return refuse(format!("`{part}` is no key=value"));
            };
            let value = value.trim();
            match key.trim() {
                "grid" => words.grid = extents(value)?,
                "block" => words.block = extents(value)?,
                "shared" => {
                    words.shared = match value.parse() {
                        Ok(bytes) => bytes,
                        Err(_) => return refuse(format!("`shared={value}` is no number of bytes")),
                    }
                }
                "kernel" => words.kernel = Some(value.into()),
                "args" => {
                    let inner = value.strip_prefix('(').and_then(|v| v.strip_suffix(')')).unwrap_or(value);
                    for (i, argument) in split(inner)?.into_iter().enumerate() {
                        words.arguments.push(argument_of(argument, i)?);
                    }
                }
                other => return refuse(format!("`{other}` is not known; there are grid, block, shared, kernel, args")),
            }
        }
        if words.block == [0; 3] {
            return refuse("block=.. is missing");
        }
        let bytes: u128 = words.arguments.iter().map(|(_, a)| u128::from(a.bytes())).sum();
        if bytes > u128::from(MOST) {
            return refuse(format!("the arrays take {bytes} bytes together; at most {MOST} are checked"));
        }
        Ok(words)
    }
}

impl ArgumentWords {
    fn bytes(&self) -> u64 {
        match self {
            ArgumentWords::Array { dtype, elements, .. } => elements.saturating_mul(size(*dtype)),
            ArgumentWords::Map { own: None, .. } => 128,
            ArgumentWords::Map { dtype, shape, .. } => {
                shape.iter().fold(size(*dtype), |bytes, n| bytes.saturating_mul(*n))
            }
            ArgumentWords::Number(bytes) => bytes.len() as u64,
        }
    }
}

/// Parts between commas that stand in no brackets.
fn split(text: &str) -> Result<Vec<&str>, WordsError> {
    let (mut depth, mut start, mut parts) = (0i32, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        if depth < 0 {
            return refuse("a bracket is closed that was not opened");
        }
    }
    if depth > 0 {
        return refuse("a bracket is not closed");
    }
    parts.push(text[start..].trim());
    parts.retain(|p| !p.is_empty());
    Ok(parts)
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    let inner = text.trim().trim_start_matches(['(', '[']).trim_end_matches([')', ']']);
    inner.split(['x', ',', '*']).map(|n| n.trim().parse().ok()).collect()
}

fn extents(text: &str) -> Result<[u32; 3], WordsError> {
    let list: Option<Vec<u32>> = numbers(text).and_then(|l| l.into_iter().map(|n| u32::try_from(n).ok()).collect());
    match list.as_deref() {
        Some([x]) => Ok([*x, 1, 1]),
        Some([x, y]) => Ok([*x, *y, 1]),
        Some([x, y, z]) => Ok([*x, *y, *z]),
        _ => refuse(format!("`{text}` is not one to three numbers, as 8 or 8x2")),
    }
}

fn dtype_of(text: &str) -> Result<DType, WordsError> {
    let known = match text {
        "f64" | "float64" | "double" => DType::F64,
        "f32" | "float32" | "float" => DType::F32,
        "f16" | "float16" | "half" => DType::F16,
        "bf16" | "bfloat16" => DType::BF16,
        "e4m3" | "f8e4m3" => DType::F8E4M3,
        "e5m2" | "f8e5m2" => DType::F8E5M2,
        "i64" | "int64" => DType::I64,
        "i32" | "int32" | "int" => DType::I32,
        "i16" | "int16" => DType::I16,
        "i8" | "int8" => DType::I8,
        "u64" | "uint64" => DType::U64,
        "u32" | "uint32" => DType::U32,
        "u16" | "uint16" => DType::U16,
        "u8" | "uint8" => DType::U8,
        "bool" => DType::Bool,
        _ => {
            return refuse(format!(
                "the type `{text}` is not known; there are f64 f32 f16 bf16 e4m3 e5m2, i8 to i64, u8 to u64, bool"
            ))
        }
    };
    Ok(known)
}

fn role_of(word: &str) -> Option<Role> {
    Some(match word {
        "in" => Role::In,
        "out" => Role::Out,
        "inout" => Role::InOut,
        "scratch" => Role::Scratch,
        _ => return None,
    })
}

/// `in f16[512x1024] box 64x64 swizzle 128`, or `of x f16[512x1024] box 64x64`.
fn map_of(rest: &str, whole: &str) -> Result<ArgumentWords, WordsError> {
    let wrong = |what: &str| refuse(format!("`{whole}`: {what}, as map in f16[512x1024] box 64x64 swizzle 128"));
    let (first, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (own, of, rest) = match (role_of(first), first) {
        (Some(role), _) => (Some(role), String::new(), rest.trim()),
        (None, "of") => {
            let (name, rest) = rest.trim().split_once(' ').unwrap_or((rest, ""));
            (None, name.trim().to_string(), rest.trim())
        }
        _ => return wrong("in, out, inout, scratch, or of and an argument's name expected"),
    };
    let Some((dtype, tail)) = rest.split_once('[') else { return wrong("a type and a shape expected") };
    let Some((shape, tail)) = tail.split_once(']') else { return wrong("`]` is missing") };
    let Some(shape) = numbers(shape) else { return wrong("the shape is none") };
    let mut words = tail.split_whitespace();
    let (mut tile, mut swizzle) = (None, 0);
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_default();
        match word {
            "box" => tile = numbers(value),
            "swizzle" => match value.trim_end_matches('B').parse() {
                Ok(bytes @ (0 | 32 | 64 | 128)) => swizzle = bytes,
                _ => return wrong("a swizzle has 0, 32, 64 or 128 bytes"),
            },
            _ => return wrong("box and swizzle are what is known of a map"),
        }
    }
    let tile: Option<Vec<u32>> = tile.and_then(|t| t.into_iter().map(|n| u32::try_from(n).ok()).collect());
    let Some(tile) = tile.filter(|t| t.len() == shape.len()) else {
        return wrong("a box with as many numbers as the shape expected");
    };
    Ok(ArgumentWords::Map { own, of, dtype: dtype_of(dtype.trim())?, shape, tile, swizzle })
}

fn argument_of(text: &str, number: usize) -> Result<(String, ArgumentWords), WordsError> {
    let (name, rest) = match text.split_once(':') {
        Some((name, rest)) => (name.trim().to_string(), rest.trim()),
        None => (format!("argument {number}"), text),
    };
    let mut words = rest.split_whitespace();
    let first = words.next().unwrap_or_default();
    if first == "map" {
        return Ok((name, map_of(rest[first.len()..].trim(), text)?));
    }
    if let Some(role) = role_of(first) {
        let rest = rest[first.len()..].trim();
        let Some((dtype, shape)) = rest.split_once('[') else {
            return refuse(format!("`{text}`: a type and a length expected, as f32[1024]"));
        };
        let Some((shape, tail)) = shape.split_once(']') else {
            return refuse(format!("`{text}`: `]` is missing"));
        };
        let Some(elements) = numbers(shape).and_then(|l| l.into_iter().try_fold(1u64, u64::checked_mul)) else {
            return refuse(format!("`{text}`: `{shape}` is no length"));
        };
        let below = match tail.trim() {
            "" => None,
            tail => match tail.strip_prefix("below").map(|n| n.trim().parse::<i64>()) {
                Some(Ok(n)) if n > 0 => Some(n),
                _ => return refuse(format!("`{text}`: `{tail}` is not `below` and a number above 0")),
            },
        };
        return Ok((name, ArgumentWords::Array { role, dtype: dtype_of(dtype.trim())?, elements, below }));
    }
    let dtype = dtype_of(first)?;
    let Some(value) = words.next().filter(|_| words.next().is_none()) else {
        return refuse(format!(
            "`{text}`: a type and a number expected, as i32 1024, or in, out, inout or scratch and an array"
        ));
    };
    let wrong = || refuse(format!("`{text}`: `{value}` is no number of that type"));
    let size = size(dtype) as usize;
    let bytes = match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::BF16 => {
            let Ok(x) = value.parse::<f64>() else { return wrong() };
            match dtype {
                DType::F64 => x.to_le_bytes().to_vec(),
                DType::F32 => (x as f32).to_le_bytes().to_vec(),
                DType::F16 => half::f16::from_f64(x).to_le_bytes().to_vec(),
                _ => half::bf16::from_f64(x).to_le_bytes().to_vec(),
            }
        }
        _ => {
            let Ok(n) = value.parse::<i128>() else { return wrong() };
            let bits = 8 * size;
            if n >= 1 << bits || n < -(1 << (bits - 1)) {
                return wrong();
            }
            n.to_le_bytes()[..size].to_vec()
        }
    };
    Ok((name, ArgumentWords::Number(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_read() {
        let words: LaunchWords =
            "grid=8x2, block=(32,4), shared=1024, args=(x: in f32[64x32], i: inout i32[10] below 5, n: i32 -3)"
                .parse()
                .unwrap();
        assert_eq!((words.grid, words.block, words.shared), ([8, 2, 1], [32, 4, 1], 1024));
        let x = ArgumentWords::Array { role: Role::In, dtype: DType::F32, elements: 2048, below: None };
        assert_eq!(words.arguments[0], ("x".into(), x));
        let i = ArgumentWords::Array { role: Role::InOut, dtype: DType::I32, elements: 10, below: Some(5) };
        assert_eq!(words.arguments[1], ("i".into(), i));
        assert_eq!(words.arguments[2].1, ArgumentWords::Number(vec![0xfd, 0xff, 0xff, 0xff]));
    }

    #[test]
    fn tensor_maps_are_read() {
        let words: LaunchWords =
            "block=32, args=(a: map in f16[64x128] box 32x64 swizzle 128, x: out f16[64x128], y: map of x f16[64x128] box 32x64)"
                .parse()
                .unwrap();
        let map = |own, of: &str, swizzle| ArgumentWords::Map {
            own,
            of: of.into(),
            dtype: DType::F16,
            shape: vec![64, 128],
            tile: vec![32, 64],
            swizzle,
        };
        assert_eq!(words.arguments[0].1, map(Some(Role::In), "", 128));
        assert_eq!(words.arguments[2].1, map(None, "x", 0));
        let wrong = "block=32, args=(a: map in f16[64x128] box 32)".parse::<LaunchWords>().unwrap_err();
        assert!(wrong.what.contains("a box with as many numbers"), "{wrong}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |text: &str| text.parse::<LaunchWords>().unwrap_err().what;
        assert_eq!(wrong("grid=1"), "block=.. is missing");
        assert_eq!(wrong("block=32, args=(in f99[3])").split(';').next().unwrap(), "the type `f99` is not known");
        assert_eq!(wrong("block=32, args=(n: i8 300)"), "`n: i8 300`: `300` is no number of that type");
        assert_eq!(wrong("block=a"), "`a` is not one to three numbers, as 8 or 8x2");
    }
}
