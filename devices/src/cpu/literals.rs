//! Texts of LLVM IR, cut at their literals, and templates: texts some of whose literals are operands instead.
//!
//! ```text
//! %v3 = mul nsw i64 %i1, 256          %v3 = mul nsw i64 %i1, %z0
//! %v9 = fmul float %v8, 0x3F70..  =>  %v9 = fmul float %v8, %z1
//! ```
//!
//! Operands are loaded at entry from a block of *sizes*, whose address follows the kernel's arguments.
use super::codegen::VARIES;
use super::target::Level;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

/// Number type of a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
enum Num {
    I8,
    I16,
    I32,
    I64,
    Float,
    Double,
}

impl Num {
    fn parse(word: &str) -> Option<Num> {
        Some(match word {
            "i8" => Num::I8,
            "i16" => Num::I16,
            "i32" => Num::I32,
            "i64" => Num::I64,
            "float" => Num::Float,
            "double" => Num::Double,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Num::I8 => "i8",
            Num::I16 => "i16",
            Num::I32 => "i32",
            Num::I64 => "i64",
            Num::Float => "float",
            Num::Double => "double",
        }
    }

    /// The literal's bits, in the low end.
    fn bits(self, literal: &str) -> Option<u64> {
        let hex = || u64::from_str_radix(literal.strip_prefix("0x")?, 16).ok();
        match self {
            // LLVM writes floats as the bits of the double of equal value.
            Num::Float => Some(u64::from((f64::from_bits(hex()?) as f32).to_bits())),
            Num::Double => hex(),
            _ => literal.parse::<i64>().ok().map(|v| v as u64),
        }
    }
}

/// How a literal stands in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
enum Form {
    /// `256`
    Scalar(Num),
    /// `splat (float 0x3F70..)` of so many lanes.
    Splat(Num, u32),
    /// `<i32 0, i32 256, ..>`
    Vector(Num, u32),
}

/// A literal that can become an operand.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Literal {
    form: Form,
    /// Its number, or the numbers of a vector, separated by spaces.
    text: String,
    /// Which function it stands in.
    function: usize,
    /// Marked with [`VARIES`].
    varies: bool,
}

/// A module's text: what is fixed, and the literals between. `fixed` has one more element than `literals`.
#[derive(Debug, Default)]
pub(super) struct Text {
    fixed: Vec<String>,
    literals: Vec<Literal>,
}

impl Text {
    /// Cuts a text at its literals.
    pub(super) fn new(text: &str) -> Text {
        lex(text)
    }

    /// Hash of everything but the literals' values.
    pub(super) fn skeleton(&self, level: Level) -> u128 {
        let mut skeleton = format!("{}\n", level.name());
        for (n, fixed) in self.fixed.iter().enumerate() {
            skeleton.push_str(fixed);
            if let Some(l) = self.literals.get(n) {
                let _ = write!(skeleton, "\u{1}{:?}", l.form);
            }
        }
        xxhash_rust::xxh3::xxh3_128(skeleton.as_bytes())
    }
}

fn lex(text: &str) -> Text {
    let mut out = Text::default();
    let mut fixed = String::with_capacity(text.len());
    let (mut inside, mut function) = (false, 0);
    for line in text.split_inclusive('\n') {
        if line.starts_with("define ") {
            inside = true;
        } else if line.starts_with('}') {
            inside = false;
            function += 1;
        } else if inside && !line.trim_end().ends_with(':') {
            Line::new(line).cut(function, &mut fixed, &mut out);
            continue;
        }
        fixed.push_str(line);
    }
    out.fixed.push(fixed);
    out
}

/// Instructions whose numbers have to be constants, or are better off so.
const CONSTANT: [&str; 4] = ["shufflevector", "insertelement", "extractelement", "alloca"];

struct Line<'t> {
    rest: &'t str,
    /// No literal of this line can be lifted.
    constant: bool,
    /// Operands of intrinsics may have to be constants: only what never is may be lifted.
    call: bool,
    /// The type last named.
    scalar: Option<Num>,
    vector: Option<(Num, u32)>,
}

impl<'t> Line<'t> {
    fn new(text: &'t str) -> Line<'t> {
        let constant = CONSTANT.iter().any(|op| text.contains(op)) || text.contains("ptr %args");
        Line { rest: text, constant, call: text.contains("call "), scalar: None, vector: None }
    }

    fn cut(mut self, function: usize, fixed: &mut String, out: &mut Text) {
        let mut before = ' ';
        while let Some(c) = self.rest.chars().next() {
            if let Some((form, text, length)) = self.literal(before) {
                out.fixed.push(std::mem::take(fixed));
                let varies = text.starts_with(VARIES);
                let text = text.replace(VARIES, "");
                out.literals.push(Literal { form, text, function, varies });
                self.rest = &self.rest[length..];
                before = '0';
                continue;
            }
            let word = self.word(c);
            match word {
                // What follows is no operand.
                "align" => self.scalar = None,
                _ => self.type_of(word),
            }
            fixed.push_str(word);
            before = word.chars().next_back().unwrap_or(' ');
            self.rest = &self.rest[word.len()..];
        }
    }

    /// A name, a word, a vector type, a run of letters and digits, or one character.
    fn word(&self, first: char) -> &'t str {
        let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '%' | '@' | '!' | '#' | '-');
        let length = match first {
            '<' if self.vector_type().is_some() => self.rest.find('>').map_or(1, |n| n + 1),
            c if part(c) => self.rest.find(|c| !part(c)).unwrap_or(self.rest.len()),
            c => c.len_utf8(),
        };
        &self.rest[..length]
    }

    fn type_of(&mut self, word: &str) {
        if word.starts_with('<') {
            (self.scalar, self.vector) = (None, self.vector_type());
        } else if let Some(n) = Num::parse(word) {
            (self.scalar, self.vector) = (Some(n), None);
        } else if matches!(word, "ptr" | "i1" | "label") {
            (self.scalar, self.vector) = (None, None);
        }
    }

    /// `<8 x float>` at the front.
    fn vector_type(&self) -> Option<(Num, u32)> {
        let (lanes, num) = self.rest.strip_prefix('<')?.split_once('>')?.0.split_once(" x ")?;
        Some((Num::parse(num)?, lanes.parse().ok()?))
    }

    /// A liftable literal at the front: form, numbers, length in the text.
    fn literal(&self, before: char) -> Option<(Form, String, usize)> {
        if self.constant || !matches!(before, ' ' | '(' | '[') {
            return None;
        }
        let number = |s: &str| {
            let digits = s.strip_prefix(VARIES).unwrap_or(s);
            let digits = digits.strip_prefix('-').unwrap_or(digits);
            !digits.is_empty() && digits.starts_with(|c: char| c.is_ascii_digit())
        };
        if let Some(body) = self.rest.strip_prefix("splat (") {
            let (num, lanes) = self.vector?;
            let inner = &body[..body.find(')')?];
            let (ty, value) = inner.split_once(' ')?;
            return (Num::parse(ty) == Some(num) && number(value))
                .then(|| (Form::Splat(num, lanes), value.to_owned(), "splat (".len() + inner.len() + 1));
        }
        if let Some(body) = self.rest.strip_prefix('<') {
            let (num, lanes) = self.vector?;
            let inner = &body[..body.find('>')?];
            let mut numbers = Vec::new();
            for part in inner.split(", ") {
                let (ty, value) = part.split_once(' ')?;
                if Num::parse(ty) != Some(num) || !number(value) {
                    return None;
                }
                numbers.push(value);
            }
            return (numbers.len() == lanes as usize)
                .then(|| (Form::Vector(num, lanes), numbers.join(" "), inner.len() + 2));
        }
        let num = self.scalar?;
        if self.call && !matches!(num, Num::I64 | Num::Float | Num::Double) {
            return None;
        }
        let end =
            self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != VARIES).unwrap_or(self.rest.len());
        let text = &self.rest[..end];
        number(text).then(|| (Form::Scalar(num), text.to_owned(), end))
    }
}

/// Which literals of texts of one skeleton are operands of their template.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Operands {
    /// For each literal the operand it became, or its text in all of them.
    of: Vec<Result<u32, String>>,
    forms: Vec<Form>,
}

impl Operands {
    /// Operands for what differs between `texts`, and for what is marked to vary. Literals that are equal in each of the
    /// texts share an operand.
    pub(super) fn between(texts: &[Text]) -> Operands {
        let mut forms = Vec::new();
        let mut numbers: HashMap<(Form, Vec<&str>), u32> = HashMap::new();
        let of = (0..texts.first().map_or(0, |t| t.literals.len())).map(|n| {
            let first = &texts[0].literals[n];
            let list: Vec<&str> = texts.iter().map(|t| t.literals[n].text.as_str()).collect();
            if !first.varies && list.iter().all(|t| *t == first.text) {
                return Err(first.text.clone());
            }
            Ok(*numbers.entry((first.form, list)).or_insert_with(|| {
                forms.push(first.form);
                forms.len() as u32 - 1
            }))
        });
        let of = of.collect();
        Operands { of, forms }
    }

    /// The block of sizes for a text of the same skeleton; none if the template does not stand for it.
    pub(super) fn block(&self, text: &Text) -> Option<Arc<[u64]>> {
        let mut values: Vec<Option<&str>> = vec![None; self.forms.len()];
        if text.literals.len() != self.of.len() {
            return None;
        }
        for (l, operand) in text.literals.iter().zip(&self.of) {
            match operand {
                Err(fixed) if *fixed != l.text => return None,
                Err(_) => {}
                Ok(n) => match values.get_mut(*n as usize)? {
                    Some(v) if *v != l.text => return None,
                    v => *v = Some(&l.text),
                },
            }
        }
        let mut block = Vec::new();
        for (form, value) in self.forms.iter().zip(values) {
            push(&mut block, *form, value?)?;
        }
        Some(block.into())
    }

    /// `text` with operands in place of its lifted literals; the block's address follows `args` arguments.
    pub(super) fn template(&self, text: &Text, args: usize) -> String {
        let mut offsets = Vec::with_capacity(self.forms.len());
        let mut end = 0;
        for f in &self.forms {
            offsets.push(end);
            end += words(*f);
        }
        let mut out = String::new();
        // Operands that each function uses.
        let mut used: Vec<Vec<u32>> = Vec::new();
        for ((fixed, literal), operand) in text.fixed.iter().zip(&text.literals).zip(&self.of) {
            out.push_str(fixed);
            match operand {
                Ok(n) => {
                    used.resize_with(used.len().max(literal.function + 1), Vec::new);
                    used[literal.function].push(*n);
                    let _ = write!(out, "%z{n}");
                }
                Err(_) => write_literal(&mut out, literal),
            }
        }
        out.push_str(text.fixed.last().map_or("", String::as_str));
        let lines = std::mem::take(&mut out);
        let mut functions = used.into_iter();
        for line in lines.split_inclusive('\n') {
            out.push_str(line);
            if line.starts_with("entry:") {
                let mut operands = functions.next().unwrap_or_default();
                operands.sort_unstable();
                operands.dedup();
                if !operands.is_empty() {
                    load_operands(&mut out, &operands, &self.forms, &offsets, args);
                }
            }
        }
        out
    }
}

/// Words that an operand takes in the block.
fn words(form: Form) -> usize {
    match form {
        Form::Scalar(_) | Form::Splat(..) => 1,
        Form::Vector(_, lanes) => lanes as usize,
    }
}

/// Appends an operand: each number in a word of its own.
fn push(block: &mut Vec<u64>, form: Form, text: &str) -> Option<()> {
    let (Form::Scalar(num) | Form::Splat(num, _) | Form::Vector(num, _)) = form;
    for number in text.split(' ') {
        block.push(num.bits(number)?);
    }
    Some(())
}

fn write_literal(text: &mut String, l: &Literal) {
    let _ = match l.form {
        Form::Scalar(_) => write!(text, "{}", l.text),
        Form::Splat(num, _) => write!(text, "splat ({} {})", num.name(), l.text),
        Form::Vector(num, _) => {
            let list: Vec<String> = l.text.split(' ').map(|v| format!("{} {v}", num.name())).collect();
            write!(text, "<{}>", list.join(", "))
        }
    };
}

fn load_operands(out: &mut String, operands: &[u32], forms: &[Form], offsets: &[usize], args: usize) {
    let _ = writeln!(out, "%zp = getelementptr ptr, ptr %args, i64 {args}\n%zb = load ptr, ptr %zp, align 8");
    let mut load = |name: &str, num: Num, word: usize| {
        let ty = num.name();
        let _ = writeln!(out, "{name}.a = getelementptr i64, ptr %zb, i64 {word}");
        // The block never changes.
        let _ = writeln!(out, "{name} = load {ty}, ptr {name}.a, align 8, !invariant.load !{{}}");
    };
    let mut vectors = Vec::new();
    for &n in operands {
        let at = offsets[n as usize];
        match forms[n as usize] {
            Form::Scalar(num) => load(&format!("%z{n}"), num, at),
            Form::Splat(num, lanes) => {
                load(&format!("%z{n}.0"), num, at);
                vectors.push((n, num, lanes, 1));
            }
            Form::Vector(num, lanes) => {
                (0..lanes as usize).for_each(|l| load(&format!("%z{n}.{l}"), num, at + l));
                vectors.push((n, num, lanes, lanes));
            }
        }
    }
    for (n, num, lanes, given) in vectors {
        let (ty, mut last) = (format!("<{lanes} x {}>", num.name()), "poison".to_owned());
        for l in 0..given {
            let name = if l + 1 == given && given > 1 { format!("%z{n}") } else { format!("%z{n}.v{l}") };
            let _ = writeln!(out, "{name} = insertelement {ty} {last}, {} %z{n}.{l}, i64 {l}", num.name());
            last = name;
        }
        if given == 1 {
            let _ = writeln!(out, "%z{n} = shufflevector {ty} {last}, {ty} poison, <{lanes} x i32> zeroinitializer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
@KEY.zeros = private constant [64 x i8] zeroinitializer, align 64
define void @KEY.f0(ptr %args, i64 %lo) #0 {
entry:
%a0 = getelementptr ptr, ptr %args, i64 0
%p0 = load ptr, ptr %a0, align 8
L1.head:
%i1 = phi i64 [ 0, %L1.pre ], [ %i1.next, %L1.latch ]
%v1 = mul nsw i64 %i1, 256
%v2 = load <8 x float>, ptr %p0, align 4
%v3 = fmul <8 x float> %v2, splat (float 0x3F70000000000000)
%v4 = add <8 x i32> %v9, <i32 0, i32 256, i32 512, i32 768, i32 1024, i32 1280, i32 1536, i32 1792>
%v5 = shufflevector <8 x float> %v3, <8 x float> poison, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 0, i32 1, i32 2, i32 3>
%v6 = call <8 x float> @llvm.masked.load.v8f32(ptr %p0, i32 4, <8 x i1> %m, <8 x float> splat (float 0x0000000000000000))
%v7 = icmp slt i64 %v1, -16
br i1 %v7, label %L1.head, label %L2.exit, !prof !1
}
!1 = !{!\"branch_weights\", i32 1, i32 2000}
";

    #[test]
    fn a_text_is_its_pieces() {
        let text = Text::new(TEXT);
        let list: Vec<&str> = text.literals.iter().map(|l| l.text.as_str()).collect();
        let ramp = "0 256 512 768 1024 1280 1536 1792";
        assert_eq!(list, ["0", "256", "0x3F70000000000000", ramp, "0x0000000000000000", "-16"]);
        assert_eq!(Operands::between(&[Text::new(TEXT)]).template(&text, 1), TEXT);
    }

    #[test]
    fn literals_that_differ_or_are_marked_become_operands() {
        let other = TEXT.replace("256", "96").replace("0x3F70", "0x3F80").replace("-16", "$-16");
        let texts = [Text::new(&other), Text::new(TEXT)];
        assert_eq!(texts[0].skeleton(Level::Avx2), texts[1].skeleton(Level::Avx2));
        let operands = Operands::between(&texts);
        // The factor, the number, the ramp, the bound; the ramp has a word for every lane.
        assert_eq!(operands.forms.len(), 4);
        assert_eq!(operands.block(&texts[1]).map(|b| b.len()), Some(3 + 8));
        let template = operands.template(&texts[0], 1);
        assert!(template.contains("icmp slt i64 %v1, %z3") && template.contains("phi i64 [ 0,"), "{template}");
        // The first index of all is none.
        assert_eq!(operands.block(&Text::new(&TEXT.replace("[ 0,", "[ 1,"))), None);
        let changed = Text::new(&TEXT.replace("i32 4, <8 x i1>", "i32 8, <8 x i1>"));
        assert_ne!(texts[0].skeleton(Level::Avx2), changed.skeleton(Level::Avx2));
    }
}
