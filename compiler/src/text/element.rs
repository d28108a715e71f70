//! Text of single elements: exact in both directions.
use crate::ir::{DType, decode_f64};

/// Bit pattern of an element, zero-extended.
fn bits(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |acc, &b| acc << 8 | u64::from(b))
}

fn from_bits(dtype: DType, bits: u64) -> Box<[u8]> {
    bits.to_le_bytes()[..dtype.size()].into()
}

/// The quiet NaN that arithmetic gives: printed as `nan`.
fn canonical_nan(dtype: DType) -> u64 {
    match dtype {
        DType::F16 => 0x7e00,
        DType::BF16 => 0x7fc0,
        DType::F32 => 0x7fc0_0000,
        _ => 0x7ff8_0000_0000_0000,
    }
}

/// Shortest decimal of a 16-bit float that [`parse`] reads back exactly.
fn shortest_16(dtype: DType, value: f64, bytes: &[u8]) -> String {
    for digits in 0..17 {
        let text = format!("{value:.digits$e}");
        if parse(dtype, &text).as_deref() == Some(bytes) {
            // Through f64's own shortest form, so that 16-bit and 32-bit floats look alike.
            return match text.parse::<f64>() {
                Ok(short) => format!("{short:?}"),
                Err(_) => text,
            };
        }
    }
    format!("{value:?}")
}

/// The text of the element in `bytes`.
pub(super) fn print(dtype: DType, bytes: &[u8]) -> String {
    match dtype {
        DType::Bool => match bytes[0] {
            0 => "false".into(),
            1 => "true".into(),
            other => format!("0x{other:02X}"),
        },
        DType::I64 => (bits(bytes) as i64).to_string(),
        DType::U64 => bits(bytes).to_string(),
        DType::U8 | DType::I8 | DType::I16 | DType::U16 | DType::I32 | DType::U32 => {
            (decode_f64(dtype, bytes) as i64).to_string()
        }
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {
            let value = decode_f64(dtype, bytes);
            if value.is_nan() {
                if bits(bytes) == canonical_nan(dtype) {
                    return "nan".into();
                }
                return format!("0x{:0width$X}", bits(bytes), width = dtype.size() * 2);
            }
            match dtype {
                DType::F32 => format!("{:?}", value as f32),
                DType::F64 => format!("{value:?}"),
                _ if value.is_infinite() => format!("{value:?}"),
                _ => shortest_16(dtype, value, bytes),
            }
        }
    }
}

/// The bytes of the element that `text` names; `None` if it names none of this type (integers out of range included).
pub(super) fn parse(dtype: DType, text: &str) -> Option<Box<[u8]>> {
    if let Some(hex) = text.strip_prefix("0x") {
        let bits = u64::from_str_radix(hex, 16).ok()?;
        return (dtype.size() == 8 || bits >> (8 * dtype.size()) == 0).then(|| from_bits(dtype, bits));
    }
    if dtype == DType::Bool {
        return match text {
            "true" | "1" => Some([1].into()),
            "false" | "0" => Some([0].into()),
            _ => None,
        };
    }
    if dtype.is_float() {
        if text == "nan" {
            return Some(from_bits(dtype, canonical_nan(dtype)));
        }
        // Rust also reads "infinity" and "NaN"; one spelling is enough.
        if text.contains(|c: char| c.is_ascii_alphabetic() && c != 'e' && c != 'E')
            && text.trim_start_matches('-') != "inf"
        {
            return None;
        }
        return match dtype {
            DType::F64 => Some(text.parse::<f64>().ok()?.to_le_bytes().into()),
            DType::F32 => Some(text.parse::<f32>().ok()?.to_le_bytes().into()),
            DType::BF16 => Some(half::bf16::from_f32(text.parse::<f32>().ok()?).to_le_bytes().into()),
            _ => Some(half::f16::from_f32(text.parse::<f32>().ok()?).to_le_bytes().into()),
        };
    }
    let value: i128 = text.parse().ok()?;
    let width = 8 * dtype.size() as u32;
    let (lo, hi) = if dtype.is_signed() {
        (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1)
    } else {
        (0, (1i128 << width) - 1)
    };
    (lo..=hi).contains(&value).then(|| from_bits(dtype, value as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_float_reads_back() {
        for dtype in [DType::F16, DType::BF16] {
            for b in 0..=u16::MAX {
                let text = print(dtype, &b.to_le_bytes());
                assert_eq!(parse(dtype, &text).as_deref(), Some(&b.to_le_bytes()[..]), "{dtype} {text}");
            }
        }
    }

    #[test]
    fn edge_elements() {
        let cases: &[(DType, &str)] = &[
            (DType::F32, "-0.0"),
            (DType::F32, "inf"),
            (DType::F64, "-inf"),
            (DType::F32, "nan"),
            (DType::F32, "0xFFC00001"),
            (DType::F64, "5e-324"),
            (DType::F32, "0.1"),
            (DType::BF16, "0.1"),
            (DType::F16, "0.1"),
            (DType::U64, "18446744073709551615"),
            (DType::I64, "-9223372036854775808"),
            (DType::I8, "-128"),
            (DType::Bool, "true"),
        ];
        for (dtype, text) in cases {
            let bytes = parse(*dtype, text).unwrap_or_else(|| panic!("{dtype} {text}"));
            assert_eq!(print(*dtype, &bytes), *text, "{dtype}");
        }
        for (dtype, text) in [(DType::I8, "128"), (DType::U8, "-1"), (DType::F32, "infinity"), (DType::I32, "1.5")] {
            assert_eq!(parse(dtype, text), None, "{dtype} {text}");
        }
    }
}
