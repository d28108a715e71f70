//! Kernels generic in sizes: two sizes teach the third.
//!
//! The first kernel of a structure (see [`Shape`]) has code for exactly its sizes. When one of another size turns up, the
//! generator writes both once more in the form for many sizes, in which nothing but literals depends on the numbers that
//! differ: tails are always there, parts are summed in a loop. Where the two texts differ then, and where the generator
//! says that they could, literals become operands ([`super::literals`]), and the code of this *template* serves every
//! later size.
//!
//! That is right by construction: a template runs a kernel only if the kernel's own text is that of the template up to
//! the lifted literals, and a literal and an operand of the same value mean the same in LLVM IR. A wrong guess about what
//! will vary costs code of its own, or a wider template, never a wrong result. Both forms compute the same bits.
//!
//! Templates are kept on disk, too: a later process has code for sizes that none has seen.
//!
//! What is left of a size in the structure: whether it is 0 or 1, how far a loop is unrolled (short ones less), whether
//! a reduction is cut in two steps (long ones are), whether indices fit 32 bits. Each such class has its own code.
use super::codegen::{self, Module};
use super::jit::{self, Code, Origin};
use super::literals::{Operands, Text};
use super::target::Target;
use crate::store::{DiskStore, EntryKind};
use rsx_compiler::ir::Dims;
use rsx_compiler::kernel::{Assumed, Kernel, Shape};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Code with the sizes it is to be run with.
#[derive(Clone, Debug)]
pub struct SizedCode {
    pub code: Arc<Code>,
    /// Contents of the block of sizes, if the code is generic.
    pub sizes: Option<Arc<[u64]>>,
}

impl SizedCode {
    /// Code that needs no sizes is nobody's in particular.
    fn new(code: Arc<Code>, sizes: Arc<[u64]>) -> SizedCode {
        SizedCode { code, sizes: Some(sizes).filter(|s| !s.is_empty()) }
    }

    /// The arguments as the code wants them: behind them the address of the sizes.
    pub(super) fn arguments<'a>(&self, args: &'a [*mut u8]) -> Cow<'a, [*mut u8]> {
        match &self.sizes {
            None => Cow::Borrowed(args),
            // Only ever read.
            Some(sizes) => Cow::Owned([args, &[sizes.as_ptr().cast_mut().cast()]].concat()),
        }
    }
}

/// A kernel that is known: what a template must be able to stand for.
#[derive(Debug)]
struct Member {
    kernel: Kernel,
    shape: Shape,
    /// Code for its own sizes, and how to run it.
    exact: Option<(Arc<Code>, Module)>,
}

impl Member {
    fn dims(&self) -> impl Iterator<Item = &Dims> {
        self.kernel.args.iter().map(|a| &a.dims)
    }
}

/// Code that stands for kernels of many sizes.
#[derive(Debug)]
struct Template {
    /// Of one of them: all have the same numbers where no multiple is given.
    numbers: Vec<i64>,
    /// What the numbers that vary are multiples of; 0 for those that do not.
    multiples: Vec<i64>,
    /// What those could be multiples of that do not vary.
    finest: Vec<i64>,
    skeleton: u128,
    operands: Operands,
    /// Names of the functions.
    symbols: Vec<String>,
    code: Arc<Code>,
}

impl Template {
    /// Numbers in which `shape` differs where the template's do not vary, or of which too much is assumed.
    fn misses(&self, shape: &Shape) -> usize {
        (0..shape.numbers.len())
            .filter(|&p| match self.multiples[p] {
                0 => shape.numbers[p] != self.numbers[p],
                m => shape.finest[p] < m,
            })
            .count()
    }

    /// Multiples for a template that stands for `shape` too.
    fn widened(&self, shape: &Shape) -> Vec<i64> {
        let widen = |p: usize| match self.multiples[p] {
            0 if shape.numbers[p] == self.numbers[p] => 0,
            0 => shape.finest[p].min(self.finest[p]),
            m => shape.finest[p].min(m),
        };
        (0..shape.numbers.len()).map(widen).collect()
    }
}

/// Kernels of one structure.
#[derive(Clone, Debug, Default)]
struct Family {
    members: Vec<Arc<Member>>,
    templates: Vec<Arc<Template>>,
}

/// Members and templates kept of a family; beyond, the oldest are forgotten (their code stays where it is used).
const FAMILY: usize = 8;

fn families() -> MutexGuard<'static, HashMap<u128, Family>> {
    static FAMILIES: OnceLock<Mutex<HashMap<u128, Family>>> = OnceLock::new();
    FAMILIES.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner())
}

/// Families remembered; beyond, all are forgotten at once.
const FAMILIES: usize = 4096;

/// Forgets all sizes seen so far. Code in use stays; for tests.
pub fn forget() {
    families().clear();
}

/// [`Template`] on disk.
#[derive(serde::Serialize, serde::Deserialize)]
struct Stored<'a, O> {
    numbers: Vec<i64>,
    multiples: Vec<i64>,
    finest: Vec<i64>,
    skeleton: u128,
    operands: O,
    symbols: Vec<String>,
    object_key: u128,
    object: &'a [u8],
}

fn store_key(family: u128) -> u128 {
    xxhash_rust::xxh3::xxh3_128(format!("many sizes {} {family:032x}", jit::VERSION).as_bytes())
}

/// The family's templates on disk, for kernels of so many numbers.
fn read(store: &DiskStore, family: u128, numbers: usize) -> Vec<Arc<Template>> {
    let key = store_key(family);
    let Some(bytes) = store.get(EntryKind::Kernel, key) else { return Vec::new() };
    let parse = || -> Result<Vec<Arc<Template>>, String> {
        let list: Vec<Stored<Operands>> = postcard::from_bytes(&bytes).map_err(|e| e.to_string())?;
        let load = |s: Stored<Operands>| {
            if [&s.numbers, &s.multiples, &s.finest].iter().any(|l| l.len() != numbers) {
                return Err("it is of another kernel".to_owned());
            }
            let object = jit::Object { key: s.object_key, bytes: s.object.into() };
            let (code, _) = jit::load_object(object, &s.symbols, Origin::Store).map_err(|e| e.to_string())?;
            let Stored { numbers, multiples, finest, skeleton, operands, symbols, .. } = s;
            Ok(Arc::new(Template { numbers, multiples, finest, skeleton, operands, symbols, code }))
        };
        list.into_iter().map(load).collect()
    };
    parse().unwrap_or_else(|why| {
        store.reject(EntryKind::Kernel, key, &why);
        Vec::new()
    })
}

fn write(store: &DiskStore, family: u128, label: &str, templates: &[Arc<Template>]) {
    let mut list = Vec::new();
    for t in templates {
        list.push(Stored {
            numbers: t.numbers.clone(),
            multiples: t.multiples.clone(),
            finest: t.finest.clone(),
            skeleton: t.skeleton,
            operands: &t.operands,
            symbols: t.symbols.clone(),
            object_key: t.code.object.key,
            object: &t.code.object.bytes,
        });
    }
    if let Ok(bytes) = postcard::to_allocvec(&list) {
        store.put(EntryKind::Kernel, store_key(family), &format!("{label} of any size"), &bytes);
    }
}

/// A kernel's code and how to run it; the module's text is left out.
#[derive(Debug)]
pub struct Generated {
    pub code: SizedCode,
    pub module: Module,
    pub origin: Origin,
}

fn push<T>(list: &mut Vec<T>, x: T) {
    if list.len() >= FAMILY {
        list.remove(0);
    }
    list.push(x);
}

/// The kernel's text for many sizes, cut at its literals.
fn sized(k: &Kernel, multiples: &[i64], t: Target, stream: bool) -> Result<(Text, Module), String> {
    let mut module = codegen::generate(k, t, Some(&Assumed::new(k, multiples)), stream)?;
    let text = Text::new(&std::mem::take(&mut module.text));
    Ok((text, module))
}

/// Generates the code of a kernel, or finds code that serves it. `name` is for listings of the store.
pub fn load(
    name: &str,
    kernel: &Kernel,
    target: Target,
    stream: bool,
    store: Option<&DiskStore>,
) -> Result<Generated, String> {
    let shape = kernel.shape();
    let head = format!("{target:?} {stream}\n");
    let key = xxhash_rust::xxh3::xxh3_128(&[head.as_bytes(), &shape.structure].concat());
    let known = families().get(&key).cloned();
    let origin = if known.is_some() { Origin::Memory } else { Origin::Store };
    let family = known.unwrap_or_else(|| {
        let templates = store.map_or_else(Vec::new, |s| read(s, key, shape.numbers.len()));
        let family = Family { members: Vec::new(), templates };
        if !family.templates.is_empty() {
            families().entry(key).or_insert_with(|| family.clone());
        }
        family
    });
    for m in family.members.iter().filter(|m| m.shape.numbers == shape.numbers) {
        if let Some((code, module)) = &m.exact
            && m.dims().eq(kernel.args.iter().map(|a| &a.dims))
        {
            let code = SizedCode { code: code.clone(), sizes: None };
            return Ok(Generated { code, module: module.clone(), origin: Origin::Memory });
        }
    }
    for t in family.templates.iter().rev().filter(|t| t.misses(&shape) == 0) {
        let (text, module) = sized(kernel, &t.multiples, target, stream)?;
        let sizes = if text.skeleton(target.level) == t.skeleton { t.operands.block(&text) } else { None };
        if let Some(sizes) = sizes {
            let code = SizedCode::new(t.code.clone(), sizes);
            return Ok(Generated { code, module, origin });
        }
    }
    let member = |exact| Arc::new(Member { kernel: kernel.clone(), shape: shape.clone(), exact });
    let remember = |member: Arc<Member>, template: Option<Arc<Template>>| {
        let mut families = families();
        if families.len() >= FAMILIES && !families.contains_key(&key) {
            families.clear();
        }
        let family = families.entry(key).or_default();
        push(&mut family.members, member);
        if let Some(t) = template {
            push(&mut family.templates, t);
        }
        family.templates.clone()
    };
    if let Some((template, module, sizes, origin)) = teach(&family, kernel, &shape, target, stream)? {
        let code = SizedCode::new(template.code.clone(), sizes);
        let templates = remember(member(None), Some(Arc::new(template)));
        if let Some(store) = store {
            write(store, key, name, &templates);
        }
        return Ok(Generated { code, module, origin });
    }
    let mut module = codegen::generate(kernel, target, None, stream)?;
    let text = std::mem::take(&mut module.text);
    let (code, origin) = jit::load(&text, &module.symbols, target.level).map_err(|e| e.to_string())?;
    remember(member(Some((code.clone(), module.clone()))), None);
    Ok(Generated { code: SizedCode { code, sizes: None }, module, origin })
}

/// A template for a kernel and others of its family, if there are any of its class.
#[expect(clippy::type_complexity, reason = "made and taken apart in one place")]
fn teach(
    family: &Family,
    kernel: &Kernel,
    shape: &Shape,
    target: Target,
    stream: bool,
) -> Result<Option<(Template, Module, Arc<[u64]>, Origin)>, String> {
    // What is known to vary varies on; otherwise what differs from the most similar kernel.
    let multiples = match family.templates.iter().rev().min_by_key(|t| t.misses(shape)) {
        Some(t) => t.widened(shape),
        None => {
            let vary = |m: &Arc<Member>| -> Vec<i64> {
                let both = (0..shape.numbers.len()).map(|p| (shape.numbers[p] == m.shape.numbers[p], p));
                both.map(|(same, p)| if same { 0 } else { shape.finest[p].min(m.shape.finest[p]) }).collect()
            };
            let lists = family.members.iter().rev().map(vary);
            match lists.min_by_key(|list| list.iter().filter(|&&m| m != 0).count()) {
                Some(list) => list,
                None => return Ok(None),
            }
        }
    };
    let (text, module) = sized(kernel, &multiples, target, stream)?;
    let (skeleton, mut finest) = (text.skeleton(target.level), shape.finest.clone());
    let mut texts = vec![text];
    for m in &family.members {
        let agrees = (0..shape.numbers.len()).all(|p| match multiples[p] {
            0 => m.shape.numbers[p] == shape.numbers[p],
            least => m.shape.finest[p] >= least,
        });
        if !agrees {
            continue;
        }
        let (text, _) = sized(&m.kernel, &multiples, target, stream)?;
        if text.skeleton(target.level) == skeleton {
            finest.iter_mut().zip(&m.shape.finest).for_each(|(a, b)| *a = (*a).min(*b));
            texts.push(text);
        }
    }
    let operands = Operands::between(&texts);
    let Some(sizes) = operands.block(&texts[0]).filter(|_| texts.len() > 1) else { return Ok(None) };
    let text = operands.template(&texts[0], kernel.args.len());
    let (code, origin) = jit::load(&text, &module.symbols, target.level).map_err(|e| e.to_string())?;
    let numbers = shape.numbers.clone();
    let symbols = module.symbols.clone();
    Ok(Some((Template { numbers, multiples, finest, skeleton, operands, symbols, code }, module, sizes, origin)))
}
