//! A problem on a GPU: random inputs, the reference that plain kernels make of them, the check of results; and kernels
//! with what they are launched on.
use super::super::protocol::{KernelJob, ParamJob, ProblemJob};
use super::driver::{Arg, Buffer, Error, Gpu, Kernel, Module, TensorMap};
use super::server::Trouble;
use super::support::{compare, fill, COMPARE_BLOCKS, THREADS};
use super::timing::{Run, Timer, BLOCK};
use crate::agreement::allowed;
use crate::lower::program::Argument;
use satune_ir::DType;

/// Results that are looked at one by one when some are wrong.
const LOOKED_AT: u64 = 1 << 22;

/// Blocks for a kernel that goes over so many elements.
pub(super) fn blocks(elements: u64) -> [u32; 3] {
    [u32::try_from(elements.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX).clamp(1, 1 << 20), 1, 1]
}

/// A byte that results are filled with before a run: repeated, it is no number in any floating type; in integer types it is
/// one that no sum of fewer than 130,560 products of bytes reaches.
fn poison(result: DType) -> u8 {
    if result.is_float() {
        0xff
    } else {
        0x80
    }
}

/// Kernels with their machine code, and the buffers between them.
pub(super) struct Launches<'j> {
    modules: Vec<Module>,
    kernels: &'j [KernelJob],
    workspaces: Vec<Buffer>,
}

impl<'j> Launches<'j> {
    /// Loads kernels and allocates their workspaces, poisoned.
    pub fn new(
        gpu: &Gpu,
        cubins: &[Vec<u8>],
        kernels: &'j [KernelJob],
        workspaces: &[u64],
    ) -> Result<Launches<'j>, Error> {
        if cubins.len() != kernels.len() {
            let (code, count) = (cubins.len(), kernels.len());
            return Err(Error::Unsupported(format!(
                "not launched: machine code of {code} kernels, and {count} launches"
            )));
        }
        let workspaces = workspaces.iter().map(|w| gpu.alloc(*w)).collect::<Result<Vec<Buffer>, Error>>()?;
        for workspace in &workspaces {
            workspace.set(0xff)?;
        }
        let modules = cubins.iter().map(|c| gpu.load(c)).collect::<Result<Vec<Module>, Error>>()?;
        Ok(Launches { modules, kernels, workspaces })
    }

    /// The buffer that an argument names.
    fn buffer<'b>(&'b self, argument: &Argument, params: &'b [Buffer]) -> Result<&'b Buffer, Error> {
        let found = match argument {
            Argument::Param(i) => params.get(*i),
            Argument::Workspace(i) => self.workspaces.get(*i),
        };
        found.ok_or_else(|| Error::Unsupported(format!("not launched: there is no buffer for argument {argument:?}")))
    }

    /// Everything that a launch needs: after this, a run is launches and nothing else. Buffers stay where they are, so
    /// each tensor map is made once.
    pub fn ready<'l>(&'l self, gpu: &Gpu, params: &'l [Buffer]) -> Result<Ready<'l>, Error> {
        let mut launches = Vec::new();
        for (module, launch) in self.modules.iter().zip(self.kernels) {
            let kernel = module.kernel(&launch.name, launch.dynamic_shared_bytes)?;
            let mut arguments = Vec::with_capacity(launch.args.len());
            for argument in &launch.args {
                let buffer = self.buffer(&argument.buffer, params)?;
                arguments.push((buffer, argument.map.as_ref().map(|map| gpu.tensor_map(buffer, map)).transpose()?));
            }
            launches.push((kernel, launch, arguments));
        }
        Ok(Ready { launches })
    }
}

/// A kernel's argument: memory, and the map that the kernel reads it through where it has one.
type Passed<'l> = (&'l Buffer, Option<TensorMap>);

/// Launches on buffers.
pub(super) struct Ready<'l> {
    launches: Vec<(Kernel<'l>, &'l KernelJob, Vec<Passed<'l>>)>,
}

impl Ready<'_> {
    /// Queues all launches in order.
    pub fn run(&self) -> Result<(), Error> {
        for (kernel, launch, arguments) in &self.launches {
            let of = arguments.iter().map(|(buffer, map)| map.as_ref().map_or(Arg::Buffer(buffer), Arg::Map));
            let arguments: Vec<Arg<'_>> = of.collect();
            kernel.launch(launch.grid, launch.block, &arguments)?;
        }
        Ok(())
    }
}

/// Inputs and reference of one problem.
pub(super) struct Inputs {
    problem: ProblemJob,
    params: Vec<Buffer>,
    /// Of each result what it should be, and its root mean square.
    expected: Vec<Option<(Buffer, f64)>>,
}

impl Inputs {
    /// Makes random inputs, and of them the reference, whose kernels' machine code is given.
    pub fn new(gpu: &Gpu, problem: &ProblemJob, cubins: &[Vec<u8>], timer: &Timer) -> Result<Inputs, Trouble> {
        // A new seed for each worker: no candidate is ever checked on one set of inputs only.
        let seed =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as i64);
        let (mut params, mut wide) = (Vec::new(), Vec::new());
        for (number, param) in problem.params.iter().enumerate() {
            let buffer = gpu.alloc(param.elements * u64::from(param.dtype.bytes()))?;
            if param.written {
                let held = if param.dtype.is_float() { DType::F64 } else { param.dtype };
                let result = gpu.alloc(param.elements * u64::from(held.bytes()))?;
                result.set(poison(held))?;
                wide.push(result);
                // The reference is looked at beside it before anything is written there.
                buffer.set(poison(param.dtype))?;
            } else {
                // Far from the seeds of other parameters.
                let own = seed ^ (number as i64 + 1).wrapping_mul(0x5851_f42d_4c95_7f2d);
                let whole = Arg::Int(i64::from(problem.whole));
                let arguments = [Arg::Buffer(&buffer), Arg::Int(param.elements as i64), Arg::Int(own), whole];
                timer.support.kernel(&fill(param.dtype), 0)?.launch(blocks(param.elements), BLOCK, &arguments)?;
            }
            params.push(buffer);
        }
        // The reference's own results stand where the program's do.
        let swap = |params: &mut Vec<Buffer>, wide: &mut Vec<Buffer>| {
            let results = params.iter_mut().zip(&problem.params).filter(|(_, p)| p.written);
            results.zip(wide).for_each(|((param, _), wide)| std::mem::swap(param, wide));
        };
        swap(&mut params, &mut wide);
        let reference = Launches::new(gpu, cubins, &problem.reference, &problem.workspaces)?;
        reference.ready(gpu, &params)?.run()?;
        gpu.synchronize()?;
        drop(reference);
        swap(&mut params, &mut wide);
        let mut wide = wide.into_iter();
        let expected = problem.params.iter().map(|p| if p.written { wide.next().map(|w| (w, 0.0)) } else { None });
        let mut inputs = Inputs { problem: problem.clone(), expected: expected.collect(), params };
        for at in 0..inputs.expected.len() {
            // Against what is there nothing is known but its size.
            let Some((_, size, _)) = inputs.sums(at, timer, f64::INFINITY)? else { continue };
            let param = &problem.params[at];
            if !size.is_finite() {
                let why = format!(
                    "the reference of {} is no number everywhere: on inputs in [-1, 1) the program divides by zero, overflows, or leaves results unwritten",
                    param.name
                );
                return Err(Error::Unsupported(why).into());
            }
            if let Some((_, root)) = &mut inputs.expected[at] {
                *root = (size / param.elements.max(1) as f64).sqrt();
            }
        }
        Ok(inputs)
    }

    /// What they are of.
    pub fn problem(&self) -> &ProblemJob {
        &self.problem
    }

    /// The program's parameters.
    pub fn params(&self) -> &[Buffer] {
        &self.params
    }

    /// Three of them.
    pub fn operands(&self, which: &[usize; 3]) -> Result<[&Buffer; 3], Error> {
        match which.map(|i| self.params.get(i)) {
            [Some(a), Some(b), Some(c)] => Ok([a, b, c]),
            _ => Err(Error::Unsupported(format!("not launched: the problem has no parameters {which:?}"))),
        }
    }

    /// The types of three of them.
    pub fn dtypes(&self, which: &[usize; 3]) -> Result<[DType; 3], Error> {
        match which.map(|i| self.problem.params.get(i).map(|p| p.dtype)) {
            [Some(a), Some(b), Some(c)] => Ok([a, b, c]),
            _ => Err(Error::Unsupported(format!("not launched: the problem has no parameters {which:?}"))),
        }
    }

    /// Of a result: squared distance, squared size, elements out of bounds.
    fn sums(&self, at: usize, timer: &Timer, bound: f64) -> Result<Option<(f64, f64, f64)>, Error> {
        let (Some(Some((expected, _))), Some(result), Some(param)) =
            (self.expected.get(at), self.params.get(at), self.problem.params.get(at))
        else {
            return Ok(None);
        };
        let arguments = [
            Arg::Buffer(result),
            Arg::Buffer(expected),
            Arg::Buffer(&timer.sums),
            Arg::Int(param.elements as i64),
            Arg::Double(bound),
        ];
        timer.support.kernel(&compare(param.dtype), 0)?.launch([COMPARE_BLOCKS, 1, 1], BLOCK, &arguments)?;
        let parts: Vec<f64> = timer.sums.read(COMPARE_BLOCKS as usize * 3)?;
        let sum = |which: usize| parts.iter().skip(which).step_by(3).sum::<f64>();
        Ok(Some((sum(0), sum(1), sum(2))))
    }

    /// The first result that is off, in words, where the buffer is small enough to be looked at here and its type is known.
    fn first_difference(&self, at: usize, bound: f64) -> Result<Option<String>, Error> {
        let (Some(Some((expected, _))), Some(result), Some(param)) =
            (self.expected.get(at), self.params.get(at), self.problem.params.get(at))
        else {
            return Ok(None);
        };
        if param.elements > LOOKED_AT {
            return Ok(None);
        }
        let count = param.elements as usize;
        let got: Vec<f64> = match param.dtype {
            DType::F64 => result.read::<f64>(count)?,
            DType::F32 => result.read::<f32>(count)?.into_iter().map(f64::from).collect(),
            DType::I32 => result.read::<i32>(count)?.into_iter().map(f64::from).collect(),
            DType::F16 => result.read::<u16>(count)?.into_iter().map(|b| half::f16::from_bits(b).to_f64()).collect(),
            DType::BF16 => result.read::<u16>(count)?.into_iter().map(|b| half::bf16::from_bits(b).to_f64()).collect(),
            _ => return Ok(None),
        };
        let wanted: Vec<f64> = match param.dtype.is_float() {
            true => expected.read::<f64>(count)?,
            false => expected.read::<i32>(count)?.into_iter().map(f64::from).collect(),
        };
        let off = |(g, w): &(&f64, &f64)| (*g - *w).is_nan() || (*g - *w).abs() > bound;
        let first = got.iter().zip(&wanted).position(|pair| off(&pair));
        Ok(first.map(|i| {
            let last = got.iter().zip(&wanted).rposition(|pair| off(&pair)).unwrap_or(i);
            format!("the first is element {i}, {} instead of {}, the last element {last} of {count}", got[i], wanted[i])
        }))
    }

    /// Runs once on poisoned results and compares; the largest relative error.
    pub fn verify(&self, gpu: &Gpu, timer: &Timer, tolerances: &[f64], run: &mut Run<'_>) -> Result<f64, Trouble> {
        let results: Vec<(usize, &ParamJob)> =
            self.problem.params.iter().enumerate().filter(|(_, p)| p.written).collect();
        for (at, param) in &results {
            self.params[*at].set(poison(param.dtype))?;
        }
        run()?;
        gpu.synchronize()?;
        let mut worst = 0.0_f64;
        for (at, ParamJob { name, dtype, .. }) in results {
            let tolerance = tolerances.get(at).copied().unwrap_or(0.0);
            let root = self.expected[at].as_ref().map_or(0.0, |(_, root)| *root);
            let (bound, most) = allowed(*dtype, tolerance, root);
            let Some((distance, size, bad)) = self.sums(at, timer, bound)? else { continue };
            let error = (distance / size.max(f64::MIN_POSITIVE)).sqrt();
            if bad > 0.0 {
                let what = format!("{bad} results in {name} are unwritten or beyond the tolerance {tolerance:.1e}");
                let first = self.first_difference(at, bound)?.map_or(String::new(), |f| format!("; {f}"));
                return Err(Trouble::Wrong(what + &first));
            }
            if error > most {
                return Err(Trouble::Wrong(format!("relative error {error:.2e} of {name}, tolerance {most:.1e}")));
            }
            worst = worst.max(error);
        }
        Ok(worst)
    }
}
