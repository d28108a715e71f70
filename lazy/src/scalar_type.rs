//! PyTorch's `c10::ScalarType` codes and what they are in the IR.
use rsx_compiler::ir::DType;

/// Element type of a PyTorch tensor, by its `c10::ScalarType` code. Types the IR does not have (complex, quantised,
/// float8) stay recordable: ops on them become call nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ScalarType(pub u8);

impl ScalarType {
    pub const U8: ScalarType = ScalarType(0);
    pub const I8: ScalarType = ScalarType(1);
    pub const I16: ScalarType = ScalarType(2);
    pub const I32: ScalarType = ScalarType(3);
    pub const I64: ScalarType = ScalarType(4);
    pub const F16: ScalarType = ScalarType(5);
    pub const F32: ScalarType = ScalarType(6);
    pub const F64: ScalarType = ScalarType(7);
    pub const BOOL: ScalarType = ScalarType(11);
    pub const BF16: ScalarType = ScalarType(15);

    /// The IR's element type, if it has one.
    pub fn dtype(self) -> Option<DType> {
        Some(match self.0 {
            0 => DType::U8,
            1 => DType::I8,
            2 => DType::I16,
            3 => DType::I32,
            4 => DType::I64,
            5 => DType::F16,
            6 => DType::F32,
            7 => DType::F64,
            11 => DType::Bool,
            15 => DType::BF16,
            27 => DType::U16,
            28 => DType::U32,
            29 => DType::U64,
            _ => return None,
        })
    }

    /// Inverse of [`ScalarType::dtype`].
    pub fn of(dtype: DType) -> ScalarType {
        ScalarType(match dtype {
            DType::U8 => 0,
            DType::I8 => 1,
            DType::I16 => 2,
            DType::I32 => 3,
            DType::I64 => 4,
            DType::F16 => 5,
            DType::F32 => 6,
            DType::F64 => 7,
            DType::Bool => 11,
            DType::BF16 => 15,
            DType::U16 => 27,
            DType::U32 => 28,
            DType::U64 => 29,
        })
    }
}

/// PyTorch's name without the module: `float32`.
impl std::fmt::Display for ScalarType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.0 {
            0 => "uint8",
            1 => "int8",
            2 => "int16",
            3 => "int32",
            4 => "int64",
            5 => "float16",
            6 => "float32",
            7 => "float64",
            8 => "complex32",
            9 => "complex64",
            10 => "complex128",
            11 => "bool",
            15 => "bfloat16",
            27 => "uint16",
            28 => "uint32",
            29 => "uint64",
            other => return write!(f, "dtype {other}"),
        };
        f.write_str(name)
    }
}
