//! Facts about one source file, read from its syntax tree: the paths that it names, the types,
//! functions and modules that it defines, the methods that it calls.
//!
//! Macro calls and attributes are token streams to the parser. Paths and method calls in these
//! streams are collected too, as well as paths in attribute strings (`#[serde(with = "…")]`).

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::iter::Peekable;
use syn::{
    Attribute, BinOp, Expr, ImplItem, Item, Lit, Pat, TraitItem, UseTree,
    spanned::Spanned,
    visit::{self, Visit},
};

/// The location of a fact. `test` is true below `#[cfg(test)]` or `#[test]`, and in test files.
#[derive(Clone, Debug)]
pub struct Place {
    pub file: String,
    pub line: usize,
    pub module: Vec<String>,
    pub test: bool,
}

/// A path of at least two segments, or a `use` declaration.
pub struct Name {
    pub place: Place,
    pub segments: Vec<String>,
    /// Whether the path begins with `::`, so that its first segment is a crate.
    pub rooted: bool,
}

/// A `use` declaration: in `use a::b as c`, `c` names `a::b`. A glob has the alias `*`.
pub struct Import {
    pub name: Name,
    pub alias: String,
}

pub struct Function {
    pub place: Place,
    pub name: String,
    pub lines: usize,
    pub is_async: bool,
}

/// A method call. `argument` is the first argument if that is a path or a string literal, such as
/// `Fork::Canyon` or `"…"`.
pub struct Method {
    pub place: Place,
    pub name: String,
    pub argument: Option<String>,
}

/// A comparison with `<`, `<=`, `>` or `>=`, given by the last identifier of each side.
pub struct Comparison {
    pub place: Place,
    pub left: Option<String>,
    pub right: Option<String>,
}

/// A declaration `mod name;`.
pub struct Submodule {
    pub path: Vec<String>,
    pub test: bool,
}

#[derive(Default)]
pub struct Facts {
    pub names: Vec<Name>,
    pub imports: Vec<Import>,
    pub types: Vec<(Place, String)>,
    /// Every item, including types, with its module.
    pub items: Vec<(Vec<String>, String)>,
    pub inline_modules: Vec<Vec<String>>,
    pub submodules: Vec<Submodule>,
    pub functions: Vec<Function>,
    pub methods: Vec<Method>,
    pub comparisons: Vec<Comparison>,
    pub bool_matches: Vec<Place>,
    pub async_blocks: Vec<Place>,
}

impl Facts {
    /// The facts of a single file.
    pub fn of(file: &str, text: &str, test: bool) -> Self {
        let mut facts = Self::default();
        let place = Place {
            file: file.to_owned(),
            line: 1,
            module: vec![],
            test,
        };
        Self::read(&mut facts, text, place);
        facts
    }

    /// Reads one file. Panics if the file does not parse, although the compiler accepts it.
    pub fn read(facts: &mut Self, text: &str, place: Place) {
        let tree = syn::parse_file(text)
            .unwrap_or_else(|error| panic!("{} does not parse: {error}", place.file));
        Reader { facts, place }.visit_file(&tree);
    }
}

/// Whether the pattern is `true` or `false`.
fn is_bool(pat: &Pat) -> bool {
    matches!(pat, Pat::Lit(lit) if matches!(lit.lit, Lit::Bool(_)))
}

/// Whether the pattern is a tuple of `true` and `false`, in which `_` and `..` may occur.
fn is_bool_tuple(pat: &Pat) -> bool {
    let Pat::Tuple(tuple) = pat else {
        return false;
    };
    let rest = |pat: &Pat| matches!(pat, Pat::Wild(_) | Pat::Rest(_)) || is_bool(pat);
    tuple.elems.iter().any(is_bool) && tuple.elems.iter().all(rest)
}

struct Reader<'a> {
    facts: &'a mut Facts,
    place: Place,
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        if path.is_ident("test")
            || path
                .segments
                .last()
                .is_some_and(|last| last.ident == "test")
        {
            return true;
        }
        let Ok(list) = attribute.meta.require_list() else {
            return false;
        };
        let mut tokens = list.tokens.clone().into_iter();
        path.is_ident("cfg")
            && match (tokens.next(), tokens.next()) {
                (Some(TokenTree::Ident(word)), None) => word == "test",
                (Some(TokenTree::Ident(word)), Some(TokenTree::Group(group))) => {
                    word == "all" && contains_word(group.stream(), "test")
                }
                _ => false,
            }
    })
}

fn contains_word(tokens: TokenStream, word: &str) -> bool {
    tokens
        .into_iter()
        .any(|token| matches!(token, TokenTree::Ident(ident) if ident == word))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn last_ident(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        Expr::Field(field) => match &field.member {
            syn::Member::Named(ident) => Some(ident.to_string()),
            syn::Member::Unnamed(_) => None,
        },
        Expr::MethodCall(call) => Some(call.method.to_string()),
        Expr::Call(call) => last_ident(&call.func),
        Expr::Paren(inner) => last_ident(&inner.expr),
        Expr::Unary(inner) => last_ident(&inner.expr),
        Expr::Reference(inner) => last_ident(&inner.expr),
        Expr::Try(inner) => last_ident(&inner.expr),
        _ => None,
    }
}

/// The path of an argument, or a placeholder for a string literal.
fn argument(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Path(path) => Some(joined(&path.path)),
        Expr::Reference(inner) => argument(&inner.expr),
        Expr::Lit(literal) => matches!(literal.lit, Lit::Str(_)).then(|| "\"…\"".to_owned()),
        _ => None,
    }
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments
        .iter()
        .map(|segment| segment.ident.to_string())
        .collect()
}

fn joined(path: &syn::Path) -> String {
    segments(path).join("::")
}

impl Reader<'_> {
    fn at(&self, line: usize) -> Place {
        Place {
            line,
            ..self.place.clone()
        }
    }

    /// Visits an item, as test code if one of the attributes marks it as a test.
    fn below(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let before = self.place.test;
        self.place.test |= is_test(attributes);
        visit(self);
        self.place.test = before;
    }

    fn name(&mut self, segments: Vec<String>, rooted: bool, line: usize) {
        if segments.len() > 1 && segments[0] != "Self" {
            let place = self.at(line);
            self.facts.names.push(Name {
                place,
                segments,
                rooted,
            });
        }
    }

    fn import(&mut self, prefix: &[String], rooted: bool, tree: &UseTree) {
        let with = |ident: &syn::Ident| {
            let mut path = prefix.to_vec();
            // In `use a::b::{self}` the imported path is `a::b`.
            if ident != "self" || path.is_empty() {
                path.push(ident.to_string());
            }
            path
        };
        let (segments, alias) = match tree {
            UseTree::Path(path) => {
                return self.import(&with(&path.ident), rooted, &path.tree);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(prefix, rooted, tree);
                }
                return;
            }
            UseTree::Name(name) => {
                let path = with(&name.ident);
                let alias = path.last().cloned().unwrap_or_default();
                (path, alias)
            }
            UseTree::Rename(rename) => (with(&rename.ident), rename.rename.to_string()),
            UseTree::Glob(_) => (prefix.to_vec(), "*".to_owned()),
        };
        let place = self.at(tree.span().start().line);
        let name = Name {
            place,
            segments,
            rooted,
        };
        self.facts.imports.push(Import { name, alias });
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.span().start().line;
        let function = Function {
            place: self.at(first),
            name: signature.ident.to_string(),
            lines: block.span().end().line + 1 - first,
            is_async: signature.asyncness.is_some(),
        };
        self.facts.functions.push(function);
    }

    fn item(&mut self, ident: &syn::Ident, is_type: bool) {
        let place = self.at(ident.span().start().line);
        self.facts
            .items
            .push((place.module.clone(), ident.to_string()));
        if is_type {
            self.facts.types.push((place, ident.to_string()));
        }
    }

    /// Finds functions in a token stream (`proptest!`): `fn` and a name, up to the next braces.
    fn functions_in_tokens(&mut self, tokens: TokenStream) {
        let mut begun: Option<(usize, Option<String>)> = None;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if ident == "fn" => {
                    begun = Some((ident.span().start().line, None));
                }
                TokenTree::Ident(ident) => {
                    if let Some((_, name)) = &mut begun {
                        name.get_or_insert_with(|| ident.to_string());
                    }
                }
                TokenTree::Group(group) => {
                    let is_body = group.delimiter() == Delimiter::Brace;
                    begun = match begun {
                        Some((first, Some(name))) if is_body => {
                            let function = Function {
                                place: self.at(first),
                                name,
                                lines: group.span_close().end().line + 1 - first,
                                is_async: false,
                            };
                            self.facts.functions.push(function);
                            None
                        }
                        // A `fn` without a name, such as `fn(u8)`, is a type.
                        Some((_, None)) => None,
                        other => other,
                    };
                    self.functions_in_tokens(group.stream());
                }
                _ => {}
            }
        }
    }

    /// Finds paths, method calls and match arms on booleans in a token stream.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        let mut before = ' ';
        while let Some(token) = tokens.next() {
            let line = token.span().start().line;
            match token {
                TokenTree::Group(group) => {
                    self.tokens(group.stream());
                    before = ' ';
                }
                TokenTree::Punct(punct) => before = punct.as_char(),
                TokenTree::Literal(literal) => {
                    self.string_path(&literal.to_string(), line);
                    before = ' ';
                }
                TokenTree::Ident(ident) if before == '.' => {
                    self.method_in_tokens(ident.to_string(), &mut tokens, line);
                    before = ' ';
                }
                TokenTree::Ident(ident) => {
                    let segments = path_in_tokens(ident.to_string(), &mut tokens);
                    let arm = ["true", "false"].contains(&segments[0].as_str())
                        && matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == '=');
                    if arm && followed_by_arrow(&mut tokens) {
                        let place = self.at(line);
                        self.facts.bool_matches.push(place);
                    }
                    self.name(segments, before == ':', line);
                    before = ' ';
                }
            }
        }
    }

    fn method_in_tokens(
        &mut self,
        name: String,
        tokens: &mut Peekable<proc_macro2::token_stream::IntoIter>,
        line: usize,
    ) {
        let Some(TokenTree::Group(group)) = tokens.peek() else {
            return;
        };
        if group.delimiter() == Delimiter::Parenthesis {
            let argument = match group.stream().into_iter().next() {
                Some(TokenTree::Literal(text)) if text.to_string().starts_with('"') => {
                    Some("\"…\"".to_owned())
                }
                Some(TokenTree::Ident(ident)) => {
                    let mut rest = group.stream().into_iter().skip(1).collect::<Vec<_>>();
                    rest.truncate(3);
                    let mut rest = TokenStream::from_iter(rest).into_iter().peekable();
                    Some(path_in_tokens(ident.to_string(), &mut rest).join("::"))
                }
                _ => None,
            };
            let place = self.at(line);
            self.facts.methods.push(Method {
                place,
                name,
                argument,
            });
        }
    }

    fn string_path(&mut self, literal: &str, line: usize) {
        let text = literal.trim_matches('"');
        let path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        if text.contains("::") && text.chars().all(path) {
            self.name(text.split("::").map(str::to_owned).collect(), false, line);
        }
    }
}

/// Reads the path that begins with the segment `first` from the tokens.
fn path_in_tokens(
    first: String,
    tokens: &mut Peekable<proc_macro2::token_stream::IntoIter>,
) -> Vec<String> {
    let mut segments = vec![first];
    let colon = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ':');
    loop {
        let mut ahead = tokens.clone();
        let colons =
            ahead.next().is_some_and(|t| colon(&t)) && ahead.next().is_some_and(|t| colon(&t));
        match ahead.next() {
            Some(TokenTree::Ident(ident)) if colons => segments.push(ident.to_string()),
            _ => return segments,
        }
        *tokens = ahead;
    }
}

fn followed_by_arrow(tokens: &mut Peekable<proc_macro2::token_stream::IntoIter>) -> bool {
    let mut ahead = tokens.clone();
    ahead.next();
    matches!(ahead.next(), Some(TokenTree::Punct(p)) if p.as_char() == '>')
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Const(item) => self.item(&item.ident, false),
            Item::Enum(item) => self.item(&item.ident, true),
            Item::Fn(item) => self.item(&item.sig.ident, false),
            Item::Static(item) => self.item(&item.ident, false),
            Item::Struct(item) => self.item(&item.ident, true),
            Item::Trait(item) => self.item(&item.ident, true),
            Item::Type(item) => self.item(&item.ident, true),
            Item::Union(item) => self.item(&item.ident, true),
            _ => {}
        }
        self.below(attributes(item), |reader| visit::visit_item(reader, item));
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes: &[Attribute] = match item {
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Const(item) => &item.attrs,
            _ => &[],
        };
        self.below(attributes, |reader| visit::visit_impl_item(reader, item));
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        if let TraitItem::Fn(function) = item
            && let Some(block) = &function.default
        {
            self.function(&function.sig, block);
        }
        visit::visit_trait_item(self, item);
    }

    /// Skipped, since the path in `pub(in crate::chain)` names no item.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.below(&field.attrs, |reader| visit::visit_field(reader, field));
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let mut path = self.place.module.clone();
        path.push(item.ident.to_string());
        if item.content.is_none() {
            let test = self.place.test;
            self.facts.submodules.push(Submodule { path, test });
            return;
        }
        self.facts.inline_modules.push(path.clone());
        let outer = std::mem::replace(&mut self.place.module, path);
        visit::visit_item_mod(self, item);
        self.place.module = outer;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&[], item.leading_colon.is_some(), &item.tree);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let line = path.span().start().line;
        self.name(segments(path), path.leading_colon.is_some(), line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.functions_in_tokens(call.tokens.clone());
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_expr_async(&mut self, expr: &'ast syn::ExprAsync) {
        let place = self.at(expr.span().start().line);
        self.facts.async_blocks.push(place);
        visit::visit_expr_async(self, expr);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let place = self.at(call.method.span().start().line);
        let name = call.method.to_string();
        let argument = call.args.first().and_then(argument);
        self.facts.methods.push(Method {
            place,
            name,
            argument,
        });
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_binary(&mut self, expr: &'ast syn::ExprBinary) {
        if matches!(
            expr.op,
            BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_)
        ) {
            let place = self.at(expr.span().start().line);
            let (left, right) = (last_ident(&expr.left), last_ident(&expr.right));
            self.facts
                .comparisons
                .push(Comparison { place, left, right });
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        let mut patterns = expr.arms.iter().map(|arm| &arm.pat);
        let rest = |pat: &Pat| matches!(pat, Pat::Wild(_)) || is_bool_tuple(pat);
        let tuples = patterns.clone().any(is_bool_tuple) && patterns.clone().all(rest);
        if tuples || patterns.any(is_bool) {
            let place = self.at(expr.span().start().line);
            self.facts.bool_matches.push(place);
        }
        visit::visit_expr_match(self, expr);
    }
}
