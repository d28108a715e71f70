//! Object files made executable: the little of a linker that generated kernels need.
//!
//! A kernel's object has code, constants, and calls of the functions in [`super::extern_math`]; its functions are found
//! by name. Everything goes into one mapping, which is never writable and executable at the same time:
//!
//! ```text
//! sections, each aligned | addresses of functions of ours (one word each) | jumps to them
//! ```
//!
//! LLVM's own linker does the same and far more for ten times the time. What this one does not know, it refuses. Objects
//! may come from the disk cache, so that nothing in them is believed: every offset is checked.
use super::extern_math;
use std::collections::HashMap;
use std::sync::OnceLock;

/// Executable memory; given back when dropped.
#[derive(Debug)]
pub(super) struct Image {
    base: usize,
    length: usize,
    /// Functions of the object: name and address.
    functions: Vec<(String, usize)>,
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `Image::map` and belongs to this value; nobody runs its code any more, since
        // addresses are used through a reference to this value only.
        unsafe {
            libc::munmap(std::ptr::with_exposed_provenance_mut(self.base), self.length);
        }
    }
}

const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;
const RELOCATION: usize = 24;
/// Section types.
const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const RELA: u32 = 4;
const NOBITS: u32 = 8;
/// Section flag: occupies memory at run time.
const ALLOC: u64 = 2;
/// Symbol type: a function.
const FUNCTION: u8 = 2;
/// `jmp *0(%rip)`, whose operand, relative to its end, is filled in; padded to 8 bytes.
const JUMP: [u8; 8] = [0xFF, 0x25, 0, 0, 0, 0, 0xCC, 0xCC];

/// Little-endian numbers at checked places.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn at<const N: usize>(self, at: usize) -> Result<[u8; N], String> {
        let end = at.checked_add(N).ok_or("an offset overflows")?;
        self.0.get(at..end).and_then(|b| b.try_into().ok()).ok_or_else(|| "it is cut off".into())
    }

    fn u16(self, at: usize) -> Result<usize, String> {
        self.at(at).map(|b| usize::from(u16::from_le_bytes(b)))
    }

    fn u32(self, at: usize) -> Result<u32, String> {
        self.at(at).map(u32::from_le_bytes)
    }

    fn u64(self, at: usize) -> Result<u64, String> {
        self.at(at).map(u64::from_le_bytes)
    }

    fn slice(self, at: u64, length: u64) -> Result<&'a [u8], String> {
        let range = at as usize..at.checked_add(length).ok_or("an offset overflows")? as usize;
        self.0.get(range).ok_or_else(|| "it is cut off".into())
    }

    /// The C string at `at`.
    fn name(self, at: u32) -> Result<&'a str, String> {
        let rest = self.0.get(at as usize..).ok_or("a name out of bounds")?;
        let end = rest.iter().position(|&b| b == 0).ok_or("a name without end")?;
        std::str::from_utf8(&rest[..end]).map_err(|e| e.to_string())
    }
}

struct Section<'a> {
    name: u32,
    kind: u32,
    flags: u64,
    contents: &'a [u8],
    size: usize,
    link: u32,
    info: u32,
    align: usize,
    /// Where it lies in the image.
    place: Option<usize>,
}

fn sections(b: Bytes<'_>) -> Result<Vec<Section<'_>>, String> {
    // 64-bit little-endian relocatable object for x86-64.
    let head: [u8; 20] = b.at(0)?;
    if head[..6] != *b"\x7fELF\x02\x01" || head[16..20] != [1, 0, 62, 0] {
        return Err("it is no object file for this processor".into());
    }
    let (table, size, count) = (b.u64(40)? as usize, b.u16(58)?, b.u16(60)?);
    if size != SECTION_HEADER {
        return Err("section headers of another size".into());
    }
    let one = |n: usize| {
        let h = table.checked_add(n * SECTION_HEADER).ok_or("an offset overflows")?;
        let (kind, offset, size) = (b.u32(h + 4)?, b.u64(h + 24)?, b.u64(h + 32)?);
        let contents = if kind == NOBITS { &[][..] } else { b.slice(offset, size)? };
        if size > 1 << 30 {
            return Err("a section too large".into());
        }
        Ok(Section {
            name: b.u32(h)?,
            kind,
            flags: b.u64(h + 8)?,
            contents,
            size: size as usize,
            link: b.u32(h + 40)?,
            info: b.u32(h + 44)?,
            align: (b.u64(h + 48)?.max(1) as usize).min(4096),
            place: None,
        })
    };
    (0..count).map(one).collect()
}

/// Addresses of the functions that kernels may call.
fn known() -> &'static HashMap<String, usize> {
    static KNOWN: OnceLock<HashMap<String, usize>> = OnceLock::new();
    KNOWN.get_or_init(|| extern_math::symbols().into_iter().collect())
}

/// What a symbol stands for.
#[derive(Clone, Copy)]
enum Target {
    /// Offset in the image.
    Inside(usize),
    /// Number of an entry in the table of addresses.
    Ours(usize),
}

/// The image while it is put together.
struct Layout {
    bytes: Vec<u8>,
    /// Of the table of addresses.
    table: usize,
    /// Of the jumps.
    jumps: usize,
    /// Addresses to be filled in, now that the image's own is known: place, offset in the image.
    absolute: Vec<(usize, i64)>,
}

impl Layout {
    fn put(&mut self, at: usize, value: &[u8]) -> Result<(), String> {
        let range = at..at.checked_add(value.len()).ok_or("an offset overflows")?;
        self.bytes.get_mut(range).ok_or("a relocation out of bounds")?.copy_from_slice(value);
        Ok(())
    }

    /// Relocation of type `kind` at `at` to `target + addend`.
    fn relocate(&mut self, kind: u32, at: usize, target: Target, addend: i64) -> Result<(), String> {
        let to = match (kind, target) {
            // PC32, PLT32 of what is inside; calls of what is not go through jumps.
            (2 | 4, Target::Inside(p)) => p,
            (2 | 4, Target::Ours(n)) => self.jumps + n * JUMP.len(),
            // GOTPCREL, GOTPCRELX, REX_GOTPCRELX.
            (9 | 41 | 42, Target::Ours(n)) => self.table + n * 8,
            // 64.
            (1, Target::Inside(p)) => {
                self.put(at, &[0; 8])?;
                self.absolute.push((at, p as i64 + addend));
                return Ok(());
            }
            _ => return Err(format!("a relocation of type {kind}")),
        };
        let distance = i32::try_from(to as i64 + addend - at as i64).map_err(|e| e.to_string())?;
        self.put(at, &distance.to_le_bytes())
    }
}

impl Image {
    /// Links an object file. Fails for objects that are damaged or need more than kernels do.
    pub(super) fn link(object: &[u8]) -> Result<Image, String> {
        let b = Bytes(object);
        let mut list = sections(b)?;
        let names = list.get(b.u16(62)?).ok_or("no section names")?.contents;
        let mut bytes = Vec::new();
        for s in &mut list {
            // Nothing unwinds through kernels: they call nothing that does.
            let wanted = s.flags & ALLOC != 0 && Bytes(names).name(s.name)? != ".eh_frame";
            if wanted && (s.kind == PROGBITS || s.kind == NOBITS) {
                let place = bytes.len().next_multiple_of(s.align);
                bytes.resize(place, 0xCC);
                bytes.extend_from_slice(s.contents);
                bytes.resize(place + s.size, 0);
                s.place = Some(place);
            }
        }
        let table = list.iter().find(|s| s.kind == SYMTAB).ok_or("no symbols")?;
        let strings = Bytes(list.get(table.link as usize).ok_or("no symbol names")?.contents);
        let symbols = Bytes(table.contents);
        let (mut ours, mut targets, mut functions) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..table.contents.len() / SYMBOL {
            let at = n * SYMBOL;
            let (name, info, section) =
                (strings.name(symbols.u32(at)?)?, symbols.at::<1>(at + 4)?[0], symbols.u16(at + 6)?);
            let place = list.get(section).and_then(|s| s.place);
            let value = symbols.u64(at + 8)?;
            let target = match (section, place) {
                (0, _) if name.is_empty() => None,
                (0, _) => {
                    let address = *known().get(name).ok_or_else(|| format!("function {name} is not known"))?;
                    ours.push(address);
                    Some(Target::Ours(ours.len() - 1))
                }
                (_, Some(place)) if value <= list[section].size as u64 => Some(Target::Inside(place + value as usize)),
                _ => None,
            };
            if let (Some(Target::Inside(p)), FUNCTION) = (target, info & 15) {
                functions.push((name.to_owned(), p));
            }
            targets.push(target);
        }
        let table = bytes.len().next_multiple_of(8);
        let jumps = table + ours.len() * 8;
        bytes.resize(jumps + ours.len() * JUMP.len(), 0xCC);
        let mut layout = Layout { bytes, table, jumps, absolute: Vec::new() };
        for (n, address) in ours.iter().enumerate() {
            layout.put(table + n * 8, &address.to_le_bytes())?;
            let at = jumps + n * JUMP.len();
            layout.put(at, &JUMP)?;
            layout.relocate(9, at + 2, Target::Ours(n), -4)?;
        }
        for s in list.iter().filter(|s| s.kind == RELA) {
            let of = list.get(s.info as usize).ok_or("relocations of no section")?;
            let Some(place) = of.place else { continue };
            let entries = Bytes(s.contents);
            for at in (0..s.contents.len() / RELOCATION).map(|n| n * RELOCATION) {
                let (offset, info, addend) = (entries.u64(at)?, entries.u64(at + 8)?, entries.u64(at + 16)? as i64);
                let target = targets.get((info >> 32) as usize).copied().flatten().ok_or("a relocation to nothing")?;
                if offset >= of.size as u64 || addend.unsigned_abs() > 1 << 30 {
                    return Err("a relocation out of bounds".into());
                }
                layout.relocate(info as u32, place + offset as usize, target, addend)?;
            }
        }
        Image::map(layout, functions)
    }

    fn map(layout: Layout, functions: Vec<(String, usize)>) -> Result<Image, String> {
        let length = layout.bytes.len().max(1);
        let failed = |what: &str| format!("{what}: {}", std::io::Error::last_os_error());
        let (access, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping touches no memory in use.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, access, private, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(failed("no memory for code"));
        }
        let base = memory.expose_provenance();
        let functions = functions.into_iter().map(|(name, at)| (name, base + at)).collect();
        let image = Image { base, length, functions };
        let mut bytes = layout.bytes;
        for (at, offset) in layout.absolute {
            let address = (base as i64).wrapping_add(offset) as u64;
            bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        // SAFETY: the mapping is ours alone, writable, and as long as the bytes.
        let done = unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast::<u8>(), bytes.len());
            libc::mprotect(memory, length, libc::PROT_READ | libc::PROT_EXEC)
        };
        if done == 0 { Ok(image) } else { Err(failed("code cannot be made executable")) }
    }

    /// Address of function `name`.
    pub(super) fn function(&self, name: &str) -> Option<usize> {
        self.functions.iter().find(|f| f.0 == name).map(|f| f.1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::llvm::{self, Output};
    use super::super::target::Level;
    use super::*;

    /// A constant (in a section of its own), a call out, and a second function.
    const TEXT: &str = "\
@table = private unnamed_addr constant [4 x i64] [i64 10, i64 20, i64 30, i64 40], align 64
declare i64 @rsx_ipow_u64(i64, i64)
define i64 @pick(i64 %n) nounwind {
  %p = getelementptr i64, ptr @table, i64 %n
  %x = load i64, ptr %p
  %y = call i64 @rsx_ipow_u64(i64 %x, i64 2)
  ret i64 %y
}
define double @third(double %x) nounwind {
  %y = fmul double %x, 0x3FD5555555555555
  ret double %y
}
";

    fn object() -> Vec<u8> {
        llvm::compile(TEXT, Level::Portable, Output::Object).expect("it compiles")
    }

    #[test]
    fn objects_run() {
        let image = Image::link(&object()).expect("it links");
        let address = |name: &str| image.function(name).expect("it is there");
        // SAFETY: the functions have these signatures.
        let (pick, third) = unsafe {
            (
                std::mem::transmute::<usize, extern "C" fn(i64) -> i64>(address("pick")),
                std::mem::transmute::<usize, extern "C" fn(f64) -> f64>(address("third")),
            )
        };
        assert_eq!([0, 1, 2, 3].map(|n| pick(n)), [100, 400, 900, 1600]);
        assert_eq!(third(6.0), 2.0);
        assert_eq!(image.function("table"), None);
    }

    #[test]
    fn unknown_functions_are_refused() {
        let text = TEXT.replace("rsx_ipow_u64", "system");
        let object = llvm::compile(&text, Level::Portable, Output::Object).expect("it compiles");
        assert!(Image::link(&object).is_err_and(|e| e.contains("system")));
    }

    #[test]
    fn damaged_objects_are_refused_or_linked_but_never_read_beyond_their_end() {
        let good = object();
        for length in 0..good.len() {
            // What is last may not be needed.
            assert!(Image::link(&good[..length]).is_err() || length > good.len() / 2);
        }
        for at in 0..good.len() {
            for bit in [0, 3, 7] {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                // Whatever comes of it is not run.
                drop(Image::link(&bytes));
            }
        }
    }
}
