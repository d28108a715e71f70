//! Interned signatures: an op with the metadata of its operands, its static arguments and its predicted outputs.
use crate::words::{self, Arg, DecodeError, Tag};
use crate::{OpInfo, ScalarType};
use std::sync::{Arc, OnceLock};
use xxhash_rust::xxh3::xxh3_128;

/// Highest rank a recorded output may have; ops beyond run at once.
pub const MAX_RANK: usize = 8;

/// Predicted metadata of one fresh output. Strides in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutMeta {
    pub sizes: [i64; MAX_RANK],
    pub strides: [i64; MAX_RANK],
    /// Bytes of the storage made for it.
    pub nbytes: u64,
    pub rank: u8,
    pub dtype: ScalarType8,
    pub kind: OutKind,
    pub pad: [u8; 5],
}

/// `c10::ScalarType` code as one byte (C layout).
pub type ScalarType8 = u8;

/// What an entry of a signature's outputs stands for.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutKind {
    /// A fresh tensor with its own storage.
    Fresh = 0,
    /// An undefined tensor.
    Undef = 1,
    /// A list follows; `nbytes` is its length.
    List = 2,
    /// An integer known from shapes; `nbytes` holds it.
    Int = 3,
}

impl OutMeta {
    pub fn sizes(&self) -> &[i64] {
        &self.sizes[..self.rank as usize]
    }
    pub fn strides(&self) -> &[i64] {
        &self.strides[..self.rank as usize]
    }
    pub fn scalar_type(&self) -> ScalarType {
        ScalarType(self.dtype)
    }
}

/// Facts about a signature that the shim branches on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SigFlags {
    /// Its outputs cannot be predicted: run it at once and take what comes.
    pub immediate: bool,
}

/// Hashes of what a signature says, by subject; stable across processes. Together they cover every word of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SigParts {
    /// The op, kinds of arguments, which operands share storages.
    pub ops: u128,
    /// Element types of operands and outputs.
    pub dtypes: u128,
    /// Sizes, strides and offsets of operands and outputs.
    pub geometry: u128,
    /// Static integers, lists, flags and texts.
    pub arguments: u128,
}

impl SigParts {
    fn new(words: &[u64], outs: &[OutMeta]) -> SigParts {
        let mut s = Split::default();
        if s.words(words).is_none() {
            // Malformed: nothing may be left out.
            s.ops.extend_from_slice(words);
        }
        for o in outs {
            s.ops.push(o.kind as u64);
            s.dtypes.push(u64::from(o.dtype));
            s.geometry.extend([u64::from(o.rank), o.nbytes]);
            s.geometry.extend(o.sizes().iter().chain(o.strides()).map(|&v| v as u64));
        }
        let hash = |words: &[u64]| xxh3_128(&words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>());
        SigParts {
            ops: hash(&s.ops),
            dtypes: hash(&s.dtypes),
            geometry: hash(&s.geometry),
            arguments: hash(&s.arguments),
        }
    }
}

#[derive(Default)]
struct Split {
    ops: Vec<u64>,
    dtypes: Vec<u64>,
    geometry: Vec<u64>,
    arguments: Vec<u64>,
}

impl Split {
    /// Lists need no care: their elements follow as arguments of their own. Nothing if the record is malformed.
    fn words(&mut self, words: &[u64]) -> Option<()> {
        let (&op, mut rest) = words.split_first()?;
        self.ops.push(op);
        let mut take = |n: usize| rest.split_off(..n);
        while let Some(&[h]) = take(1) {
            let (lo, n) = ((h >> 8) as u32, (h >> 32) as usize);
            match Tag::of(h)? {
                Tag::Tensor => {
                    let rank = u64::from(lo >> 8 & 0xff);
                    self.ops.push(h & !0xffff00);
                    self.dtypes.push(u64::from(lo & 0xff));
                    self.geometry.push(rank);
                    self.geometry.extend_from_slice(take(1 + 2 * rank as usize)?);
                }
                Tag::CpuScalar => {
                    self.ops.push(h & !0xff00);
                    self.dtypes.push(u64::from(lo & 0xff));
                }
                Tag::Int | Tag::Double => {
                    self.ops.push(h);
                    self.arguments.extend_from_slice(take(1)?);
                }
                Tag::IntList | Tag::DoubleList | Tag::BoolList => {
                    self.ops.push(h & 0xff);
                    self.arguments.push(h);
                    self.arguments.extend_from_slice(take(n)?);
                }
                Tag::Str => {
                    self.ops.push(h & 0xff);
                    self.arguments.push(h);
                    self.arguments.extend_from_slice(take(n.div_ceil(8))?);
                }
                Tag::Bool | Tag::Device => {
                    self.ops.push(h & 0xff);
                    self.arguments.push(h);
                }
                Tag::None
                | Tag::Undef
                | Tag::Complex
                | Tag::TensorList
                | Tag::OptTensorList
                | Tag::Generator
                | Tag::ScalarList
                | Tag::DataInt
                | Tag::DataDouble
                | Tag::DataBool
                | Tag::Rng => self.ops.push(h),
            }
        }
        Some(())
    }
}

/// An interned signature: op, operand metadata and static arguments, with the predicted outputs.
#[derive(Debug)]
pub struct Sig {
    pub op: Arc<OpInfo>,
    /// Of words and outputs. Stable across processes.
    pub hash: u128,
    pub parts: SigParts,
    pub words: Box<[u64]>,
    pub outs: Box<[OutMeta]>,
    pub flags: SigFlags,
    args: OnceLock<Result<Vec<Arg>, DecodeError>>,
}

impl Sig {
    pub fn new(op: Arc<OpInfo>, words: &[u64], outs: &[OutMeta], flags: SigFlags) -> Sig {
        let parts = SigParts::new(words, outs);
        let all = [parts.ops, parts.dtypes, parts.geometry, parts.arguments];
        let hash = xxh3_128(&all.map(u128::to_le_bytes).concat());
        Sig { op, hash, parts, words: words.into(), outs: outs.into(), flags, args: OnceLock::new() }
    }

    /// The decoded arguments.
    pub fn args(&self) -> Result<&[Arg], DecodeError> {
        self.args.get_or_init(|| words::decode(&self.words)).as_deref().map_err(Clone::clone)
    }

    /// Outputs that get a storage of their own, in order.
    pub fn fresh(&self) -> impl Iterator<Item = &OutMeta> {
        self.outs.iter().filter(|o| o.kind == OutKind::Fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_covers_its_subject_and_nothing_else() {
        let tensor = |dtype: u32, sizes: [u64; 2]| {
            vec![Tag::Tensor.header(dtype | 2 << 8, 0), 0, sizes[0], sizes[1], sizes[1], 1]
        };
        let words = |op: u64, dtype: u32, sizes: [u64; 2], dim: u64| {
            [vec![op], tensor(dtype, sizes), vec![Tag::Int.header(0, 0), dim]].concat()
        };
        let parts = |w: Vec<u64>| SigParts::new(&w, &[]);
        let base = parts(words(1, 6, [3, 4], 0));
        assert_eq!(parts(words(2, 6, [3, 4], 0)), SigParts { ops: parts(words(2, 6, [3, 4], 0)).ops, ..base });
        assert_eq!(parts(words(1, 7, [3, 4], 0)), SigParts { dtypes: parts(words(1, 7, [3, 4], 0)).dtypes, ..base });
        let wider = parts(words(1, 6, [3, 5], 0));
        assert_eq!(wider, SigParts { geometry: wider.geometry, ..base });
        let other = parts(words(1, 6, [3, 4], 1));
        assert_eq!(other, SigParts { arguments: other.arguments, ..base });
        for changed in [parts(words(2, 6, [3, 4], 0)), parts(words(1, 7, [3, 4], 0)), wider, other] {
            assert_ne!(changed, base);
        }
        // Truncated: still told apart.
        assert_ne!(parts(vec![1, Tag::IntList.header(0, 3), 1]), parts(vec![1, Tag::IntList.header(0, 3), 2]));
    }
}
