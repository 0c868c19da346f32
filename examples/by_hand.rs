//! Applies primitives to a PrimFunc by hand, as TVM's `Schedule` does: for those who schedule themselves and want legality that
//! they can trust. Needs NVRTC (`scripts/fetch-cuda`) for its last step, and no GPU.
//!
//! ```text
//! cargo run --example by_hand                        # the program and the calls below
//! cargo run --example by_hand PROGRAM.py CALLS       # your own: a PrimFunc, and a trace (Python, or JSON as Satune and TVM write it)
//! ```
//!
//! Prints the refusal of each illegal call, drawn over the program; the CUDA of what the legal ones make; and what came of
//! running it: in the simulator, and then the text itself, compiled to PTX and executed on the CPU.
use satune::compile::{Compiler, Job};
use satune::{cuda, execute, scheduled, Descriptor};
use satune_ir::tvmscript;
use satune_rewrites::replay::Replay;
use satune_rewrites::Trace;
use std::error::Error;

const PROGRAM: &str = r#"
@T.prim_func
def scaled_rows(A: T.Buffer((64, 100), "float32"), B: T.Buffer((64,), "float32")):
    S = T.alloc_buffer((64, 100), "float32")
    for i, j in T.grid(64, 100):
        with T.block("scale"):
            vi, vj = T.axis.remap("SS", [i, j])
            S[vi, vj] = A[vi, vj] * T.float32(0.5)
    for i, k in T.grid(64, 100):
        with T.block("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + S[vi, vk]
"#;

/// Two of them are illegal: TVM refuses the first `bind`, too; the split without a guard it accepts, and runs iterations that do
/// not exist.
const CALLS: &str = r#"
scale = sch.get_block("scale")
sum = sch.get_block("sum")
i, k = sch.get_loops(sum)
sch.bind(k, "blockIdx.x")
x, y = sch.split(k, factors=[None, 8], disable_predication=True)
sch.compute_inline(scale)
block, thread = sch.split(i, factors=[None, 32])
sch.bind(block, "blockIdx.x")
sch.bind(thread, "threadIdx.x")
"#;

fn main() -> Result<(), Box<dyn Error>> {
    satune::worker();
    let given: Vec<String> = std::env::args().skip(1).map(std::fs::read_to_string).collect::<Result<_, _>>()?;
    let (program, calls) = match &given[..] {
        [program, calls] => (program.as_str(), calls.as_str()),
        _ => (PROGRAM, CALLS),
    };
    let program = tvmscript::parse(program)?;
    // Strict: each call is judged by what the program means after it, not by TVM's conditions alone.
    let mut hand = Replay::strict(&program)?;
    let mut kept = Trace::default();
    for call in Trace::read(calls)?.calls {
        match hand.call(&call) {
            Ok(()) => kept.calls.push(call),
            Err(refusal) => println!("{} is refused\n{}", call.op, refusal.render(hand.schedule.program())),
        }
    }
    let gpu = Descriptor::load("a100")?;
    let made = scheduled::of_trace(&program, kept, &scheduled::options(&gpu))?;
    let texts: Vec<String> = made.module.kernels.iter().map(cuda::print).collect();
    println!("{}", texts.join("\n"));
    let checked = scheduled::check(&program, &made, 1)?;
    let (sectors, least) = checked.total.global_sectors();
    println!("simulated: {} blocks, {sectors} sectors of global memory (least possible: {least})", checked.blocks);
    let compiler = Compiler::of_this_program()?;
    let compiled = |source: &String| {
        let job = Job { name: program.name.clone(), source: source.clone(), arch: gpu.arch_features.clone() };
        compiler.compile(&job).map(|compiled| compiled.ptx)
    };
    let ptx = texts.iter().map(compiled).collect::<Result<Vec<_>, _>>()?;
    let executed = execute::execute_whole(&program, &made.module, &texts, &ptx)?;
    println!("executed: {}, {} results compared", executed.words(), executed.compared);
    Ok(())
}
