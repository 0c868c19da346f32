use satune::compile::{hot_loop_mix, Compiler, Job};
use satune::lower::program::lower;
use satune::scheduled::options;
use satune_extract::{best, Descriptor, Query};
use satune_ir::term::Schedule;
fn main() {
    for (operator, gpu) in [("gemm:4096,4096,4096,f16,NT", "v100"), ("gemm:4096,4096,4096,i8,NT", "t4"), ("gemm:1000,520,333,f16,TN,out=f16,bias,relu", "v100"), ("gemm:1024,1024,1024,f16,NN,sum=f16", "v100")] {
        let problem = satune::operators::parse(operator).unwrap();
        let gpu = Descriptor::load(gpu).unwrap();
        let space = satune::explore::space(&problem, &gpu).unwrap();
        let query = Query { k: 4, diverse: true, limit: std::time::Duration::from_secs(100), below_ms: f64::INFINITY };
        let found = best(&space, &gpu, query);
        let compiler = Compiler::new().unwrap();
        for c in found.candidates {
            let Schedule::Mma(plan) = &c.plan else { println!("{operator}: {:?}", c.plan.describe()); continue };
            println!("{operator} {}", plan.describe().join("; "));
            let made = problem.scheduled(&c.plan, &problem.options(&c.plan, &gpu)).unwrap();
            let t = std::time::Instant::now();
            let other = match lower(&made.program, &options(&gpu)) { Ok(m) => m, Err(e) => { println!("  {e}"); continue } };
            let took = t.elapsed();
            for (what, kernel) in [("plan", &made.module.kernels[0]), ("program", &other.kernels[0])] {
                let source = satune::cuda::print(kernel);
                std::fs::write(format!("/tmp/zz_{what}.cu"), &source).unwrap();
                let compiled = compiler.compile(&Job { name: "x".into(), source, arch: "sm_75".into() });
                match compiled {
                    Ok(k) => {
                        let mix = hot_loop_mix(&k.cubin);
                        println!("  {what}: {} regs, spill {}, shared {}, {:?} lowered in {took:?}", k.registers, k.spill_bytes, kernel.shared_bytes, mix.map(|m| (m.instructions, m.math, m.by_opcode)));
                    }
                    Err(e) => println!("  {what}: {e}"),
                }
            }
        }
    }
}
