//! Integer constant expressions: what `#if` needs, and what array lengths and buffer indices need.
//!
//! Values are 64-bit two's complement; names are looked up by the caller. Floating point does not occur here.

use crate::lex::{Kind, Token};

/// Value of the whole token list, or `None` when it is not an integer constant expression the caller's names can close.
pub fn fold(tokens: &[Token], name: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    let mut parser = Parser { tokens, at: 0, name };
    let value = parser.ternary()?;
    (parser.at == tokens.len()).then_some(value)
}

/// Value of an integer literal with optional `u`/`l` suffixes.
pub fn integer(text: &str) -> Option<i64> {
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => (&digits[2..], 2),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    u64::from_str_radix(digits, radix).ok().map(|value| value as i64)
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    name: &'a dyn Fn(&str) -> Option<i64>,
}

impl Parser<'_> {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", |token| &token.text)
    }

    fn eat(&mut self, text: &str) -> Option<()> {
        (self.peek() == text).then(|| self.at += 1)
    }

    fn ternary(&mut self) -> Option<i64> {
        let condition = self.binary(0)?;
        if self.eat("?").is_none() {
            return Some(condition);
        }
        let yes = self.ternary()?;
        self.eat(":")?;
        let no = self.ternary()?;
        Some(if condition != 0 { yes } else { no })
    }

    fn binary(&mut self, floor: u8) -> Option<i64> {
        let mut left = self.unary()?;
        loop {
            let operator = self.peek().to_string();
            let level = match operator.as_str() {
                "||" => 1,
                "&&" => 2,
                "|" => 3,
                "^" => 4,
                "&" => 5,
                "==" | "!=" => 6,
                "<" | ">" | "<=" | ">=" => 7,
                "<<" | ">>" => 8,
                "+" | "-" => 9,
                "*" | "/" | "%" => 10,
                _ => return Some(left),
            };
            if level <= floor {
                return Some(left);
            }
            self.at += 1;
            let right = self.binary(level)?;
            left = match operator.as_str() {
                "||" => i64::from(left != 0 || right != 0),
                "&&" => i64::from(left != 0 && right != 0),
                "|" => left | right,
                "^" => left ^ right,
                "&" => left & right,
                "==" => i64::from(left == right),
                "!=" => i64::from(left != right),
                "<" => i64::from(left < right),
                ">" => i64::from(left > right),
                "<=" => i64::from(left <= right),
                ">=" => i64::from(left >= right),
                "<<" => left.checked_shl(u32::try_from(right).ok()?)?,
                ">>" => left.checked_shr(u32::try_from(right).ok()?)?,
                "+" => left.wrapping_add(right),
                "-" => left.wrapping_sub(right),
                "*" => left.wrapping_mul(right),
                "/" => left.checked_div(right)?,
                _ => left.checked_rem(right)?,
            };
        }
    }

    fn unary(&mut self) -> Option<i64> {
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        match (token.kind, &*token.text) {
            (Kind::Punct, "!") => Some(i64::from(self.unary()? == 0)),
            (Kind::Punct, "-") => Some(self.unary()?.wrapping_neg()),
            (Kind::Punct, "+") => self.unary(),
            (Kind::Punct, "~") => Some(!self.unary()?),
            (Kind::Punct, "(") => {
                // A cast to an integer type in front of an operand changes nothing for the sizes this is used on.
                if matches!(self.peek(), "int" | "uint" | "ushort" | "short" | "size_t" | "ulong" | "long")
                    && self.tokens.get(self.at + 1).is_some_and(|t| t.is(")"))
                {
                    self.at += 2;
                    return self.unary();
                }
                let value = self.ternary()?;
                self.eat(")")?;
                Some(value)
            }
            (Kind::Number, text) => integer(text),
            (Kind::Ident, "true") => Some(1),
            (Kind::Ident, "false") => Some(0),
            (Kind::Ident, "int" | "uint" | "ushort" | "short" | "size_t" | "ulong" | "long") if self.peek() == "(" => {
                self.unary()
            }
            (Kind::Ident, "sizeof") => {
                self.eat("(")?;
                let size = type_size(self.peek())?;
                self.at += 1;
                self.eat(")")?;
                Some(size as i64)
            }
            (Kind::Ident, text) => (self.name)(text),
            _ => None,
        }
    }
}

/// Size in bytes of a built-in MSL type name, vectors included (`float3` occupies 16).
pub fn type_size(name: &str) -> Option<usize> {
    let (name, packed) = match name.strip_prefix("packed_") {
        Some(rest) => (rest, true),
        None => (name, false),
    };
    let name = name.strip_prefix("atomic_").unwrap_or(name);
    let base = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let (base, lanes) = match name {
        "int8_t" | "uint8_t" | "int16_t" | "uint16_t" | "int32_t" | "uint32_t" | "int64_t" | "uint64_t" => (name, 1),
        _ => (base, name[base.len()..].parse::<usize>().ok().filter(|n| (2..=4).contains(n)).unwrap_or(1)),
    };
    if lanes == 1 && base.len() != name.len() {
        return None;
    }
    let scalar = match base {
        "bool" | "char" | "uchar" | "int8_t" | "uint8_t" => 1,
        "short" | "ushort" | "half" | "bfloat" | "int16_t" | "uint16_t" => 2,
        "int" | "uint" | "float" | "int32_t" | "uint32_t" => 4,
        "long" | "ulong" | "size_t" | "int64_t" | "uint64_t" => 8,
        _ => return None,
    };
    Some(scalar * if lanes == 3 && !packed { 4 } else { lanes })
}
