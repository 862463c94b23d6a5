//! What a function takes, as its description says (docs/protocol.md, Functions): written where it is registered, and
//! looked at where it is called, before anything is sent.

use serde_json::{Map, Value as Json, json};

use super::convert::{kind_of, refused};
use crate::error::{Code, Error, Result};
use crate::value::{Value, encode_items, is_type_name};

/// The kinds of values that a parameter takes, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Types(pub(crate) u16);

macro_rules! types {
    ($($konst:ident $name:literal $bit:literal;)*) => {
        impl Types {
            $(pub(crate) const $konst: Types = Types(1 << $bit);)*
            const NAMES: &[(&str, Types)] = &[$(($name, Types::$konst),)*];
        }
    };
}

types! {
    NONE "none" 0; BOOL "bool" 1; INT "int" 2; INT64 "int64" 3; FLOAT "float" 4; TEXT "str" 5; BYTES "bytes" 6;
    TENSOR "tensor" 7; DTYPE "dtype" 8; DEVICE "device" 9; LIST "list" 10; TUPLE "tuple" 11; DICT "dict" 12;
    FUNCTION "function" 13;
}

impl Types {
    pub(crate) const ANY: Types = Types(u16::MAX);

    /// Reads names that `|` joins. One that is not known, such as that of a dataclass, may be anything.
    pub(crate) fn parse(text: &str) -> Types {
        let one = |name: &str| Types::NAMES.iter().find(|(n, _)| *n == name.trim()).map_or(Types::ANY, |(_, t)| *t);
        text.split('|').map(one).fold(Types(0), |all, t| Types(all.0 | t.0))
    }

    /// The name of one.
    pub(crate) fn name(self) -> &'static str {
        Types::NAMES.iter().find(|(_, t)| *t == self).map_or("a nested value", |(name, _)| name)
    }

    #[inline]
    pub(crate) fn has(self, any: Types) -> bool {
        self.0 & any.0 != 0
    }

    /// Whether a value fits that stands for one that is not given: None does wherever.
    fn takes(self, default: &Value) -> bool {
        let integer = Types::INT.0 | Types::INT64.0;
        self.has(match default {
            Value::Null | Value::Dataclass(..) => Types::ANY,
            Value::Bool(_) => Types(Types::BOOL.0 | integer | Types::FLOAT.0),
            Value::Int(_) => Types(integer | Types::FLOAT.0),
            Value::BigInt(_) => Types(Types::INT.0 | Types::FLOAT.0),
            Value::Float(_) => Types::FLOAT,
            Value::Text(_) => Types::TEXT,
            Value::Bytes(_) => Types::BYTES,
            Value::Tensor(_) => Types::TENSOR,
            Value::DType(_) => Types::DTYPE,
            Value::Device(..) => Types::DEVICE,
            Value::List(_) => Types::LIST,
            Value::Tuple(_) => Types::TUPLE,
            Value::Dict(_) => Types::DICT,
            Value::Function(_) => Types::FUNCTION,
        })
    }
}

/// How a parameter is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Either,
    Position,
    Name,
}

#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    pub(crate) name: Box<str>,
    pub(crate) types: Types,
    /// As it was written.
    pub(crate) text: Box<str>,
    pub(crate) by: By,
    pub(crate) optional: bool,
    /// The JSON of its value tree.
    pub(crate) default: Option<Box<str>>,
    /// It takes all that is left.
    pub(crate) many: bool,
}

/// What a function takes and gives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signature {
    /// Absent where the description does not say: then nothing is looked at.
    pub(crate) parameters: Option<Vec<Parameter>>,
    pub(crate) result: String,
    /// Whether it gives parts, each of which is a result.
    pub(crate) parts: bool,
    /// Whether requests over NATS may call it.
    pub(crate) nats: bool,
    pub(crate) doc: String,
}

fn bad(what: &str) -> crate::error::Error {
    refused(format!("a function's description {what}"))
}

impl Signature {
    /// Reads a description. Members that are not known are passed over.
    pub(crate) fn parse(text: &[u8]) -> Result<Signature> {
        let all: Map<String, Json> = serde_json::from_slice(text).map_err(|_| bad("is no JSON object"))?;
        let word =
            |of: &Map<String, Json>, key: &str| of.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
        let parameters = match all.get("parameters") {
            None | Some(Json::Null) => None,
            Some(Json::Array(list)) => Some(list.iter().map(Parameter::parse).collect::<Result<Vec<_>>>()?),
            Some(_) => return Err(bad("has parameters that are no list")),
        };
        let flag = |key: &str| all.get(key).and_then(Json::as_bool).unwrap_or(false);
        let (parts, nats) = (flag("parts"), flag("nats"));
        Ok(Signature { parameters, result: word(&all, "result"), parts, nats, doc: word(&all, "doc") })
    }

    /// Refuses what the grammar of a description does not have (docs/protocol.md, Description of a function). Callers
    /// read whatever providers of other versions say.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |remedy: &str, what: String| Err(Error::new(Code::InvalidArgument, remedy, what));
        let all = self.parameters();
        for (i, p) in all.iter().enumerate() {
            let number = i + 1;
            if p.name.is_empty() {
                return invalid("name it", format!("parameter {number} has no name"));
            }
            if p.name.chars().any(is_no_text) {
                let what = format!("the name of parameter {number} has white space or a control character");
                return invalid("use letters, digits and _", what);
            }
            if all[..i].iter().any(|other| other.name == p.name) {
                let what = format!("two parameters have the name {}", p.name);
                return invalid("give one of them another name", what);
            }
            check_types(&format!("the parameter {}", p.name), &p.text)?;
        }
        if self.result.is_empty() { Ok(()) } else { check_types("the result", &self.result) }
    }

    /// The JSON of the description.
    pub(crate) fn to_json(&self) -> String {
        let mut all = Map::new();
        if let Some(parameters) = &self.parameters {
            all.insert("parameters".into(), parameters.iter().map(Parameter::to_json).collect());
        }
        for (key, flag) in [("parts", self.parts), ("nats", self.nats)] {
            if flag {
                all.insert(key.into(), true.into());
            }
        }
        for (key, text) in [("result", &self.result), ("doc", &self.doc)] {
            if !text.is_empty() {
                all.insert(key.into(), text.as_str().into());
            }
        }
        Json::Object(all).to_string()
    }

    /// The parameters, in their order.
    pub(crate) fn parameters(&self) -> &[Parameter] {
        self.parameters.as_deref().unwrap_or_default()
    }

    /// For people: `(image: tensor, *, mean: float = 0.5) -> tensor`.
    pub(crate) fn to_text(&self) -> String {
        let mut parts = Vec::new();
        let (mut names, mut positions) = (false, false);
        if self.parameters.is_none() {
            parts.push("…".to_owned());
        }
        for p in self.parameters() {
            let by_position = p.by == By::Position && !p.many;
            if positions && !by_position {
                parts.push("/".to_owned());
            }
            positions = by_position;
            if p.by == By::Name && !names && !p.many {
                names = true;
                parts.push("*".to_owned());
            }
            let stars = match (p.many, p.by) {
                (true, By::Name) => "**",
                (true, _) => "*",
                _ => "",
            };
            let mut part = format!("{stars}{}: {}", p.name, p.text);
            match &p.default {
                Some(d) => part += &format!(" = {d}"),
                None if p.optional => part += " = …",
                None => {}
            }
            parts.push(part);
        }
        if positions {
            parts.push("/".to_owned());
        }
        let result = match (self.parts, &*self.result) {
            (false, "") => String::new(),
            (false, result) => format!(" -> {result}"),
            (true, "") => " -> parts".to_owned(),
            (true, result) => format!(" -> parts of {result}"),
        };
        format!("({}){result}", parts.join(", "))
    }
}

fn is_no_text(c: char) -> bool {
    c.is_whitespace() || c.is_control()
}

/// Refuses a text that is no types joined by `|`, of what a description says it.
fn check_types(of: &str, text: &str) -> Result<()> {
    let is_known = |name: &str| name == "any" || Types::NAMES.iter().any(|(n, _)| *n == name);
    let fault = if text.contains(char::is_control) {
        "has a control character in its type".to_owned()
    } else if text.split('|').any(|name| name.trim().is_empty()) {
        "has an empty type".to_owned()
    } else {
        let is_type = |name: &str| is_known(name) || is_type_name(name) && !name.contains(is_no_text);
        match text.split('|').map(str::trim).find(|name| !is_type(name)) {
            Some(name) => format!("has the type {name}, which is none"),
            None => return Ok(()),
        }
    };
    let all: Vec<_> = Types::NAMES.iter().map(|(name, _)| *name).collect();
    let remedy = format!("use {}, any, or a class as module:Class, joined by |", all.join(", "));
    Err(Error::new(Code::InvalidArgument, remedy, format!("{of} {fault}")))
}

impl Parameter {
    pub(crate) fn new(name: &str, types: &str) -> Parameter {
        Parameter {
            name: name.into(),
            types: Types::parse(types),
            text: types.into(),
            by: By::Either,
            optional: false,
            default: None,
            many: false,
        }
    }

    /// With a value that it has where it is not given.
    pub(crate) fn with_default(mut self, default: &Value) -> Result<Parameter> {
        let (tree, tensors) = encode_items(std::slice::from_ref(default), 0, &mut |_| {
            Err(refused("a default is a function".to_owned()))
        })?;
        if !tensors.is_empty() {
            return Err(refused(format!("the default of {} is a tensor", self.name)));
        }
        if !self.types.takes(default) {
            let kind = kind_of(default);
            return Err(refused(format!("the parameter {} is {}, and its default is a {kind}", self.name, self.text)));
        }
        let tree = String::from_utf8_lossy(&tree[1..tree.len() - 1]).into_owned();
        (self.optional, self.default) = (true, Some(tree.into()));
        Ok(self)
    }

    fn parse(p: &Json) -> Result<Parameter> {
        let Some(name) = p.get("name").and_then(Json::as_str) else {
            return Err(bad("has a parameter without a name"));
        };
        let types = p.get("type").and_then(Json::as_str).unwrap_or("any");
        let is = |key: &str| p.get(key).and_then(Json::as_bool).unwrap_or(false);
        let default = p.get("default").map(|d| d.to_string().into());
        let by = match p.get("by").and_then(Json::as_str) {
            Some("position") => By::Position,
            Some("name") => By::Name,
            _ => By::Either,
        };
        let optional = is("optional") || default.is_some();
        Ok(Parameter { by, optional, default, many: is("many"), ..Parameter::new(name, types) })
    }

    fn to_json(&self) -> Json {
        let mut p = json!({"name": self.name, "type": self.text});
        match self.by {
            By::Either => {}
            By::Position => p["by"] = "position".into(),
            By::Name => p["by"] = "name".into(),
        }
        match self.default.as_ref().and_then(|d| serde_json::from_str::<Json>(d).ok()) {
            Some(default) => p["default"] = default,
            None if self.optional => p["optional"] = true.into(),
            None => {}
        }
        if self.many {
            p["many"] = true.into();
        }
        p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_reads_as_it_was_written() {
        let text = concat!(
            r#"{"doc":"Scales.","parameters":[{"name":"image","type":"tensor"},"#,
            r#"{"by":"name","default":0.5,"name":"mean","type":"float|none"},"#,
            r#"{"many":true,"name":"more","type":"any"},{"name":"odd","optional":true,"type":"m:C"}],"result":"tensor"}"#
        );
        let s = Signature::parse(text.as_bytes()).unwrap();
        assert_eq!(serde_json::from_str::<Json>(&s.to_json()).unwrap(), serde_json::from_str::<Json>(text).unwrap());
        assert_eq!(s.to_text(), "(image: tensor, *, mean: float|none = 0.5, *more: any, odd: m:C = …) -> tensor");
        let types: Vec<_> = s.parameters().iter().map(|p| p.types).collect();
        assert_eq!(types, [Types::TENSOR, Types(Types::FLOAT.0 | Types::NONE.0), Types::ANY, Types::ANY]);
        assert!(Signature::parse(b"{}").unwrap().parameters.is_none());
    }

    #[test]
    fn parameters_by_position_alone_stand_before_a_slash() {
        let of = |rest: &str| {
            let text = format!(r#"{{"parameters":[{{"name":"a","type":"int","by":"position"}}{rest}]}}"#);
            Signature::parse(text.as_bytes()).unwrap().to_text()
        };
        assert_eq!(of(""), "(a: int, /)");
        assert_eq!(of(r#",{"name":"b","type":"int"}"#), "(a: int, /, b: int)");
        assert_eq!(of(r#",{"name":"b","type":"int","by":"position","many":true}"#), "(a: int, /, *b: int)");
        assert_eq!(of(r#",{"name":"b","type":"int","by":"name"}"#), "(a: int, /, *, b: int)");
    }

    #[test]
    fn what_is_no_description_is_refused() {
        for text in ["", "[]", "1", r#"{"parameters":1}"#, r#"{"parameters":[{}]}"#, r#"{"parameters":[{"name":1}]}"#] {
            assert!(Signature::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_default_is_what_the_parameter_takes() {
        let fits = |types, v: Value| Parameter::new("x", types).with_default(&v).is_ok();
        assert!(fits("float", 1.into()) && fits("int", true.into()) && fits("str|none", "a".into()));
        assert!(fits("int", Value::Null) && fits("any", "a".into()) && fits("m:C", 1.0.into()));
        assert!(!fits("str", 3.into()) && !fits("int", 1.5.into()) && !fits("bool", 1.into()));
    }

    #[test]
    fn a_default_is_written_as_a_tree() {
        let p = Parameter::new("x", "float").with_default(&Value::Float(1.0)).unwrap();
        assert_eq!(p.default.as_deref(), Some("1.0"));
        let p = Parameter::new("x", "float").with_default(&Value::Float(f64::NAN)).unwrap();
        assert_eq!(p.default.as_deref(), Some(r#"{"$":"float","v":"nan"}"#));
    }
}
