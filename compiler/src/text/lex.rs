//! Reading the text form character by character: positions, words, numbers.
use super::ParseError;
use crate::ir::{DType, Dims, TensorType};

/// Sizes and attributes beyond this are refused, so that no sum or product of a few of them overflows.
const MAX_INT: i64 = 1 << 40;

/// A position in a text. Blanks and `//` comments are skipped before every token.
#[derive(Clone, Debug)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    pos: usize,
}

pub(super) type Result<T> = std::result::Result<T, ParseError>;

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Lexer { text, pos: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.pos..]
    }

    pub(super) fn skip(&mut self) {
        loop {
            let rest = self.rest().trim_start();
            self.pos = self.text.len() - rest.len();
            if !rest.starts_with("//") {
                return;
            }
            self.pos += rest.find('\n').unwrap_or(rest.len());
        }
    }

    /// The place of the next token.
    pub(super) fn mark(&mut self) -> usize {
        self.skip();
        self.pos
    }

    pub(super) fn error_at(&self, mark: usize, message: impl Into<String>) -> ParseError {
        let before = &self.text[..mark];
        let line = before.matches('\n').count() as u32 + 1;
        let col = before.chars().rev().take_while(|&c| c != '\n').count() as u32 + 1;
        ParseError { line, col, message: message.into() }
    }

    /// "expected ..., found ..." at the next token.
    pub(super) fn expected(&mut self, what: &str) -> ParseError {
        self.skip();
        let found: String = match self.rest().chars().next() {
            None => "the end of the text".into(),
            Some(c) if is_word(c) => format!("`{}`", self.rest().split(|c| !is_word(c)).next().unwrap_or_default()),
            Some(c) => format!("`{c}`"),
        };
        self.error_at(self.pos, format!("expected {what}, found {found}"))
    }

    pub(super) fn at_end(&mut self) -> bool {
        self.skip();
        self.rest().is_empty()
    }

    /// Whether the next characters are `token` (not the beginning of a longer word).
    pub(super) fn at(&mut self, token: &str) -> bool {
        self.skip();
        let whole = !token.ends_with(is_word) || !self.rest()[..].get(token.len()..).unwrap_or("").starts_with(is_word);
        self.rest().starts_with(token) && whole
    }

    pub(super) fn eat(&mut self, token: &str) -> bool {
        let found = self.at(token);
        if found {
            self.pos += token.len();
        }
        found
    }

    pub(super) fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.expected(&format!("`{token}`"))) }
    }

    /// A run of letters, digits, `_` and `.`.
    pub(super) fn word(&mut self, what: &str) -> Result<&'a str> {
        self.skip();
        let end = self.rest().find(|c| !is_word(c)).unwrap_or(self.rest().len());
        if end == 0 {
            return Err(self.expected(what));
        }
        let word = &self.rest()[..end];
        self.pos += end;
        Ok(word)
    }

    /// An element of a constant: a word that may have signs in it (`-1e-7`).
    pub(super) fn element(&mut self) -> Result<&'a str> {
        self.skip();
        let end = self.rest().find(|c| !(is_word(c) || c == '-' || c == '+')).unwrap_or(self.rest().len());
        if end == 0 {
            return Err(self.expected("an element"));
        }
        let word = &self.rest()[..end];
        self.pos += end;
        Ok(word)
    }

    pub(super) fn at_int(&mut self) -> bool {
        self.skip();
        self.rest().trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit())
    }

    pub(super) fn int(&mut self) -> Result<i64> {
        let mark = self.mark();
        let negative = self.eat("-");
        let word = self.word("an integer")?;
        match word.parse::<i64>() {
            Ok(v) if v <= MAX_INT => Ok(if negative { -v } else { v }),
            Ok(_) => Err(self.error_at(mark, format!("`{word}` is too large"))),
            Err(_) => Err(self.error_at(mark, format!("expected an integer, found `{word}`"))),
        }
    }

    /// `"..."` with `\"`, `\\` and `\n` as the escapes.
    pub(super) fn string(&mut self) -> Result<String> {
        self.expect("\"")?;
        let mark = self.pos;
        let mut out = String::new();
        let mut chars = self.text[mark..].char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.pos = mark + i + 1;
                    return Ok(out);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, c @ ('"' | '\\'))) => out.push(c),
                    _ => return Err(self.error_at(mark + i, "expected `\\\"`, `\\\\` or `\\n`")),
                },
                c => out.push(c),
            }
        }
        Err(self.error_at(mark - 1, "this string has no end"))
    }

    fn dtype(&self, mark: usize, name: &str) -> Result<DType> {
        DType::parse(name).ok_or_else(|| {
            let known: Vec<&str> = DType::ALL.iter().map(|d| d.name()).collect();
            self.error_at(mark, format!("expected an element type ({}), found `{name}`", known.join(", ")))
        })
    }

    /// `tensor<4x8xf32>`.
    pub(super) fn tensor_type(&mut self) -> Result<TensorType> {
        if !self.eat("tensor") {
            return Err(self.expected("a type (`tensor<4x8xf32>`)"));
        }
        self.expect("<")?;
        let mark = self.mark();
        let word = self.word("sizes and an element type")?;
        let mut parts: Vec<&str> = word.split('x').collect();
        let dtype = self.dtype(mark, parts.pop().unwrap_or_default())?;
        let mut dims = Dims::new();
        let mut bytes = dtype.size() as i64;
        for part in parts {
            let size = part.parse::<i64>().ok().filter(|n| (0..=MAX_INT).contains(n));
            let size = size.ok_or_else(|| self.error_at(mark, format!("expected a size, found `{part}`")))?;
            bytes = bytes.checked_mul(size.max(1)).ok_or_else(|| self.error_at(mark, "the type is too large"))?;
            dims.push(size);
        }
        self.expect(">")?;
        Ok(TensorType::new(dtype, dims))
    }

    /// `scalar<f64>`: a runtime scalar's type.
    pub(super) fn scalar_type(&mut self) -> Result<TensorType> {
        self.expect("scalar")?;
        self.expect("<")?;
        let mark = self.mark();
        let word = self.word("an element type")?;
        let dtype = self.dtype(mark, word)?;
        self.expect(">")?;
        Ok(TensorType::scalar(dtype))
    }
}
