//! Small programs that are run however copies arrive.
use satune_ptx::*;

/// When copies arrive.
const DELIVERIES: [Delivery; 3] = [Delivery::Late, Delivery::Early, Delivery::Random];

/// Beginnings of random choices.
const SEEDS: u64 = 8;

/// The last argument's bytes after a run, or what is wrong.
fn execute(
    text: &str,
    grid: u32,
    block: u32,
    arguments: &[Argument],
    delivery: Delivery,
    seed: u64,
) -> Result<Vec<u8>, String> {
    let module = parse(text).map_err(|e| e.to_string())?;
    let program = Program::new(&module, "k").map_err(|e| e.to_string())?;
    let options = Options { delivery, seed, budget: 10_000_000, ..Options::default() };
    let launch =
        Launch::new(&program, [grid, 1, 1], [block, 1, 1], 0, arguments, options).map_err(|e| e.to_string())?;
    let outcome = run(&program, &launch);
    match outcome.faults.first() {
        Some(fault) => Err(fault.to_string()),
        None => Ok(outcome.whole(arguments.len() - 1).0),
    }
}

/// What nobody has written yet.
pub fn output(bytes: u64) -> Argument {
    Argument::Allocation(Allocation { name: "out".into(), bytes, initial: Initial::Undefined, writable: true })
}

/// Bytes that are only read.
pub fn input(bytes: Vec<u8>) -> Allocation {
    let size = bytes.len() as u64;
    Allocation { name: "in".into(), bytes: size, initial: Initial::Bytes(bytes.into()), writable: false }
}

/// The program as it is is right however copies arrive; with a part replaced it is found, with words of the message.
pub fn judged(
    text: &str,
    grid: u32,
    block: u32,
    arguments: &[Argument],
    expected: &[u8],
    changes: &[(&str, &str, &str)],
) {
    let random = (1..SEEDS).map(|seed| (Delivery::Random, seed));
    for (delivery, seed) in DELIVERIES.iter().map(|d| (*d, 0)).chain(random) {
        let got = execute(text, grid, block, arguments, delivery, seed);
        let got = got.unwrap_or_else(|e| panic!("{delivery:?} {seed}: {e}"));
        assert_eq!(got, expected, "{delivery:?} {seed}");
    }
    for (from, to, words) in changes {
        assert!(text.contains(from), "{from}");
        let changed = text.replacen(from, to, 1);
        let found = DELIVERIES.iter().find_map(|d| match execute(&changed, grid, block, arguments, *d, 0) {
            Err(fault) => Some(fault),
            Ok(got) => (got != expected).then(|| "another result".into()),
        });
        let found = found.unwrap_or_else(|| panic!("not found: {from} -> {to}"));
        assert!(found.contains(words), "{from} -> {to}: {found}");
    }
}
