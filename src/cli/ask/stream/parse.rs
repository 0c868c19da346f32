//! The question language of streaming programs: decisions separated by commas, each a word and its value; `BLOCK:` before a
//! word is about the kernel that has the block.
use super::fixed::{Fixed, Kernel, KernelKind};
use satune_ir::term::stream::{RowPlace, Streams};

/// What the language knows, for help and error messages.
pub(in crate::cli::ask) const WORDS: &str = "inline BLOCK, keep BLOCK, parts P, cascaded yes|no, kernels 1, kernel BLOCK+BLOCK, \
[BLOCK:] as rows|flat|tile|tiled|plain, rows R, side-by-side Y, threads T, sharing N [lanes], vector V, window W [along LOOP], steps U, tile S, pad P, \
hold BUFFER global|shared|registers, unroll BLOCK yes|no";

/// Reads a question.
///
/// # Errors
/// Says which word is not understood.
pub(super) fn parse(text: &str, problem: &Streams) -> Result<Fixed, String> {
    let mut fixed = Fixed::default();
    for clause in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (block, rest) = match clause.split_once(':') {
            Some((name, rest)) => (Some(known_block(name.trim(), problem)?), rest),
            None => (None, clause),
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        read(&mut fixed, block, &words, problem)?;
    }
    if fixed == Fixed::default() {
        return Err("nothing is fixed; write for instance \"kernels 1, threads 128\"".into());
    }
    Ok(fixed)
}

fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}

fn known<'a>(kind: &str, name: &str, all: impl Iterator<Item = &'a str>) -> Result<String, String> {
    let mut all: Vec<&str> = all.collect();
    if all.contains(&name) {
        return Ok(name.into());
    }
    all.sort_unstable();
    all.dedup();
    Err(format!("the program has no {kind} `{}`; it has {}", clip(name), all.join(", ")))
}

/// A block of the source, or one that adds the parts of rows up.
fn known_block(name: &str, problem: &Streams) -> Result<String, String> {
    known("block", name, problem.works.iter().flat_map(|v| &v.blocks).map(|b| b.name.as_str()))
}

fn known_buffer(name: &str, problem: &Streams) -> Result<String, String> {
    known("buffer", name, problem.works.iter().flat_map(|v| &v.buffers).map(|b| b.name.as_str()))
}

fn known_loop(name: &str, problem: &Streams) -> Result<String, String> {
    let iters = problem.works.iter().flat_map(|v| &v.blocks).flat_map(|b| &b.iters);
    known("loop", name, iters.map(|i| i.name.as_str()))
}

fn read(fixed: &mut Fixed, block: Option<String>, words: &[&str], problem: &Streams) -> Result<(), String> {
    let whole = |text: &str| {
        let number = text.parse::<i64>().ok().filter(|n| (0..=1 << 30).contains(n));
        number.ok_or_else(|| format!("`{}` is not a whole number from 0 to 1073741824", clip(text)))
    };
    let at = fixed.kernels.iter().position(|(b, _)| *b == block);
    let mut slot = at.map_or_else(Kernel::default, |at| fixed.kernels[at].1.clone());
    match (words, &block) {
        (["inline", name], None) => {
            fixed.inlined.push((known("block", name, problem.source.iter().map(String::as_str))?, true))
        }
        (["keep", name], None) => {
            fixed.inlined.push((known("block", name, problem.source.iter().map(String::as_str))?, false))
        }
        (["parts", n], None) => fixed.parts = Some(whole(n)?),
        (["cascaded", yes @ ("yes" | "no")], None) => fixed.cascaded = Some(*yes == "yes"),
        (["kernels", "1"], None) => fixed.one = true,
        (["kernels", n], None) => {
            return Err(format!(
                "kernels {} is not known; write kernels 1, or which blocks share one: kernel A+B",
                clip(n)
            ))
        }
        (["kernel", names], None) => {
            let names: Result<Vec<String>, String> = names.split('+').map(|n| known_block(n, problem)).collect();
            let names = names?;
            let first = names.first().cloned();
            fixed.kernels.push((first, Kernel { blocks: Some(names), ..Kernel::default() }));
            return Ok(());
        }
        (["as", kind], _) => {
            slot.kind = Some(match *kind {
                "rows" => KernelKind::Rows,
                "flat" => KernelKind::Flat,
                "tile" => KernelKind::Tile,
                "plain" => KernelKind::Plain,
                "tiled" => KernelKind::Tiled,
                other => {
                    return Err(format!(
                        "`as {}` is not known; kernels run as rows, flat, tile, tiled or plain",
                        clip(other)
                    ))
                }
            });
        }
        (["rows", n], _) => slot.rows = Some(whole(n)?),
        (["side-by-side", n], _) => slot.side_by_side = Some(whole(n)?),
        (["threads", n], _) => slot.threads = Some(whole(n)?),
        (["sharing", n], _) => slot.sharing = Some((whole(n)?, false)),
        (["sharing", n, "lanes"], _) => slot.sharing = Some((whole(n)?, true)),
        (["vector", n], _) => slot.vector = Some(whole(n)?),
        (["window", n], _) => slot.window = Some((whole(n)?, None)),
        (["window", n, "along", iter], _) => slot.window = Some((whole(n)?, Some(known_loop(iter, problem)?))),
        (["steps", n], _) => slot.steps = Some(whole(n)?),
        (["tile", n], _) => slot.tile = Some(whole(n)?),
        (["pad", n], _) => slot.pad = Some(whole(n)?),
        (["hold", buffer, place], _) => {
            let place = match *place {
                "global" => RowPlace::Global,
                "shared" => RowPlace::Shared,
                "registers" => RowPlace::Registers,
                other => {
                    return Err(format!(
                        "`hold {}` is not known; buffers are held in global, shared or registers",
                        clip(other)
                    ))
                }
            };
            slot.held.push((known_buffer(buffer, problem)?, place));
        }
        (["unroll", name, choice @ ("yes" | "no")], _) => {
            slot.unroll.push((known_block(name, problem)?, *choice == "yes"));
        }
        _ => return Err(format!("`{}` is not known; known are {WORDS}", clip(&words.join(" ")))),
    }
    match at {
        Some(at) => fixed.kernels[at].1 = slot,
        None if slot != Kernel::default() => fixed.kernels.push((block, slot)),
        None => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streaming::StreamProblem;

    fn ask(text: &str) -> Result<Fixed, String> {
        parse(text, &StreamProblem::operator("softmax:64,256,f32").unwrap().streams)
    }

    #[test]
    fn every_decision_has_a_word() {
        let f = ask(
            "inline exp, keep sum, parts 1, kernels 1, kernel max+sum, max: as rows, rows 4, side-by-side 2, threads 64, vector 4, \
             hold A shared, unroll max yes, sum: steps 2, tile 32, pad 1, window 4, sharing 64 lanes",
        )
        .unwrap();
        assert_eq!(f.inlined, [("exp".into(), true), ("sum".into(), false)]);
        assert_eq!((f.parts, f.one, f.kernels.len()), (Some(1), true, 3));
        let of = |name: Option<&str>| {
            f.kernels
                .iter()
                .find(|(b, k)| b.as_deref() == name && (name.is_none() || k.blocks.is_none() || name == Some("max")))
                .map(|(_, k)| k.clone())
                .unwrap()
        };
        assert_eq!(of(None).rows, Some(4));
        assert_eq!((of(None).threads, of(None).vector, of(None).side_by_side), (Some(64), Some(4), Some(2)));
        assert_eq!(of(None).held, [("A".into(), RowPlace::Shared)]);
        assert_eq!(of(None).unroll, [("max".into(), true)]);
        assert_eq!(of(Some("sum")).steps, Some(2));
        assert_eq!((of(None).tile, of(None).pad), (Some(32), Some(1)));
        assert_eq!((of(None).sharing, of(None).window), (Some((64, true)), Some((4, None))));
        assert_eq!(of(Some("max")).kind, Some(KernelKind::Rows));
        assert_eq!(of(Some("max")).blocks, Some(vec!["max".into(), "sum".into()]));
    }

    #[test]
    fn nonsense_is_refused_by_the_word() {
        for (text, part) in [
            ("blok 1", "`blok 1` is not known; known are inline BLOCK"),
            (
                "inline maximum",
                "the program has no block `maximum`; it has max, exp, sum, divide".split("; it").next().unwrap(),
            ),
            ("hold Q shared", "the program has no buffer `Q`"),
            ("hold A nowhere", "`hold nowhere` is not known"),
            ("threads many", "`many` is not a whole number"),
            ("threads", "`threads` is not known"),
            ("kernels 3", "which blocks share one"),
            ("nobody: rows 2", "the program has no block `nobody`"),
            ("as cubes", "`as cubes` is not known"),
            ("", "nothing is fixed"),
        ] {
            let error = ask(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
