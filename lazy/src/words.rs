//! The flat encoding of a recorded op: one stream of `u64` words (structure) and one of data words (values).
//!
//! Words are what memoisation and fingerprints see: op, dtypes, sizes, strides, offsets, static arguments.
//! Data words hold what may change from step to step without a new program: Python numbers given as `Scalar`,
//! scalar lists, the values of 0-d CPU tensors, RNG seed and offset. The C++ shim writes this form
//! (`ffi/shim/rsx_abi.h` repeats the tags; a test compares them), Rust decodes it once per signature.
use crate::ScalarType;
use smallvec::SmallVec;

/// First byte of an argument's header word. Header: `tag | lo << 8 (24 bits) | hi << 32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    None = 0,
    /// Undefined tensor.
    Undef = 1,
    /// lo = scalar type | rank << 8 | wrapped number << 16, hi = index of the storage in the record;
    /// then offset, sizes, strides (elements).
    Tensor = 2,
    /// 0-d CPU tensor: lo = scalar type | wrapped number << 16; value: raw bytes in 1 data word (2 if 16 bytes).
    CpuScalar = 3,
    Int = 4,
    Double = 5,
    /// lo = 0 or 1.
    Bool = 6,
    /// Two data words (real, imaginary).
    Complex = 7,
    /// hi = length; one word per element. The same for the other plain lists.
    IntList = 8,
    DoubleList = 9,
    BoolList = 10,
    /// hi = length; each element is an argument of its own.
    TensorList = 11,
    OptTensorList = 12,
    /// hi = length in bytes, packed 8 to a word.
    Str = 13,
    /// lo = device type, hi = index.
    Device = 14,
    Generator = 15,
    /// hi = length; elements are `DataInt` / `DataDouble` / `DataBool` headers.
    ScalarList = 16,
    /// A number by value: one data word (i64, f64 bits, or 0/1).
    DataInt = 17,
    DataDouble = 18,
    DataBool = 19,
    /// RNG state of a random op, appended by the shim: two data words (seed, offset).
    Rng = 20,
}

impl Tag {
    fn from_u8(b: u8) -> Option<Tag> {
        use Tag::*;
        const ALL: [Tag; 21] = [
            None,
            Undef,
            Tensor,
            CpuScalar,
            Int,
            Double,
            Bool,
            Complex,
            IntList,
            DoubleList,
            BoolList,
            TensorList,
            OptTensorList,
            Str,
            Device,
            Generator,
            ScalarList,
            DataInt,
            DataDouble,
            DataBool,
            Rng,
        ];
        ALL.get(b as usize).copied()
    }

    /// The tag of a header word.
    pub fn of(header: u64) -> Option<Tag> {
        Tag::from_u8(header as u8)
    }

    /// Builds a header word.
    pub fn header(self, lo: u32, hi: u32) -> u64 {
        self as u64 | (u64::from(lo) & 0xff_ffff) << 8 | u64::from(hi) << 32
    }
}

/// A tensor argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorArg {
    /// Index into the record's storages.
    pub storage: u32,
    pub dtype: ScalarType,
    pub sizes: SmallVec<[i64; 6]>,
    /// Elements.
    pub strides: SmallVec<[i64; 6]>,
    /// Elements.
    pub offset: i64,
    /// A Python number that PyTorch wrapped as a tensor (weaker in type promotion).
    pub wrapped: bool,
}

impl TensorArg {
    /// Bytes of its elements; none for element types that the compiler does not know.
    pub fn nbytes(&self) -> Option<usize> {
        let elements = self.sizes.iter().product::<i64>();
        Some(self.dtype.dtype()?.size() * usize::try_from(elements).ok()?)
    }

    /// Is it all of a storage of `nbytes` bytes?
    pub fn covers(&self, nbytes: usize) -> bool {
        self.nbytes() == Some(nbytes) && !self.strides.contains(&0)
    }
}

/// How a data word is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum DataKind {
    Int,
    Double,
    Bool,
    /// Raw bytes of a 0-d CPU tensor.
    Raw(ScalarType),
}

impl DataKind {
    /// True if the value is passed to programs as f64, false for i64.
    pub fn is_float(self) -> bool {
        match self {
            DataKind::Double => true,
            DataKind::Int | DataKind::Bool => false,
            DataKind::Raw(t) => t.dtype().is_some_and(|d| d.is_float()),
        }
    }

    /// The word as programs take it: f64 bits or i64 bits.
    pub fn value(self, word: u64) -> u64 {
        match self {
            DataKind::Int | DataKind::Double | DataKind::Bool => word,
            DataKind::Raw(t) => {
                let bytes = word.to_le_bytes();
                match t.dtype() {
                    Some(rsx_compiler::ir::DType::U64 | rsx_compiler::ir::DType::I64) => word,
                    Some(d) if d.is_float() => rsx_compiler::ir::decode_f64(d, &bytes).to_bits(),
                    Some(d) => rsx_compiler::ir::decode_f64(d, &bytes) as i64 as u64,
                    None => word,
                }
            }
        }
    }
}

/// A decoded argument. `slot` counts data words from the start of the record's data.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    None,
    Undef,
    Tensor(TensorArg),
    /// 0-d CPU tensor.
    CpuScalar {
        dtype: ScalarType,
        wrapped: bool,
        slot: u32,
    },
    Int(i64),
    Double(f64),
    Bool(bool),
    Complex {
        slot: u32,
    },
    Ints(Vec<i64>),
    Doubles(Vec<f64>),
    Bools(Vec<bool>),
    /// Tensor lists (optional elements are `Arg::None`) and scalar lists.
    List(Vec<Arg>),
    Str(String),
    Device,
    Generator,
    /// A number passed by value.
    Data {
        kind: DataKind,
        slot: u32,
    },
    /// Seed at `slot`, offset at `slot + 1`.
    Rng {
        slot: u32,
    },
}

impl Arg {
    /// Visits the tensor arguments in it, in order.
    pub fn tensors<'a>(&'a self, f: &mut dyn FnMut(&'a TensorArg)) {
        match self {
            Arg::Tensor(t) => f(t),
            Arg::List(l) => l.iter().for_each(|a| a.tensors(f)),
            _ => {}
        }
    }
}

/// A malformed word stream: a bug of the shim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed record at word {0}")]
pub struct DecodeError(pub usize);

/// Decodes all arguments of a record (`words[0]` is the op's hash).
pub fn decode(words: &[u64]) -> Result<Vec<Arg>, DecodeError> {
    let mut d = Decoder { words, at: 1, slot: 0 };
    let mut args = Vec::new();
    while d.at < words.len() {
        args.push(d.arg()?);
    }
    Ok(args)
}

struct Decoder<'a> {
    words: &'a [u64],
    at: usize,
    slot: u32,
}

impl Decoder<'_> {
    fn word(&mut self) -> Result<u64, DecodeError> {
        let w = *self.words.get(self.at).ok_or(DecodeError(self.at))?;
        self.at += 1;
        Ok(w)
    }

    fn words<C: FromIterator<i64>>(&mut self, n: usize) -> Result<C, DecodeError> {
        (0..n).map(|_| self.word().map(|w| w as i64)).collect()
    }

    fn slots(&mut self, n: u32) -> u32 {
        self.slot += n;
        self.slot - n
    }

    fn list(&mut self, n: usize) -> Result<Arg, DecodeError> {
        (0..n).map(|_| self.arg()).collect::<Result<_, _>>().map(Arg::List)
    }

    fn arg(&mut self) -> Result<Arg, DecodeError> {
        let at = self.at;
        let h = self.word()?;
        let (lo, hi) = ((h >> 8) as u32 & 0xff_ffff, (h >> 32) as u32);
        let n = hi as usize;
        let dtype = ScalarType(lo as u8);
        let wrapped = lo >> 16 & 1 != 0;
        let data = |kind, slot| Arg::Data { kind, slot };
        Ok(match Tag::from_u8(h as u8).ok_or(DecodeError(at))? {
            Tag::None => Arg::None,
            Tag::Undef => Arg::Undef,
            Tag::Tensor => {
                let rank = (lo >> 8 & 0xff) as usize;
                let offset = self.word()? as i64;
                let (sizes, strides) = (self.words(rank)?, self.words(rank)?);
                Arg::Tensor(TensorArg { storage: hi, dtype, sizes, strides, offset, wrapped })
            }
            Tag::CpuScalar => {
                let wide = matches!(dtype.0, 10);
                Arg::CpuScalar { dtype, wrapped, slot: self.slots(1 + u32::from(wide)) }
            }
            Tag::Int => Arg::Int(self.word()? as i64),
            Tag::Double => Arg::Double(f64::from_bits(self.word()?)),
            Tag::Bool => Arg::Bool(lo & 1 != 0),
            Tag::Complex => Arg::Complex { slot: self.slots(2) },
            Tag::IntList => Arg::Ints(self.words(n)?),
            Tag::DoubleList => {
                Arg::Doubles(self.words::<Vec<i64>>(n)?.into_iter().map(|w| f64::from_bits(w as u64)).collect())
            }
            Tag::BoolList => Arg::Bools(self.words::<Vec<i64>>(n)?.into_iter().map(|w| w != 0).collect()),
            Tag::TensorList | Tag::OptTensorList | Tag::ScalarList => self.list(n)?,
            Tag::Str => {
                let packed: Vec<i64> = self.words(n.div_ceil(8))?;
                let bytes: Vec<u8> = packed.into_iter().flat_map(i64::to_le_bytes).take(n).collect();
                Arg::Str(String::from_utf8(bytes).map_err(|_| DecodeError(at))?)
            }
            Tag::Device => Arg::Device,
            Tag::Generator => Arg::Generator,
            Tag::DataInt => data(DataKind::Int, self.slots(1)),
            Tag::DataDouble => data(DataKind::Double, self.slots(1)),
            Tag::DataBool => data(DataKind::Bool, self.slots(1)),
            Tag::Rng => Arg::Rng { slot: self.slots(2) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_what_the_shim_writes() {
        let words = [
            42,
            Tag::Tensor.header(6 | 2 << 8, 1),
            3,
            4,
            5,
            5,
            1,
            Tag::DataDouble.header(0, 0),
            Tag::IntList.header(0, 2),
            7,
            (-1i64) as u64,
            Tag::Str.header(0, 4),
            u64::from_le_bytes(*b"tanh\0\0\0\0"),
            Tag::Rng.header(0, 0),
        ];
        let args = decode(&words).unwrap();
        assert_eq!(args.len(), 5);
        let Arg::Tensor(t) = &args[0] else { panic!("{args:?}") };
        assert_eq!((t.storage, t.offset, &t.sizes[..], &t.strides[..]), (1, 3, &[4, 5][..], &[5, 1][..]));
        assert_eq!(args[1], Arg::Data { kind: DataKind::Double, slot: 0 });
        assert_eq!(args[2], Arg::Ints(vec![7, -1]));
        assert_eq!(args[3], Arg::Str("tanh".into()));
        assert_eq!(args[4], Arg::Rng { slot: 1 });
    }

    #[test]
    fn truncated_records_are_errors() {
        assert_eq!(decode(&[1, Tag::IntList.header(0, 3), 1]), Err(DecodeError(3)));
        assert_eq!(decode(&[1, 200]), Err(DecodeError(1)));
    }
}
