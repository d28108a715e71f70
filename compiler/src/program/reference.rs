//! Runs a program with the interpreter over byte buffers: no device, so that what is wrong with a result is wrong with
//! the program (places, strides, order, kernels' bodies).
//!
//! Memory nobody wrote is filled with a pattern that no right program shows.
use super::{KernelCall, Place, Program, Thunk, View};
use crate::interp::{InterpError, Tensor, eval, eval_op};
use crate::ir::{ParamKind, TensorType};

/// Filling of memory that has not been written.
const JUNK: u8 = 0xa5;

/// The program's memories.
struct Memory<'p> {
    program: &'p Program,
    params: Vec<Vec<u8>>,
    results: Vec<Vec<u8>>,
    slab: Vec<u8>,
    scalars: Vec<u8>,
}

/// Results of `program` on tensor parameters and runtime scalars (0-d f64 or i64 each).
pub fn run(program: &Program, params: &[Tensor], scalars: &[Tensor]) -> Result<Vec<Tensor>, InterpError> {
    run_in_order(program, 0..program.thunks.len(), params, scalars)
}

/// As [`run`], with the thunks in any order that [`Program::thunk_graph`] allows.
pub fn run_in_order(
    program: &Program,
    order: impl IntoIterator<Item = usize>,
    params: &[Tensor],
    scalars: &[Tensor],
) -> Result<Vec<Tensor>, InterpError> {
    let fits = params.len() == program.params.len()
        && params.iter().zip(&program.params).all(|(t, ty)| t.ty == *ty)
        && scalars.len() == program.n_scalars as usize
        && scalars.iter().all(|t| t.bytes.len() == 8);
    if !fits {
        return Err(InterpError::Arguments("they do not match the program's parameters".into()));
    }
    let mut m = Memory {
        program,
        params: params.iter().map(|t| t.bytes.clone()).collect(),
        results: program.results.iter().map(|r| vec![JUNK; r.ty.bytes() as usize]).collect(),
        slab: vec![JUNK; program.slab_bytes as usize],
        scalars: scalars.iter().flat_map(|t| t.bytes.iter().copied()).collect(),
    };
    for t in order {
        m.thunk(&program.thunks[t])
            .map_err(|e| InterpError::Op { op: format!("thunk {t}"), message: e.to_string() })?;
    }
    Ok(program.results.iter().enumerate().map(|(n, r)| m.load(&View::dense(Place::Result(n as u32), &r.ty))).collect())
}

impl Memory<'_> {
    fn bytes(&mut self, place: Place) -> (&mut [u8], usize) {
        match place {
            Place::Param(n) => (&mut self.params[n as usize], 0),
            Place::Result(n) => match self.program.results[n as usize].alias {
                Some(p) => (&mut self.params[p as usize], 0),
                None => (&mut self.results[n as usize], 0),
            },
            Place::Slab { offset } => (&mut self.slab, offset as usize),
            Place::Constant { .. } => (&mut [], 0),
            Place::Scalar(n) => (&mut self.scalars, n as usize * 8),
        }
    }

    /// The view's elements, row-major.
    fn load(&mut self, view: &View) -> Tensor {
        let ty = TensorType::new(view.dtype, &view.dims);
        let size = view.dtype.size();
        let mut bytes = Vec::with_capacity(ty.bytes() as usize);
        let constants = &self.program.constants;
        let (memory, base): (&[u8], usize) = match view.place {
            Place::Constant { offset } => (constants, offset as usize),
            place => {
                let (m, base) = self.bytes(place);
                (m, base)
            }
        };
        each_element(view, |at| {
            let at = base + at * size;
            bytes.extend_from_slice(&memory[at..at + size]);
        });
        Tensor { ty, bytes }
    }

    fn store(&mut self, view: &View, value: &Tensor) -> Result<(), String> {
        if value.ty.dtype != view.dtype || value.ty.numel() != view.dims.iter().product::<i64>() {
            return Err(format!("{} stored in {view:?}", value.ty));
        }
        let size = view.dtype.size();
        let (memory, base) = self.bytes(view.place);
        let mut next = 0;
        each_element(view, |at| {
            let at = base + at * size;
            memory[at..at + size].copy_from_slice(&value.bytes[next..next + size]);
            next += size;
        });
        Ok(())
    }

    fn thunk(&mut self, thunk: &Thunk) -> Result<(), String> {
        match thunk {
            Thunk::Kernel(call) => self.kernel(call, None),
            Thunk::Group(calls) => calls.iter().try_for_each(|call| self.kernel(call, None)),
            Thunk::Copy { from, to, .. } => {
                if from.dims != to.dims || from.dtype != to.dtype {
                    return Err(format!("copy of {from:?} to {to:?}"));
                }
                let value = self.load(from);
                self.store(to, &value)
            }
            Thunk::Library { op, attrs, inputs, outputs, epilogue, .. } => {
                let operands: Vec<Tensor> = inputs.iter().map(|v| self.load(v)).collect();
                let refs: Vec<&Tensor> = operands.iter().collect();
                let declared: Vec<TensorType> = match epilogue {
                    Some(call) => vec![TensorType::new(call.inputs[0].dtype, &call.inputs[0].dims)],
                    None => outputs.iter().map(|v| TensorType::new(v.dtype, &v.dims)).collect(),
                };
                let results = eval_op(*op, attrs, &refs, &declared).map_err(|e| e.to_string())?;
                if let Some((got, want)) = results.iter().map(|t| &t.ty).zip(&declared).find(|(a, b)| a != b) {
                    return Err(format!("{op} computes {got}, expected {want}"));
                }
                match epilogue {
                    Some(call) => self.kernel(call, results.into_iter().next()),
                    None => outputs.iter().zip(&results).try_for_each(|(v, t)| self.store(v, t)),
                }
            }
        }
    }

    /// Runs a kernel; `first` replaces its first input.
    fn kernel(&mut self, call: &KernelCall, first: Option<Tensor>) -> Result<(), String> {
        let program = self.program;
        let body = &program.kernels[call.kernel as usize].body;
        let (mut inputs, mut scalars) = (call.inputs.iter(), call.scalars.iter());
        let mut args: Vec<Tensor> = Vec::with_capacity(body.params.len());
        for (i, p) in body.params.iter().enumerate() {
            match p.kind {
                ParamKind::Tensor => {
                    let view = inputs.next().ok_or("too few inputs")?;
                    args.push(match &first {
                        Some(t) if i == 0 => t.clone(),
                        _ => self.load(view),
                    });
                }
                ParamKind::Scalar => {
                    let n = *scalars.next().ok_or("too few scalars")?;
                    args.push(self.load(&View::dense(Place::Scalar(n), &p.ty)));
                }
            }
        }
        let results = eval(body, &args).map_err(|e| e.to_string())?;
        if results.len() != call.outputs.len() || inputs.next().is_some() || scalars.next().is_some() {
            return Err("the call does not match the kernel".into());
        }
        call.outputs.iter().zip(&results).try_for_each(|(v, t)| {
            if t.ty.dims == v.dims { self.store(v, t) } else { Err(format!("{} stored in {v:?}", t.ty)) }
        })
    }
}

/// Calls `f` with the element offset of every element of `view` in row-major order.
fn each_element(view: &View, mut f: impl FnMut(usize)) {
    if view.dims.contains(&0) {
        return;
    }
    let mut index = vec![0i64; view.dims.len()];
    loop {
        let at: i64 = view.offset + index.iter().zip(&view.strides).map(|(i, s)| i * s).sum::<i64>();
        f(at as usize);
        let mut d = view.dims.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            index[d] += 1;
            if index[d] < view.dims[d] {
                break;
            }
            index[d] = 0;
        }
    }
}
