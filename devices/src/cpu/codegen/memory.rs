//! Loads and stores: between element types in memory and registers, masked, guarded, strided or gathered.
use super::emit::{Emit, Reg, Ty};
use super::index::Across;
use rsx_compiler::ir::DType;
use rsx_compiler::kernel::{Affine, ExprId, Source, Store};

/// Type of an element in memory.
pub(super) fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "i8",
        DType::F16 | DType::BF16 => "i16",
        other => Reg::of(other).name(),
    }
}

pub(super) fn memory_reg(dtype: DType) -> Reg {
    match dtype {
        DType::Bool => Reg::I8,
        DType::F16 | DType::BF16 => Reg::I16,
        other => Reg::of(other),
    }
}

/// How far ahead large inputs are asked for, bytes. The processor's own prefetching stops at the ends of pages.
const AHEAD: usize = 4096;

impl Emit<'_> {
    /// A register value from what was read from memory.
    pub(super) fn from_memory(&mut self, dtype: DType, vec: bool, raw: &str) -> String {
        let mem = Ty { reg: memory_reg(dtype), vec };
        match dtype {
            DType::Bool => self.cmp("icmp ne", mem, raw, &self.ci(mem, 0)),
            DType::BF16 => {
                let i = Ty { reg: Reg::I32, vec };
                let wide = self.cast("zext", mem, raw, Reg::I32);
                let bits = self.bin("shl", i, &wide, &self.ci(i, 16));
                self.cast("bitcast", i, &bits, Reg::F32)
            }
            DType::F16 => self.from_half(vec, raw),
            _ => raw.to_owned(),
        }
    }

    /// What is written to memory for a register value.
    pub(super) fn to_memory(&mut self, dtype: DType, vec: bool, value: &str) -> String {
        match dtype {
            DType::Bool => self.cast("zext", Ty { reg: Reg::I1, vec }, value, Reg::I8),
            DType::BF16 => {
                // The value is rounded already: the low half is 0.
                let i = Ty { reg: Reg::I32, vec };
                let bits = self.cast("bitcast", Ty { reg: Reg::F32, vec }, value, Reg::I32);
                let high = self.bin("lshr", i, &bits, &self.ci(i, 16));
                self.cast("trunc", i, &high, Reg::I16)
            }
            DType::F16 => self.to_half(vec, value),
            _ => value.to_owned(),
        }
    }

    fn pointer(&mut self, source: Source, dtype: DType, guard: Option<&str>, index: &str) -> String {
        let base = match source {
            Source::Arg(n) => format!("%p{n}"),
            Source::Literal(n) => format!("@KEY.lit{n}"),
        };
        let p = self.def(format!("getelementptr {}, ptr {base}, i64 {index}", memory_type(dtype)));
        match guard {
            // Where nothing may be read, read zeros that are always there.
            Some(g) => self.def(format!("select i1 {g}, ptr {p}, ptr @KEY.zeros")),
            None => p,
        }
    }

    /// A load that is the same for all lanes.
    pub(super) fn load_scalar(
        &mut self,
        source: Source,
        dtype: DType,
        offset: &Affine,
        guard: Option<ExprId>,
    ) -> String {
        let index = self.index_scalar(offset);
        let guard = guard.map(|g| self.scalar(g));
        if let Some(p) = self.accumulator(source) {
            return self.load_accumulator(dtype, &p);
        }
        let p = self.pointer(source, dtype, guard.as_deref(), &index);
        let raw = self.def(format!("load {}, ptr {p}, align {}", memory_type(dtype), dtype.size()));
        self.from_memory(dtype, false, &raw)
    }

    /// Asks for what lies `distance` bytes behind `p`, where this vector is read from or written to: once per cache line.
    fn prefetch(&mut self, p: &str, size: usize, distance: usize, write: bool) {
        let shift = self.lane.as_ref().map_or(0, |l| l.shift as usize);
        if (shift * size).is_multiple_of(64) {
            let p = self.def(format!("getelementptr i8, ptr {p}, i64 {distance}"));
            self.line(format!("call void @llvm.prefetch.p0(ptr {p}, i32 {}, i32 3, i32 1)", u32::from(write)));
        }
    }

    /// A load in all lanes; `full` if every point of the space has an element of its own.
    pub(super) fn load_vector(
        &mut self,
        source: Source,
        dtype: DType,
        offset: &Affine,
        guard: Option<ExprId>,
        full: bool,
    ) -> String {
        let across = self.index_across(offset);
        let (mut uniform_guard, mut mask) = (None, self.lane.as_ref().and_then(|l| l.mask.clone()));
        if let Some(g) = guard {
            uniform_guard = self.lane_uniform(g);
            if uniform_guard.is_none() {
                let g = self.vector(g);
                let b = Ty { reg: Reg::I1, vec: true };
                mask = Some(match mask {
                    Some(m) => self.bin("and", b, &m, &g),
                    None => g,
                });
            }
        }
        let (v, m) = (Ty { reg: memory_reg(dtype), vec: true }, memory_type(dtype));
        let (vt, mangled, align) = (self.ty(v), self.mangled(v), dtype.size());
        match across {
            Across::Step { base, step: 0 } => {
                let p = self.pointer(source, dtype, uniform_guard.as_deref(), &base);
                let raw = self.def(format!("load {m}, ptr {p}, align {align}"));
                let x = self.from_memory(dtype, false, &raw);
                self.splat(Reg::of(dtype), &x)
            }
            Across::Step { base, step: 1 } => {
                if let Some(p) = self.accumulator(source) {
                    return self.load_accumulator_vector(dtype, &p, mask.as_deref());
                }
                let p = self.pointer(source, dtype, uniform_guard.as_deref(), &base);
                if self.ahead && full && mask.is_none() {
                    self.prefetch(&p, align, AHEAD, false);
                }
                if let (Some(elements), true, None) = (self.next_rows, full, &mask) {
                    self.prefetch(&p, align, elements * align, false);
                }
                let raw = self.load_contiguous(v, &p, align, mask.as_deref());
                self.from_memory(dtype, true, &raw)
            }
            Across::Step { base, step: -1 } if mask.is_none() && uniform_guard.is_none() => {
                let last = self.def(format!("add nsw i64 {base}, {}", 1 - self.w as i64));
                let p = self.pointer(source, dtype, None, &last);
                let raw = self.load_contiguous(v, &p, align, None);
                let order: Vec<String> = (0..self.w).rev().map(|i| format!("i32 {i}")).collect();
                let (w, order) = (self.w, order.join(", "));
                let raw = self.def(format!("shufflevector {vt} {raw}, {vt} poison, <{w} x i32> <{order}>"));
                self.from_memory(dtype, true, &raw)
            }
            across => {
                // A uniform guard becomes part of the mask here.
                let b = Ty { reg: Reg::I1, vec: true };
                let mut mask = mask.unwrap_or_else(|| "splat (i1 true)".to_owned());
                if let Some(g) = uniform_guard {
                    let g = self.splat(Reg::I1, &g);
                    mask = self.bin("and", b, &mask, &g);
                }
                let index = match across {
                    Across::Vector(x) => x,
                    Across::Step { .. } => self.index_vector(offset),
                };
                let (w, i) = (self.w, self.index.name());
                let base = match source {
                    Source::Arg(n) => format!("%p{n}"),
                    Source::Literal(n) => format!("@KEY.lit{n}"),
                };
                let p = self.def(format!("getelementptr {m}, ptr {base}, <{w} x {i}> {index}"));
                let raw = self.def(format!(
                    "call {vt} @llvm.masked.gather.{mangled}.v{w}p0(<{w} x ptr> align {align} {p}, <{w} x i1> {mask}, {vt} zeroinitializer)"
                ));
                self.from_memory(dtype, true, &raw)
            }
        }
    }

    /// A load of consecutive elements; 0 in lanes that are masked off.
    pub(super) fn load_contiguous(&mut self, v: Ty, p: &str, align: usize, mask: Option<&str>) -> String {
        let (vt, mangled, w) = (self.ty(v), self.mangled(v), self.w);
        match mask {
            None => self.def(format!("load {vt}, ptr {p}, align {align}")),
            Some(m) => self.def(format!(
                "call {vt} @llvm.masked.load.{mangled}.p0(ptr align {align} {p}, <{w} x i1> {m}, {vt} zeroinitializer)"
            )),
        }
    }

    /// A store of consecutive elements.
    pub(super) fn store_contiguous(&mut self, v: Ty, value: &str, p: &str, align: usize, stream: bool) {
        let (vt, mangled, w) = (self.ty(v), self.mangled(v), self.w);
        match self.lane.as_ref().and_then(|l| l.mask.clone()) {
            None if stream => {
                let align = w * v.reg.bits() as usize / 8;
                self.line(format!("store {vt} {value}, ptr {p}, align {align}, !nontemporal !0"));
            }
            None => self.line(format!("store {vt} {value}, ptr {p}, align {align}")),
            Some(m) => self.line(format!(
                "call void @llvm.masked.store.{mangled}.p0({vt} {value}, ptr align {align} {p}, <{w} x i1> {m})"
            )),
        }
    }

    /// Computes a store's value (in the lanes, or once).
    pub(super) fn store_value(&mut self, s: &Store, vec: bool) -> String {
        let dtype = self.k.args[s.arg as usize].dtype;
        let x = if vec { self.vector(s.value) } else { self.scalar(s.value) };
        self.to_memory(dtype, vec, &x)
    }

    /// Writes what [`Emit::store_value`] gave.
    pub(super) fn store(&mut self, s: &Store, vec: bool, raw: &str) {
        let dtype = self.k.args[s.arg as usize].dtype;
        let (m, align) = (memory_type(dtype), dtype.size());
        if !vec {
            let index = self.index_scalar(&s.offset);
            let p = self.def(format!("getelementptr {m}, ptr %p{}, i64 {index}", s.arg));
            self.line(format!("store {m} {raw}, ptr {p}, align {align}"));
            return;
        }
        let v = Ty { reg: memory_reg(dtype), vec: true };
        match self.index_across(&s.offset) {
            Across::Step { base, step: 1 } => {
                let p = self.def(format!("getelementptr {m}, ptr %p{}, i64 {base}", s.arg));
                if let (Some(elements), None) = (self.next_rows, self.lane.as_ref().and_then(|l| l.mask.as_ref())) {
                    self.prefetch(&p, align, elements * align, true);
                }
                // Narrow elements fill less than a cache line per vector, which write-combining handles too.
                self.store_contiguous(v, raw, &p, align, self.non_temporal);
            }
            across => {
                let index = match across {
                    Across::Vector(x) => x,
                    Across::Step { .. } => self.index_vector(&s.offset),
                };
                let mask = self.lane.as_ref().and_then(|l| l.mask.clone());
                let mask = mask.unwrap_or_else(|| "splat (i1 true)".to_owned());
                let (w, i, vt, mangled) = (self.w, self.index.name(), self.ty(v), self.mangled(v));
                let p = self.def(format!("getelementptr {m}, ptr %p{}, <{w} x {i}> {index}", s.arg));
                self.line(format!(
                    "call void @llvm.masked.scatter.{mangled}.v{w}p0({vt} {raw}, <{w} x ptr> align {align} {p}, <{w} x i1> {mask})"
                ));
            }
        }
    }

    // The accumulation buffer of an epilogue: the block's elements as f32 (f64 for f64), rows `%ld` apart.

    fn accumulator(&mut self, source: Source) -> Option<String> {
        let (arg, row) = self.acc.clone()?;
        if source != Source::Arg(arg) {
            return None;
        }
        let t = acc_type(self.k.args[arg as usize].dtype);
        let column = match &self.lane {
            Some(l) => self.def_once(&format!("add nsw i64 {}, {}", l.base, l.shift)),
            // Without lanes there is one column.
            None => "0".to_owned(),
        };
        Some(self.def(format!("getelementptr {t}, ptr {row}, i64 {column}")))
    }

    fn load_accumulator(&mut self, dtype: DType, p: &str) -> String {
        let t = acc_type(dtype);
        let raw = self.def(format!("load {t}, ptr {p}, align 4"));
        self.round(dtype, false, &raw)
    }

    fn load_accumulator_vector(&mut self, dtype: DType, p: &str, mask: Option<&str>) -> String {
        let v = Ty { reg: Reg::of(dtype.opmath()), vec: true };
        let raw = self.load_contiguous(v, p, dtype.opmath().size(), mask);
        self.round(dtype, true, &raw)
    }
}

fn acc_type(dtype: DType) -> &'static str {
    Reg::of(dtype.opmath()).name()
}
